//! The only way to write on behalf of a caller: a permit, a change and one transaction.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use culvert_api_types::read::Body;
use culvert_domain::action::Action;
use culvert_domain::audit_log::NewEntry;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_domain::facts::Resource;
use culvert_store::Write;
use culvert_store::facts::CurrentInputs;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde_json::Value;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::Service;
use crate::call::Answered;
use crate::gate::{Permit, PinnedPolicies, RequestDraft};
use crate::idempotency::{self, IdempotencyKey, StoredResponse};

/// How often a decision is made because its inputs have changed.
pub(crate) const DECISIONS: usize = 3;
/// How long a decision may take for which others wait that change the scope.
const DECIDES_WITHIN: Duration = Duration::from_millis(250);

/// How long a request waits until it may decide so.
const PLACE_WITHIN: Duration = Duration::from_secs(1);

fn busy() -> Error {
    Error::new(Code::ServiceUnavailable, "Too much changed at once; try again.").after(Duration::from_secs(1))
}

/// What a permitted request changes in the store.
pub trait Change: Send + Sync + 'static {
    /// The result, from which the response is made.
    type Done: Send;

    /// Applies the change inside the transaction, under the scope's row lock. It may run again in another
    /// transaction if the decision that permitted it had to be repeated.
    fn apply(&self, write: &mut Write, permit: &Permit) -> impl Future<Output = Result<Self::Done>> + Send;

    /// The id of what was made or changed, for the audit log, where the request does not name it.
    fn subject(&self, done: &Self::Done) -> Option<Uuid> {
        let _ = done;
        None
    }

    /// What was asked for, for the audit log, where that is not the body of a request. It holds no secrets.
    fn details(&self, done: &Self::Done) -> Value {
        let _ = done;
        Value::Null
    }
}

/// A request that may be carried out, and what it would take to decide on it again.
pub struct Admitted<D: RequestDraft> {
    permit: Permit,
    /// The body, as it was found to be valid.
    pub valid: D::Valid,
    body: Body<D>,
}

/// Applies a change, and makes the response. It has no type of its own, so that the transaction is compiled once.
type Apply = Box<dyn for<'w> FnOnce(&'w mut Write, &'w Permit) -> BoxFuture<'w, Result<StoredResponse>> + Send>;

/// What is written, and why it may be.
struct Decided {
    permit: Arc<Permit>,
    apply: Apply,
}

/// What is written, once the scope's row is locked.
type Decision = BoxFuture<'static, Option<Decided>>;

/// What a transaction has written.
struct Committed {
    answered: Answered,
    nodes: BTreeSet<Uuid>,
    /// Nodes that have to confirm that they serve something no longer.
    former_nodes: BTreeSet<Uuid>,
}

impl Permit {
    /// The entry of the audit log for a change that it permits.
    fn audited<C: Change>(&self, change: &C, done: &C::Done, recorded: String) -> NewEntry {
        let entry = NewEntry::new(self.caller().scope.id, self.actor().clone(), self.action());
        let subject_id = change.subject(done).or(self.subject().id());
        let details = match change.details(done) {
            Value::Null => recorded,
            details => details.to_string(),
        };
        NewEntry { subject_id, details, ..entry }
    }
}

impl Service {
    /// Decides on a request that changes something: steps 9 to 12 of
    /// `docs/develop/decisions/0001-order-of-checks.md`.
    ///
    /// # Errors
    ///
    /// Why the request is refused.
    pub async fn admit<D: RequestDraft>(
        &self,
        policies: &PinnedPolicies,
        caller: &Caller,
        action: Action,
        subject: Resource,
        body: Body<D>,
    ) -> Result<Admitted<D>> {
        self.policies.check()?;
        let (permit, valid) = self.gate.admit(policies, caller, action, subject, body.clone()).await?;
        Ok(Admitted { permit, valid, body })
    }

    /// Carries out what was admitted. `change` turns the valid body into the change; it is called again for every new
    /// decision. Requests of one scope take turns here, so that a decision that has to be made again is not overtaken
    /// a second time.
    ///
    /// # Errors
    ///
    /// Why the change is refused, or that the scope changes too often. Nothing was changed then.
    pub async fn commit<D, C>(
        &self,
        policies: &PinnedPolicies,
        admitted: Admitted<D>,
        key: Option<&IdempotencyKey>,
        change: impl Fn(D::Valid) -> C + Send + Sync,
        render: impl Fn(C::Done) -> Result<StoredResponse> + Clone + Send + Sync + 'static,
    ) -> Result<Answered>
    where
        D: RequestDraft,
        C: Change,
    {
        let Admitted { permit, mut valid, body } = admitted;
        let mut permit = Arc::new(permit);
        let scope_id = permit.caller().scope.id;
        let decided =
            |permit, valid| Decided { permit, apply: apply(change(valid), body.recorded.clone(), render.clone()) };
        let turn = self.locks.scopes.lock(scope_id).await;
        // Other hosts do not take turns with this one.
        let is_shared = self.store.is_on_a_server();
        let unlocked = DECISIONS - usize::from(is_shared);
        for made in 1.. {
            let decision = ready(Some(decided(permit.clone(), valid))).boxed();
            if let Some(committed) = self.attempt(scope_id, key.cloned(), decision).await? {
                drop(turn);
                return Ok(self.applied(committed, key).await);
            }
            if made == unlocked {
                break;
            }
            // Boxed, for it is seldom needed, and every change would have it on the stack.
            Box::pin(self.renew_policies(policies)).await?;
            let (anew, still_valid) = self.gate.readmit(policies, &permit, body.clone()).await?;
            (permit, valid) = (Arc::new(anew), still_valid);
        }
        if !is_shared {
            return Err(busy());
        }
        let decide = async {
            Box::pin(self.renew_policies(policies)).await?;
            let (anew, valid) = self.gate.readmit(policies, &permit, body.clone()).await?;
            Ok(decided(Arc::new(anew), valid))
        };
        let committed = self.attempt_locked(scope_id, key.cloned(), Box::pin(decide)).await?;
        drop(turn);
        Ok(self.applied(committed, key).await)
    }

