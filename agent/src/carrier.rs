//! The device's data connections (carriers), by the node that they lead to. All tunnels on a node share them.

mod census;
mod flows;
mod lanes;
mod pool;
mod quic;
mod served;
mod visit;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use uuid::Uuid;

pub(crate) use census::{Connections, Reached};
use culvert_wire::clock::Clock;
use culvert_wire::control::NodeAddress;
use culvert_wire::device_token::DeviceToken;
use pool::Pool;
pub(crate) use quic::{QuicState, connect as connect_quic};
pub(crate) use served::Served;

/// What carries visitors to this device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TransportChoice {
    /// TLS, and QUIC where UDP is not blocked.
    #[default]
    Auto,
    /// TLS alone.
    Tcp,
    /// QUIC alone.
    Quic,
}

#[derive(Clone)]
pub(crate) struct Carriers {
    clock: Clock,
    choice: TransportChoice,
    pools: Arc<Mutex<HashMap<NodeAddress, Weak<Pool>>>>,
}

impl Carriers {
    pub(crate) fn new(clock: Clock, choice: TransportChoice) -> Self {
        Self { clock, choice, pools: Arc::default() }
    }

    /// Serves a tunnel's visits until the seat is dropped.
    ///
    /// # Errors
    ///
    /// If TLS 1.3 is not available.
    pub(crate) fn join(&self, node: &NodeAddress, token: DeviceToken, served: Served) -> Result<Seat, rustls::Error> {
        let mut pools = lock(&self.pools);
        pools.retain(|_, pool| pool.strong_count() > 0);
        let pool = if let Some(pool) = pools.get(node).and_then(Weak::upgrade) {
            pool
        } else {
            let pool = Arc::new(Pool::start(node.clone(), token.clone(), self.choice, self.clock.clone())?);
            pools.insert(node.clone(), Arc::downgrade(&pool));
            pool
        };
        pool.renew_token(token);
        let (tunnel_id, epoch) = (served.tunnel_id, served.epoch);
        pool.served().add(served);
        Ok(Seat { pool, tunnel_id, epoch })
    }

    /// Proves by other tokens from now on who this device is.
    pub(crate) fn renew_tokens(&self, tokens: Vec<DeviceToken>) {
        let pools: Vec<_> = lock(&self.pools).values().filter_map(Weak::upgrade).collect();
        for token in tokens {
            pools.iter().for_each(|pool| pool.renew_token(token.clone()));
        }
    }

    pub(crate) fn choice(&self) -> TransportChoice {
        self.choice
    }

    /// The nodes that the device has connections to, and how many.
    pub(crate) fn nodes(&self) -> Vec<(NodeAddress, Connections, QuicState)> {
        let pools = lock(&self.pools);
        let live = pools.iter().filter_map(|(node, pool)| {
            let pool = pool.upgrade()?;
            Some((node.clone(), pool.connections(), pool.quic()))
        });
        live.collect()
    }

    /// Ends the back-off and dials at once: the host is reachable again, so the nodes should be, too.
    pub(crate) fn dial_now(&self) {
        lock(&self.pools).values().filter_map(Weak::upgrade).for_each(|pool| pool.dial_now());
    }
}

/// A tunnel's place at the connections to its node. The last one to be dropped ends them.
pub(crate) struct Seat {
    pool: Arc<Pool>,
    tunnel_id: Uuid,
    epoch: i64,
}

impl Seat {
    /// Waits until the node takes the device's connections, or says why it does not; with `datagrams`, also until something
    /// carries them.
    pub(crate) fn reached(&self, datagrams: bool) -> impl Future<Output = Reached> + Send + use<> {
        let (reached, carried) = (self.pool.reached(), self.pool.carries_datagrams());
        async move {
            let reached = reached.await;
            if datagrams && reached == Reached::Yes {
                carried.await;
            }
            reached
        }
    }

    /// The tunnel has another target.
    pub(crate) fn retargeted(&self) {
        self.pool.served().retargeted();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.pool.served().remove(self.tunnel_id, self.epoch);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
