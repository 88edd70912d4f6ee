//! The host's end of the channel to one node.

use std::collections::BTreeSet;
use std::sync::Arc;

use culvert_domain::error::Chain;
use culvert_store::Hint;
use culvert_wire::node::{HostEnd, ToHost, ToNode, TrafficBatch};
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{Link, RETRY, lock, report};
use crate::Service;

/// Batches that are stored at the same time. If one waits for its scope, the others go on.
const AT_ONCE: usize = 8;

/// Serves the channel of one node until it ends.
pub async fn serve_node(service: Arc<Service>, channel: HostEnd) {
    let HostEnd { sender, mut receiver } = channel;
    let Some(ToHost::Hello(hello)) = receiver.recv().await else {
        return tracing::warn!("the first frame of a node is no hello");
    };
    let (nodes, node_id) = (service.nodes.clone(), hello.node_id);
    let (link, batches) = Link::new(hello, sender);
    let link = Arc::new(link);
    let keys = nodes.secrets.lease_verifying_keys();
    link.send(ToNode::Welcome { connection_epoch: 1, keys }).await;
    link.extend_authority(service.fleet.node_authority());
    lock(&nodes.links).insert(node_id, link.clone());
    let storing = tokio::spawn(store_batches(service.clone(), link.clone(), batches));
    while let Err(error) = nodes.sync(&link).await {
        report("a node could not be told what to serve", Err(error));
        nodes.clock.sleep(RETRY).await;
    }
    let mut is_ready = false;
    while let Some(frame) = receiver.recv().await {
        match frame {
            ToHost::Resync { .. } => {
                let (nodes, link) = (nodes.clone(), link.clone());
                // The frames of the node are read meanwhile: it may be sending many.
                tokio::spawn(async move {
                    link.sent.lock().await.revision = None;
                    report("a node could not be told what to serve", nodes.sync(&link).await.map(drop));
                });
            }
            frame => {
                if let ToHost::Load { counts, times, .. } = &frame {
                    nodes.counts.take(node_id, link.boot_id(), counts, times, &nodes.metrics);
                }
                let shown = scopes_whose_visitors_changed(&frame);
                link.receive(frame);
                shown.into_iter().for_each(|scope_id| nodes.store.send_hint(Hint::Scope(scope_id)));
            }
        }
        if !is_ready && link.applied().is_some() {
            is_ready = true;
            nodes.ready.send_modify(|ready| *ready += 1);
        }
    }
    nodes.remove(&link);
    link.close();
    let _ = storing.await;
}

/// The scopes whose open pages show something else after this frame.
fn scopes_whose_visitors_changed(frame: &ToHost) -> BTreeSet<Uuid> {
    let ToHost::Visitors(changes) = frame else { return BTreeSet::new() };
    changes.iter().map(|tunnel| tunnel.scope_id).collect()
}

/// Stores the batches of one node until its channel ends.
async fn store_batches(service: Arc<Service>, link: Arc<Link>, batches: mpsc::Receiver<TrafficBatch>) {
    let batches = stream::unfold(batches, async |mut batches| Some((batches.recv().await?, batches)));
    let storing =
        batches.for_each_concurrent(AT_ONCE, async |batch| match service.store_traffic(link.node_id(), &batch).await {
            Ok(()) => link.acknowledge(&batch).await,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), scope_id = %batch.scope_id, "traffic could not be stored");
                link.give_up(&batch);
            }
        });
    storing.await;
}
