//! One request of somebody who is signed in.

use std::sync::Arc;

use culvert_api_types::read::{Body, NoBody, read};
use culvert_domain::action::Action;
use culvert_domain::caller::{Caller, Scope, ScopeKind};
use culvert_domain::error::{Error, Result};
use culvert_domain::facts::Resource;
use culvert_domain::page::{CursorPosition, Page};
use culvert_domain::sign_in::SignIn;
use culvert_service::Service;
use culvert_service::call::Answered;
use culvert_service::commit::{Admitted, Change};
use culvert_service::cursors::ListId;
use culvert_service::forms::FormId;
use culvert_service::gate::{PinnedPolicies, Preview, RequestDraft};
use culvert_service::idempotency::{IdempotencyKey, StoredResponse};
use culvert_service::sign_ins::Client;
use serde_json::Value;
use uuid::Uuid;

use crate::form::Form;
use crate::{Dashboard, ROOT};

/// Rows of a list.
const ROWS: u32 = 25;

pub(crate) struct Visit {
    pub dashboard: Arc<Dashboard>,
    pub policies: PinnedPolicies,
    pub sign_in: SignIn,
    /// The person, in the scope that the path names; in its own where it names none.
    pub caller: Caller,
    pub teams: Vec<Scope>,
    /// The whole path.
    pub path: String,
    pub ids: Vec<Uuid>,
    pub list: Listed,
    pub client: Client,
    /// Whether the page is shown anew when its scope changes: not what a form has led to.
    pub is_live: bool,
    /// What was posted and not carried out.
    pub refused: Option<Refused>,
    /// What was posted before somebody proved who they are, and is to be sent again.
    pub held: Option<Form>,
}

/// What is asked of the list that the page shows.
#[derive(Clone)]
pub(crate) struct Listed {
    /// Where it goes on.
    pub after: Option<String>,
    /// What it is searched for.
    pub find: Option<String>,
}

/// A form that was not carried out, and why.
pub(crate) struct Refused {
    /// Where it was sent.
    pub path: String,
    pub form: Form,
    pub error: Error,
}

/// A form that is to be carried out.
pub(crate) struct Posted {
    pub form: Form,
    pub key: IdempotencyKey,
}

impl Visit {
    pub(crate) fn service(&self) -> &Service {
        &self.dashboard.service
    }

    /// The first id in the path.
    pub(crate) fn id(&self) -> Result<Uuid> {
        self.ids.first().copied().ok_or_else(Error::not_found)
    }

    /// A path below the scope of this page.
    pub(crate) fn in_scope(&self, rest: &str) -> String {
        let scope = match self.caller.scope.kind {
            ScopeKind::Personal => "me".to_owned(),
            ScopeKind::Team => self.caller.scope.id.to_string(),
        };
        format!("{ROOT}/{scope}{rest}")
    }

    /// The path of a page, by its pattern, with the scope and the ids of this one.
    pub(crate) fn path_of(&self, pattern: &str) -> String {
        let mut ids = self.ids.iter();
        let parts = pattern.split('/').map(|part| match part {
            "{s}" => self.in_scope("").rsplit('/').next().unwrap_or_default().to_owned(),
            "{id}" => ids.next().map(Uuid::to_string).unwrap_or_default(),
            other => other.to_owned(),
        });
        format!("{ROOT}/{}", parts.collect::<Vec<_>>().join("/"))
    }

    /// A key for a form that leads to a path.
    pub(crate) fn form_key(&self, path: &str) -> String {
        self.service().form_key(FormId { sign_in: self.sign_in.id, path })
    }

    pub(crate) fn is_elevated(&self) -> bool {
        self.sign_in.is_elevated(self.service().clock().now())
    }

    /// Carries out a change that takes nothing else.
    pub(crate) async fn change<C: Change>(
        &self,
        posted: &Posted,
        action: Action,
        subject: Resource,
        change: impl Fn(()) -> C + Send + Sync,
    ) -> Result<()> {
        self.change_with(posted, action, subject, read::<NoBody>(None), change).await
    }

