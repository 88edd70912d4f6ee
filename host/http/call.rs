//! One request on its way through a handler.

use std::sync::Arc;

use uuid::Uuid;

use super::page::ListQuery;
use super::reply::{HandlerResult, List, Reply, ResponseShape};
use crate::gate::{Body, Permit, RequestDraft};
use crate::http::Api;
use crate::service::commit::{self, Change, Committed};
use crate::service::idempotency::IdempotencyKey;
use culvert_domain::action::Action;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::plan::Entitlement;
use culvert_policy::serve::pinned::Pinned;
use culvert_store::facts::Resource;
use culvert_store::page::{CursorPosition, Page, PageRows};

/// How often a decision is made anew because what it was made on has changed.
const DECISIONS: usize = 3;

pub struct Call {
    pub api: Arc<Api>,
    pub policies: Pinned,
    pub caller: Caller,
    pub action: Action,
    pub entitlement: Entitlement,
    pub request_id: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    /// The ids in the path, in their order.
    pub ids: Vec<String>,
    pub claim: Option<IdempotencyKey>,
}

/// A request that may be carried out, and what it would take to decide on it again.
pub struct Admitted<D: RequestDraft> {
    permit: Permit,
    /// The body, as it was found to be valid.
    pub valid: D::Valid,
    body: Body<D>,
}

impl Call {
    /// The first id in the path.
    pub fn id(&self) -> Result<Uuid> {
        self.id_at(0)
    }

    /// One of the ids in the path. What is no UUID is the id of nothing.
    pub fn id_at(&self, place: usize) -> Result<Uuid> {
        let id = self.ids.get(place).filter(|id| id.len() == 36).and_then(|id| Uuid::parse_str(id).ok());
        id.ok_or_else(Error::not_found)
    }

    pub fn page(&self) -> Result<Page> {
        self.list().page(&self.query, &self.api.service.secrets)
    }

    pub fn listed<T, R>(&self, rows: PageRows<T>, out: impl Fn(T) -> R) -> HandlerResult<List<R>>
    where
        List<R>: ResponseShape,
    {
        let cursor = |place: CursorPosition| self.list().cursor(place, &self.api.service.secrets);
        let next = rows.next.map(cursor);
        self.reply(List::new(rows.rows.into_iter().map(out).collect(), next))
    }

    fn list(&self) -> ListQuery<'_> {
        ListQuery { caller: &self.caller, path: &self.path }
    }

    pub fn reply<S: ResponseShape>(&self, answer: S) -> HandlerResult<S> {
        answer.render(&self.request_id).map(Reply::fresh)
    }

    /// Decides on a request that changes something: steps 9 to 12 of
    /// `docs/develop/decisions/0001-order-of-checks.md`.
    pub async fn admit<D: RequestDraft>(&self, subject: Resource, body: Body<D>) -> Result<Admitted<D>> {
        let (permit, valid) =
            self.api.service.gate.admit(&self.policies, &self.caller, self.action, subject, body.clone()).await?;
        Ok(Admitted { permit, valid, body })
    }

    /// Carries out what was admitted: the change that `change` makes of it, anew for every decision.
    /// Requests of one scope take turns here, so that a decision that has to be made again is not
    /// overtaken a second time.
    pub async fn commit<D, C, S>(
        self,
        admitted: Admitted<D>,
        change: impl Fn(D::Valid) -> C,
        answer: impl Fn(C::Done) -> S + Clone + Send + Sync + 'static,
    ) -> HandlerResult<S>
    where
        D: RequestDraft,
        C: Change,
        S: ResponseShape,
    {
        let Admitted { mut permit, mut valid, body } = admitted;
        let turn = self.api.service.scope_locks.lock(self.caller.scope.id).await;
        for _ in 0..DECISIONS {
            let (answer, request_id) = (answer.clone(), self.request_id.clone());
            let render = move |done| answer(done).render(&request_id);
            let (shared, change) = (Arc::new(permit), Arc::new(change(valid)));
            match commit::commit(
                &self.api.service.store,
                &self.api.service.secrets,
                shared.clone(),
                change,
                self.claim.clone(),
                render,
            )
            .await?
            {
                Committed::Fresh(kept, nodes) => {
                    drop(turn);
                    self.api.service.nodes.wait_until_applied(nodes).await;
                    return Ok(Reply::fresh(kept));
                }
                Committed::Replayed(kept) => return Ok(Reply::replayed(kept)),
                Committed::Stale => {
                    (permit, valid) = self.api.service.gate.readmit(&self.policies, &shared, body.clone()).await?;
                }
            }
        }
        Err(Error::new(Code::ServiceUnavailable, "Too much changed at once; try again.")
            .after(std::time::Duration::from_secs(1)))
    }
}