    /// Waits until the nodes do what was written.
    async fn applied(&self, committed: Committed, key: Option<&IdempotencyKey>) -> Answered {
        let have_applied = self.nodes.wait_until_applied(committed.nodes).await;
        self.nodes.confirm_moves_from(committed.former_nodes).await;
        let Answered::Fresh(response) = committed.answered else { return committed.answered };
        let Some(not_enforced) = not_enforced(&response) else { return Answered::Fresh(response) };
        // A repeated request gets this answer or, where it cannot be stored, both get the one that promises nothing.
        let is_known = have_applied
            && match key {
                Some(key) => Box::pin(self.store_again(key, response.clone())).await,
                None => true,
            };
        Answered::Fresh(if is_known { response } else { not_enforced })
    }

    /// Has a repeated request be answered with this response, and not with the one that was stored. False where it may not.
    async fn store_again(&self, key: &IdempotencyKey, response: StoredResponse) -> bool {
        let (key, secrets) = (key.clone(), self.secrets.clone());
        let stored = self.store.write(None, move |write| {
            Box::pin(async move { idempotency::store(write, &secrets, &key, &response).await })
        });
        let stored = stored.await;
        if let Err(error) = &stored {
            tracing::warn!(error = %Chain(error), "it could not be stored that rules are in force");
        }
        stored.is_ok()
    }

    /// Decides while the scope's row is locked, so that no host can overtake it: the one case in which policies are asked
    /// while a transaction is open.
    async fn attempt_locked(
        &self,
        scope_id: Uuid,
        key: Option<IdempotencyKey>,
        decide: BoxFuture<'_, Result<Decided>>,
    ) -> Result<Committed> {
        // Each has a connection to the database, and takes another one to decide.
        let place = self.clock().timeout(PLACE_WITHIN, self.locks.deciding.acquire()).await;
        let _place = place.map_err(|_| busy())?.map_err(Error::internal)?;
        let ((lock, locked), (tell, told)) = (oneshot::channel(), oneshot::channel());
        let decision = async move {
            let _ = lock.send(());
            told.await.ok()
        };
        let deciding = async {
            if locked.await.is_ok() {
                let decided = self.clock().timeout(DECIDES_WITHIN, decide).await.map_err(|_| busy())?;
                let _ = tell.send(decided?);
            }
            Ok::<_, Error>(())
        };
        let (attempt, deciding) = tokio::join!(self.attempt(scope_id, key, decision.boxed()), deciding);
        deciding?;
        attempt?.ok_or_else(busy)
    }

    /// Applies a permitted change. The response is made inside the transaction. With an idempotency key, it
    /// is also stored in that transaction. `None` if the decision inputs have changed: then nothing was written.
    async fn attempt(
        &self,
        scope_id: Uuid,
        key: Option<IdempotencyKey>,
        decision: Decision,
    ) -> Result<Option<Committed>> {
        let secrets = self.secrets.clone();
        let transaction = self.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                let Some(Decided { permit, apply }) = decision.await else { return Ok(None) };
                let name = key.as_ref().map(|key| key.key.as_str());
                let (caller, subject, wanted) = (permit.caller(), permit.subject(), permit.wanted());
                let CurrentInputs { inputs, answered } = write.decision_inputs(caller, subject, wanted, name).await?;
                // A key belongs to one scope, whose row is locked: another request with it has ended, or comes later.
                if let (Some(key), Some(stored)) = (&key, answered) {
                    let answered = Answered::Replayed(key.open(&stored, &secrets)?);
                    return Ok(Some(Committed { answered, nodes: BTreeSet::new(), former_nodes: BTreeSet::new() }));
                }
                if inputs != *permit.decision_inputs() {
                    return Ok(None);
                }
                let response = apply(write, &permit).await?;
                if let Some(key) = &key {
                    // Whether rules are in force is known later.
                    let stored = not_enforced(&response);
                    idempotency::store(write, &secrets, key, stored.as_ref().unwrap_or(&response)).await?;
                }
                let (nodes, former_nodes) = (write.touched_nodes(), write.former_nodes());
                Ok(Some(Committed { answered: Answered::Fresh(response), nodes, former_nodes }))
            })
        });
        transaction.await
    }
}

/// The same response, in which rules are not in force. None if it does not say that rules are. Nothing is parsed for it: within
/// a text of JSON, the quotation marks would be escaped.
fn not_enforced(response: &StoredResponse) -> Option<StoredResponse> {
    const ENFORCED: &[u8] = br#""enforced":true"#;
    let from = response.body.windows(ENFORCED.len()).position(|window| window == ENFORCED)?;
    let (before, after) = (&response.body[..from], &response.body[from + ENFORCED.len()..]);
    let body = [before, br#""enforced":false"#, after].concat();
    Some(StoredResponse { body, status: response.status })
}

/// `recorded` is what the audit log has of the request's body.
fn apply<C: Change>(
    change: C,
    recorded: String,
    render: impl FnOnce(C::Done) -> Result<StoredResponse> + Send + 'static,
) -> Apply {
    Box::new(move |write, permit| {
        Box::pin(async move {
            let done = change.apply(write, permit).await?;
            write.audit(permit.audited(&change, &done, recorded));
            render(done)
        })
    })
}
