//! The one way to write on behalf of a caller: a permit, a change, one transaction.

use std::sync::Arc;

use super::idempotency::{IdempotencyKey, StoredResponse};
use super::{Store, Write};
use crate::gate::Permit;
use culvert_domain::error::Result;

/// What a request does to the store, once it is permitted.
pub trait Change: Send + Sync + 'static {
    /// What there is to tell of it.
    type Done: Send;

    /// Runs inside the transaction, with the scope locked. It may run again in another transaction,
    /// when the decision that permitted it had to be made again.
    fn apply(&self, write: &mut Write, permit: &Permit) -> impl Future<Output = Result<Self::Done>> + Send;
}

/// How a transaction ended.
#[derive(Debug)]
pub enum Committed {
    Fresh(StoredResponse),
    /// The key stood for this answer already; nothing was done.
    Replayed(StoredResponse),
    /// What the permit was decided on has changed; nothing was done.
    Stale,
}

impl Store {
    /// Carries out a permitted change. The answer is made inside the transaction, and stored in it
    /// where the request is to have one effect only.
    pub async fn commit<C: Change>(
        &self,
        permit: Arc<Permit>,
        change: Arc<C>,
        claim: Option<IdempotencyKey>,
        answer: impl Fn(C::Done) -> Result<StoredResponse> + Send + Sync + 'static,
    ) -> Result<Committed> {
        let secrets = self.secrets.clone();
        let scope_id = permit.caller().scope.id;
        self.write(Some(scope_id), move |write| {
            Box::pin(async move {
                if let Some(claim) = &claim
                    && let Some(kept) = write.find_response(claim, &secrets).await?
                {
                    return Ok(Committed::Replayed(kept));
                }
                if write.decision_inputs(permit.caller(), permit.subject()).await? != *permit.decision_inputs() {
                    return Ok(Committed::Stale);
                }
                let done = change.apply(write, &permit).await?;
                let kept = answer(done)?;
                if let Some(claim) = &claim {
                    write.store_response(claim, &secrets, &kept).await?;
                }
                Ok(Committed::Fresh(kept))
            })
        })
        .await
    }
}
