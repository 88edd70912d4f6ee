//! The search for another host while the one that the agent is connected to does not reach its database. The connection to it
//! stays until another host has welcomed the device.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::{Connected, Ended, HostEvent, find_host};
use crate::servers::Servers;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::ToAgent;

/// When the first attempt begins after the host has said so, and how much later at most: many agents hear it at once.
const FIRST_AFTER: Duration = Duration::from_secs(1);
const FIRST_SPREAD: Duration = Duration::from_secs(4);
/// When the next attempt begins after one that has failed, and how much later at most.
const AGAIN_AFTER: Duration = Duration::from_secs(25);
const AGAIN_SPREAD: Duration = Duration::from_secs(10);

pub(super) struct Search {
    servers: Servers,
    clock: Clock,
    events: mpsc::Sender<HostEvent>,
    state: State,
}

enum State {
    /// The host reaches its database.
    None,
    From(Moment),
    UnderWay(BoxFuture<'static, Result<Connected, Ended>>),
}

impl Search {
    pub(super) fn new(servers: Servers, clock: Clock, events: mpsc::Sender<HostEvent>) -> Self {
        Self { servers, clock, events, state: State::None }
    }

    /// Takes note of what the host says.
    pub(super) fn heard(&mut self, frame: &ToAgent) {
        match (frame, &self.state) {
            (ToAgent::Renewed { grace: true, .. }, State::None) => self.wait(FIRST_AFTER, FIRST_SPREAD),
            // An attempt that is under way goes on: the other host may have let the device in already.
            (ToAgent::Renewed { grace: false, .. }, State::From(_)) => self.state = State::None,
            _ => {}
        }
    }

    fn wait(&mut self, at_least: Duration, spread: Duration) {
        let from = self.clock.moment().plus(at_least + self.clock.jitter(spread));
        self.state = State::From(from);
    }

    /// Another host that has welcomed the device. It may be dropped and called again.
    pub(super) async fn found(&mut self) -> Connected {
        loop {
            match &mut self.state {
                State::None => std::future::pending().await,
                State::From(moment) => {
                    self.clock.until(*moment).await;
                    self.begin();
                }
                State::UnderWay(attempt) => match attempt.await {
                    Ok(connected) => return connected,
                    Err(ended) => {
                        tracing::info!(reason = %ended, "no other host takes this device");
                        self.wait(AGAIN_AFTER, AGAIN_SPREAD);
                    }
                },
            }
        }
    }

    fn begin(&mut self) {
        // One name may stand for all hosts.
        let (servers, clock, events) = (self.servers.clone(), self.clock.clone(), self.events.clone());
        self.state = State::UnderWay(async move { find_host(&servers, &clock, &events).await }.boxed());
    }
}
