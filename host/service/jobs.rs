//! Background jobs of the host: the ticker, the drain before a stop, the checks of custom domains, certificates, refusals, mail,
//! and the webhook deliveries.

pub mod certificates;
pub mod deliveries;
pub mod domain_checks;
pub mod drain;
pub mod heartbeat;
pub mod listener;
pub mod mail;
pub mod notifier;
mod outage;
pub mod refusals;
pub mod sweep;
pub mod ticker;
pub mod wakeups;

use std::sync::Arc;

use culvert_wire::clock::Clock;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Service;
use crate::connected_agents::ConnectedAgents;
use crate::database_clock::DatabaseClock;
use crate::metrics::Metrics;
use crate::rate_limits::RateLimits;
use crate::refusals::Refusals;
use crate::scope_changes::ScopeChanges;
use certificates::CertificateWorker;
use deliveries::DeliveryWorker;
use mail::MailWorker;
use notifier::Notifier;
use wakeups::Wakeups;

/// What background jobs need of the host.
pub struct Jobs {
    pub service: Arc<Service>,
    pub agents: Arc<ConnectedAgents>,
    pub rate_limits: Arc<RateLimits>,
    pub changes: Arc<ScopeChanges>,
    pub wakeups: Wakeups,
    pub notifier: Notifier,
    pub database_clock: DatabaseClock,
    pub deliveries: DeliveryWorker,
    pub mail: MailWorker,
    pub certificates: CertificateWorker,
    pub refusals: Arc<Refusals>,
    pub metrics: Arc<Metrics>,
    pub clock: Clock,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
}

/// Whether the ticker runs by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticker {
    Auto,
    /// For tests, which call [`ticker::tick`] themselves.
    Manual,
}
