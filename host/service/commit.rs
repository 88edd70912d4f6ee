//! The only way to write on behalf of a caller: a permit, a change and one transaction.

use std::collections::BTreeSet;
use std::sync::Arc;

use uuid::Uuid;

use super::idempotency::{self, IdempotencyKey, StoredResponse};
use crate::gate::Permit;
use crate::secret::Secrets;
use culvert_domain::error::Result;
use culvert_store::{Store, Write};

/// What a permitted request changes in the store.
pub trait Change: Send + Sync + 'static {
    /// The result, from which the response is made.
    type Done: Send;

    /// Applies the change inside the transaction, under the scope's row lock. It may run again in another
    /// transaction if the decision that permitted it had to be repeated.
    fn apply(&self, write: &mut Write, permit: &Permit) -> impl Future<Output = Result<Self::Done>> + Send;
}

/// How a transaction ended.
#[derive(Debug)]
pub enum Committed {
    /// With the nodes whose assignments have changed.
    Fresh(StoredResponse, BTreeSet<Uuid>),
    /// A response was already stored under the idempotency key. Nothing was changed.
    Replayed(StoredResponse),
    /// The decision inputs of the permit have changed. Nothing was written.
    Stale,
}

/// Applies a permitted change. The response is made inside the transaction. With an idempotency key, it
/// is also stored in that transaction.
pub async fn commit<C: Change>(
    store: &Store,
    secrets: &Secrets,
    permit: Arc<Permit>,
    change: Arc<C>,
    claim: Option<IdempotencyKey>,
    answer: impl Fn(C::Done) -> Result<StoredResponse> + Send + Sync + 'static,
) -> Result<Committed> {
    let secrets = secrets.clone();
    let scope_id = permit.caller().scope.id;
    store
        .write(Some(scope_id), move |write| {
            Box::pin(async move {
                if let Some(claim) = &claim
                    && let Some(kept) = idempotency::find_in(write, &secrets, claim).await?
                {
                    return Ok(Committed::Replayed(kept));
                }
                if write.decision_inputs(permit.caller(), permit.subject()).await? != *permit.decision_inputs() {
                    return Ok(Committed::Stale);
                }
                let done = change.apply(write, &permit).await?;
                let kept = answer(done)?;
                if let Some(claim) = &claim {
                    idempotency::store(write, &secrets, claim, &kept).await?;
                }
                Ok(Committed::Fresh(kept, write.touched_nodes()))
            })
        })
        .await
}