    /// Carries out a change.
    pub(crate) async fn change_with<D: RequestDraft, C: Change>(
        &self,
        posted: &Posted,
        action: Action,
        subject: Resource,
        body: Body<D>,
        change: impl Fn(D::Valid) -> C + Send + Sync,
    ) -> Result<()> {
        self.make(posted, action, subject, body, change, |_| Value::Null).await.map(drop)
    }

    /// Decides on a change and carries it out, once for a form. What `answer` makes of it is stored and is the same for each
    /// repetition.
    pub(crate) async fn make<D: RequestDraft, C: Change>(
        &self,
        posted: &Posted,
        action: Action,
        subject: Resource,
        body: Body<D>,
        change: impl Fn(D::Valid) -> C + Send + Sync,
        answer: impl Fn(C::Done) -> Value + Clone + Send + Sync + 'static,
    ) -> Result<Value> {
        let run = async {
            let admitted = self.admit(action, subject, body).await?;
            self.commit(posted, admitted, change, answer).await
        };
        self.carry_out(posted, run).await
    }

    /// Asks what the person may do to a resource, for buttons that say so beforehand.
    pub(crate) async fn preview(&self, subject: Resource, actions: &[Action]) -> Result<Preview> {
        self.service().preview(&self.policies, &self.caller, subject, actions).await
    }

    /// Decides on a change.
    pub(crate) async fn admit<D: RequestDraft>(
        &self,
        action: Action,
        subject: Resource,
        body: Body<D>,
    ) -> Result<Admitted<D>> {
        self.service().admit(&self.policies, &self.caller, action, subject, body).await
    }

    /// Commits what was decided on.
    pub(crate) async fn commit<D: RequestDraft, C: Change>(
        &self,
        posted: &Posted,
        admitted: Admitted<D>,
        change: impl Fn(D::Valid) -> C + Send + Sync,
        answer: impl Fn(C::Done) -> Value + Clone + Send + Sync + 'static,
    ) -> Result<Answered> {
        let render = move |done| {
            let body = serde_json::to_vec(&answer(done)).map_err(Error::internal)?;
            Ok(StoredResponse { status: 200, body })
        };
        self.service().commit(&self.policies, admitted, Some(&posted.key), change, render).await
    }

    /// Runs what a form asks for once; a repetition gets the first answer.
    pub(crate) async fn carry_out(
        &self,
        posted: &Posted,
        run: impl Future<Output = Result<Answered>>,
    ) -> Result<Value> {
        let (Answered::Fresh(answer) | Answered::Replayed(answer)) =
            self.service().carry_out(Some(&posted.key), run).await?;
        serde_json::from_slice(&answer.body).map_err(Error::internal)
    }

    /// The page of the list that was asked for. A cursor that is none begins anew.
    pub(crate) fn page(&self) -> Page {
        let open = |cursor: &String| self.service().open_cursor(self.list_id(), cursor);
        Page { limit: ROWS, after: self.list.after.as_ref().and_then(open).unwrap_or(CursorPosition::START) }
    }

    /// The address of the next page of the list.
    pub(crate) fn next(&self, next: Option<CursorPosition>) -> Option<String> {
        next.map(|position| format!("{}?after={}", self.path, self.service().cursor(self.list_id(), position)))
    }

    /// What the list is searched for; empty if it is shown whole.
    pub(crate) fn sought(&self) -> &str {
        self.list.find.as_deref().unwrap_or_default().trim()
    }

    fn list_id(&self) -> ListId<'_> {
        ListId { scope_id: self.caller.scope.id, path: &self.path }
    }

    /// What was typed into a field of a form that is shown again.
    pub(crate) fn typed(&self, name: &str) -> Option<&str> {
        self.refused.as_ref().map(|refused| &refused.form).or(self.held.as_ref())?.find(name)
    }

    /// What is wrong with a field.
    pub(crate) fn fault(&self, name: &str) -> Option<&str> {
        self.refused.as_ref()?.error.fault(name)
    }
}
