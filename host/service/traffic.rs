//! Traffic that nodes report: stored exactly once, and compared with the month's bandwidth.

use culvert_domain::error::Result;
use culvert_domain::session::EndReason;
use culvert_domain::usage::next_month;
use culvert_wire::node::TrafficBatch;
use uuid::Uuid;

use super::{Service, sessions};
use crate::gate;
use culvert_store::Write;

impl Service {
    /// Adds a batch to the counters of its scope. If the scope has used up its month's bandwidth, its sessions
    /// end. Where other policies decide meanwhile, the next batch is compared.
    pub(crate) async fn store_traffic(&self, node_id: Uuid, batch: &TrafficBatch) -> Result<()> {
        let scope_id = batch.scope_id;
        let Some(scope) = self.store.scope(scope_id).await? else { return Ok(()) };
        let policies = self.policies_now();
        let limit = gate::entitlement(&policies, &scope.plan).await?.bandwidth_limit_bytes;
        let generation = policies.generation();
        let stored = batch.clone();
        // Waiting for a scope must not occupy a database connection.
        let _turn = self.locks.scopes.lock(scope_id).await;
        let is_new = self.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                let is_new = write.apply_traffic(node_id, &stored).await?;
                if let Some(limit) = limit
                    && write.active_policy_number().await? == generation
                {
                    suspend_if_used_up(write, scope_id, limit).await?;
                }
                Ok(is_new)
            })
        });
        if is_new.await? {
            self.nodes.count(batch);
        }
        Ok(())
    }
}

async fn suspend_if_used_up(write: &mut Write, scope_id: Uuid, limit: u64) -> Result<()> {
    let used = write.scope_bandwidth(scope_id).await?.month.total();
    if used >= limit {
        let until = next_month(write.now);
        write.suspend_scope(scope_id, until).await?;
        sessions::end_of_scope(write, scope_id, EndReason::LimitReached).await?;
    }
    Ok(())
}
