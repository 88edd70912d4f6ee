//! A node that a test plays: it takes the place of the host's own, keeps what it is sent, and answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use culvert_service::nodes::channel::serve_node;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Clock;
use culvert_wire::control::NodeAddress;
use culvert_wire::node::{
    Assignment, HostEnd, NodeEnd, NodeHello, SessionTraffic, ToHost, ToNode, TrafficBatch, in_process,
};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::host::TestHost;

/// Whether a played node answers when it has ended a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Answered,
    Withheld,
}

/// What a played node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub revision: u64,
    pub assignments: BTreeMap<Uuid, Assignment>,
    /// Sessions that it was told to end.
    pub ended: Vec<Uuid>,
    /// How often it was sent everything.
    pub desired: usize,
    /// Batches that the host has stored.
    pub acknowledged: Vec<u64>,
}

pub struct PlayedNode {
    pub id: Uuid,
    pub boot_id: Uuid,
    pub held: watch::Receiver<Held>,
    sender: mpsc::Sender<ToHost>,
}

impl TestHost {
    /// A node in the place of the host's first one.
    pub async fn played_node(&self, ended: Ended) -> PlayedNode {
        let id = self.app.service.nodes().ids()[0];
        self.played_process(id, Uuid::from_bytes(Clock::system().random()), ended).await
    }

    /// A node's process that has connected, once it was sent everything.
    pub async fn played_process(&self, id: Uuid, boot_id: Uuid, ended: Ended) -> PlayedNode {
        let (host_end, NodeEnd { sender, receiver }) = in_process();
        tokio::spawn(serve_node(self.app.service.clone(), host_end));
        let address =
            NodeAddress { host: "127.0.0.1".into(), port: 1, udp_port: None, fingerprint: Base64Bytes(vec![0; 32]) };
        let hello = NodeHello { node_id: id, boot_id, revision: 0, address, has_countries: false };
        sender.send(ToHost::Hello(hello)).await.unwrap();
        let (sent, held) = watch::channel(Held::default());
        tokio::spawn(answer(receiver, sender.clone(), sent, ended));
        let mut node = PlayedNode { id, boot_id, held, sender };
        node.until(|held| held.desired > 0).await;
        node
    }
}

/// Takes frames as a node does, and answers them.
async fn answer(
    mut receiver: mpsc::Receiver<ToNode>,
    sender: mpsc::Sender<ToHost>,
    held: watch::Sender<Held>,
    ended: Ended,
) {
    while let Some(frame) = receiver.recv().await {
        let mut answers = Vec::new();
        held.send_modify(|held| answers = take(held, frame, ended));
        for answer in answers {
            let _ = sender.send(answer).await;
        }
    }
}

fn take(held: &mut Held, frame: ToNode, ended: Ended) -> Vec<ToHost> {
    let (revision, put, dropped) = match frame {
        ToNode::Welcome { .. } | ToNode::Authority { .. } => return Vec::new(),
        ToNode::TrafficApplied { numbers, .. } => {
            held.acknowledged.extend(numbers);
            return Vec::new();
        }
        ToNode::End { tunnel_id, session_id, epoch } => {
            held.assignments.remove(&tunnel_id);
            held.ended.push(session_id);
            let answer = (ended == Ended::Answered).then_some(ToHost::Ended { tunnel_id, session_id, epoch });
            return answer.into_iter().collect();
        }
        ToNode::Desired { revision, assignments, .. } => {
            held.desired += 1;
            held.assignments.clear();
            (revision, assignments, Vec::new())
        }
        ToNode::Change { from, revision, put, drop, .. } => {
            assert!(from == held.revision && revision > from, "{from} to {revision}, at {}", held.revision);
            (revision, put, drop)
        }
    };
    for tunnel_id in dropped {
        held.assignments.remove(&tunnel_id);
    }
    held.revision = revision;
    let serving = put.iter().map(|assignment| {
        let Assignment { tunnel_id, session_id, epoch, .. } = *assignment;
        ToHost::Serving { tunnel_id, session_id, epoch, unopened: Vec::new() }
    });
    let answers: Vec<_> = serving.chain([ToHost::Applied { revision }]).collect();
    held.assignments.extend(put.into_iter().map(|assignment| (assignment.tunnel_id, assignment)));
    answers
}

impl PlayedNode {
    pub async fn send(&self, frame: ToHost) {
        self.sender.send(frame).await.unwrap();
    }

    /// Waits until the node holds what is wanted.
    pub async fn until(&mut self, wanted: impl FnMut(&Held) -> bool) -> Held {
        let held = super::host::within(20, self.held.wait_for(wanted)).await;
        held.unwrap().clone()
    }

    /// Reports traffic into the host: bytes from visitors, in one session.
    pub fn batch(&self, number: u64, oldest: u64, session: &Assignment, bytes_in: u64) -> ToHost {
        let Assignment { scope_id, session_id, tunnel_id, .. } = *session;
        let rows = vec![SessionTraffic { session_id, tunnel_id, bytes_in, bytes_out: 0 }];
        ToHost::Traffic(TrafficBatch { boot_id: self.boot_id, number, oldest, scope_id, rows })
    }
}

/// What happens to the frames on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It arrives.
    None,
    Dropped,
    Repeated,
    /// It arrives after the next frame.
    Delayed,
}

/// Faults by the order of frames; without any that is left, all frames arrive.
pub type Faults = Arc<Mutex<Vec<Fault>>>;

/// A channel whose frames to the node meet with faults, but for those that open it.
pub fn faulty_channel(faults: Faults) -> (HostEnd, NodeEnd) {
    let (host_end, mut host_side) = in_process();
    let (node_side, node_end) = in_process();
    let HostEnd { sender, mut receiver } = node_side;
    let back = host_side.sender.clone();
    tokio::spawn(async move {
        while let Some(frame) = receiver.recv().await {
            let _ = back.send(frame).await;
        }
    });
    tokio::spawn(async move {
        let mut delayed = None;
        while let Some(frame) = host_side.receiver.recv().await {
            let opens = matches!(frame, ToNode::Welcome { .. } | ToNode::Desired { .. });
            let fault = if opens { Fault::None } else { faults.lock().unwrap().pop().unwrap_or(Fault::None) };
            let mut arriving = Vec::new();
            match fault {
                Fault::Dropped => {}
                Fault::Repeated => arriving.extend([frame.clone(), frame]),
                Fault::Delayed => {
                    arriving.extend(delayed.replace(frame));
                    continue;
                }
                Fault::None => arriving.push(frame),
            }
            arriving.extend(delayed.take());
            for frame in arriving {
                let _ = sender.send(frame).await;
            }
        }
    });
    (host_end, node_end)
}
