//! The public side of one tunnel: a port, whose visitors go to whichever run is the newest.

use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::run::Run;
use super::{Shared, lock};
use crate::store::sessions::Lease;

/// How long to wait when the machine has no more sockets to give.
const EXHAUSTED: std::time::Duration = std::time::Duration::from_millis(100);

pub struct Tunnel {
    run: Arc<Mutex<Arc<Run>>>,
    listening: JoinHandle<()>,
    stop: CancellationToken,
}

impl Tunnel {
    pub fn open(lease: &Lease, listener: TcpListener, shared: Arc<Shared>) -> Self {
        let run = Arc::new(Mutex::new(Run::new(lease.clone(), &shared)));
        let stop = CancellationToken::new();
        let (runs, stopped) = (run.clone(), stop.clone());
        let tasks = shared.tasks.clone();
        let listening = tasks.spawn(async move {
            stopped.run_until_cancelled_owned(listen(listener, runs, shared)).await;
        });
        Self { run, listening, stop }
    }

    pub fn run(&self) -> Arc<Run> {
        lock(&self.run).clone()
    }

    /// Serves a lease of this tunnel. The former run, if it was another one, ends at once: what is
    /// older than the newest run is fenced off.
    pub fn turn_to(&self, lease: &Lease, shared: &Arc<Shared>) -> Option<Arc<Run>> {
        let mut run = lock(&self.run);
        if lease.epoch == run.lease().epoch {
            run.set_limits(lease);
            return None;
        }
        if lease.epoch < run.lease().epoch {
            return None;
        }
        let former = std::mem::replace(&mut *run, Run::new(lease.clone(), shared));
        former.end();
        Some(former)
    }

    /// Ends the run and closes the port: when this returns, another can have it.
    pub async fn close(self) -> Arc<Run> {
        let run = self.run();
        run.end();
        self.stop.cancel();
        if let Err(error) = self.listening.await {
            tracing::warn!(%error, "the listener of a port has ended badly");
        }
        run
    }
}

async fn listen(listener: TcpListener, run: Arc<Mutex<Arc<Run>>>, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((visitor, address)) => {
                let run = lock(&run).clone();
                tokio::spawn(run.receive(visitor, address));
            }
            Err(error) => {
                tracing::warn!(%error, "a visitor could not be accepted");
                shared.clock.sleep(EXHAUSTED).await;
            }
        }
    }
}
