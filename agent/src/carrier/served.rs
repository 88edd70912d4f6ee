//! The tunnels whose visits come over the connections to one node.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::local_target::LocalTarget;
use crate::traffic::Traffic;

/// A tunnel, as its visits need it.
#[derive(Clone)]
pub(crate) struct Served {
    pub tunnel_id: Uuid,
    pub epoch: i64,
    pub name: Arc<str>,
    pub target: Arc<LocalTarget>,
    pub traffic: Arc<Traffic>,
    /// Cancelled when the tunnel stops. Its visits are then cut.
    pub stop: CancellationToken,
    /// Cancelled when the node does not take the device's connections because it serves no lease of it.
    pub fenced: CancellationToken,
}

pub(super) struct ServedTunnels {
    tunnels: Mutex<HashMap<Uuid, Served>>,
    /// Whether one of them takes datagrams.
    datagrams: watch::Sender<bool>,
}

impl ServedTunnels {
    pub(super) fn new() -> Self {
        Self { tunnels: Mutex::default(), datagrams: watch::Sender::new(false) }
    }

    pub(super) fn add(&self, served: Served) {
        self.table().insert(served.tunnel_id, served);
        self.retargeted();
    }

    pub(super) fn remove(&self, tunnel_id: Uuid, epoch: i64) {
        {
            let mut table = self.table();
            if table.get(&tunnel_id).is_some_and(|served| served.epoch == epoch) {
                table.remove(&tunnel_id);
            }
        }
        self.retargeted();
    }

    /// A tunnel has another target.
    pub(super) fn retargeted(&self) {
        let datagrams = self.table().values().any(|served| served.target.target().takes_datagrams);
        self.datagrams.send_if_modified(|known| std::mem::replace(known, datagrams) != datagrams);
    }

    /// Whether one of the tunnels takes datagrams.
    pub(super) fn datagrams(&self) -> watch::Receiver<bool> {
        self.datagrams.subscribe()
    }

    /// A tunnel that is served under this epoch.
    pub(super) fn find(&self, tunnel_id: Uuid, epoch: i64) -> Option<Served> {
        self.table().get(&tunnel_id).filter(|served| served.epoch == epoch).cloned()
    }

    pub(super) fn all(&self) -> Vec<Served> {
        self.table().values().cloned().collect()
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Uuid, Served>> {
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
