//! Receives every response: for the metrics, the decision records, and the shadow modules.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use prometheus_client::registry::Registry;
use uuid::Uuid;

use crate::engine::request::{PolicyRequest, PolicyResponse};
use crate::engine::sandbox::Failed;
use crate::serve::live::{ModuleInstance, PolicySet};
use crate::serve::metrics::PolicyMetrics;
use crate::serve::records::{Record, Records, RecordsConfig};
use crate::serve::shadows::Shadows;

pub struct DecisionObserver {
    pub clock: Clock,
    pub metrics: PolicyMetrics,
    pub shadows: Shadows,
    pub records: Option<Arc<Records>>,
}

impl DecisionObserver {
    /// Registers the metrics, and opens the file of decision records of this host if one is configured.
    ///
    /// # Errors
    ///
    /// If the file of decision records cannot be opened, or a thread cannot be started.
    pub fn open(
        clock: Clock,
        registry: &mut Registry,
        records: &RecordsConfig,
        host_id: Option<Uuid>,
    ) -> io::Result<Self> {
        let metrics = PolicyMetrics::new(registry);
        let (written, dropped) = (metrics.records_written.clone(), metrics.records_dropped.clone());
        let records = Records::open(records, host_id, clock.clone(), written, dropped)?.map(Arc::new);
        let shadows = Shadows::start(metrics.shadows_dropped.clone(), clock.clone(), records.clone())?;
        Ok(Self { clock, metrics, shadows, records })
    }

    pub fn note(
        &self,
        set: &PolicySet,
        request_id: Option<Uuid>,
        decider: &ModuleInstance,
        request: &PolicyRequest,
        response: &Result<PolicyResponse, Failed>,
        took: Duration,
    ) {
        decider.metrics.count(response, took);
        let Some(records) = &self.records else { return };
        if !records.is_sampled(request, request_id) {
            return;
        }
        records.write(Record::new(self.clock.now(), request_id, set, decider, request, response, took));
    }

    /// Stops the shadow modules and writes the decision records that are still queued.
    pub fn close(&self) {
        self.shadows.close();
        self.records.iter().for_each(|records| records.close());
    }
}
