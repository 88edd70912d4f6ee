//! One request on its way through a handler.

use std::sync::Arc;

use culvert_api_types::read::Body;
use culvert_domain::action::Action;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Error, Result};
use culvert_domain::facts::Resource;
use culvert_domain::page::{Page, PageRows};
use culvert_domain::plan::Entitlement;
use culvert_service::Service;
use culvert_service::call::Answered;
use culvert_service::commit::{Admitted, Change};
use culvert_service::cursors::ListId;
use culvert_service::gate::{PinnedPolicies, RequestDraft};
use culvert_service::idempotency::IdempotencyKey;
use uuid::Uuid;

use super::page;
use super::reply::{HandlerResult, List, Reply, ResponseShape};
use crate::Api;

pub struct Call {
    pub api: Arc<Api>,
    pub policies: PinnedPolicies,
    pub caller: Caller,
    pub action: Action,
    pub entitlement: Entitlement,
    pub request_id: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    /// The ids in the path, in their order.
    pub ids: Vec<String>,
    pub idempotency_key: Option<IdempotencyKey>,
}

impl Call {
    pub fn service(&self) -> &Service {
        &self.api.service
    }

    /// The first id in the path.
    pub fn id(&self) -> Result<Uuid> {
        self.id_at(0)
    }

    /// One of the ids in the path. What is no UUID is the id of nothing.
    pub fn id_at(&self, place: usize) -> Result<Uuid> {
        let id = self.ids.get(place).filter(|id| id.len() == 36).and_then(|id| Uuid::parse_str(id).ok());
        id.ok_or_else(Error::not_found)
    }

    /// The page that the query asks for.
    pub fn page(&self) -> Result<Page> {
        page::read(&self.query, |cursor| self.service().open_cursor(self.list(), cursor))
    }

    pub fn listed<T, R>(&self, rows: PageRows<T>, out: impl Fn(T) -> R) -> HandlerResult<List<R>>
    where
        List<R>: ResponseShape,
    {
        let next = rows.next.map(|position| self.service().cursor(self.list(), position));
        self.reply(List::new(rows.rows.into_iter().map(out).collect(), next))
    }

    fn list(&self) -> ListId<'_> {
        ListId { scope_id: self.caller.scope.id, path: &self.path }
    }

    pub fn reply<S: ResponseShape>(&self, answer: S) -> HandlerResult<S> {
        Ok(Reply::new(Answered::Fresh(answer.render(&self.request_id)?)))
    }

    /// Decides on a request that changes something.
    pub async fn admit<D: RequestDraft>(&self, subject: Resource, body: Body<D>) -> Result<Admitted<D>> {
        self.service().admit(&self.policies, &self.caller, self.action, subject, body).await
    }

    /// Carries out what was admitted. `change` turns the valid body into the change, and `answer` the result of the
    /// change into the answer.
    pub async fn commit<D, C, S>(
        self,
        admitted: Admitted<D>,
        change: impl Fn(D::Valid) -> C + Send + Sync,
        answer: impl Fn(C::Done) -> S + Clone + Send + Sync + 'static,
    ) -> HandlerResult<S>
    where
        D: RequestDraft,
        C: Change,
        S: ResponseShape,
    {
        let request_id = self.request_id.clone();
        let render = move |done| answer(done).render(&request_id);
        let key = self.idempotency_key.as_ref();
        Ok(Reply::new(self.service().commit(&self.policies, admitted, key, change, render).await?))
    }
}
