//! The order of a request: host name, origin, sign-in, limits, route, scope, form and its key.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use culvert_domain::caller::{Caller, Credential};
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_domain::refusal::RefusedRequest;
use culvert_domain::sign_in::{RequireSecondFactor, SignIn};
use culvert_service::forms::FormId;
use culvert_service::gate::PinnedPolicies;
use culvert_service::idempotency::IdempotencyKey;
use culvert_service::scope_changes::INSTALLATION;
use culvert_service::sign_ins::Client;
use culvert_wire::client_network::client_address;
use maud::Markup;
use salvo::http::header::{HeaderValue, USER_AGENT};
use salvo::http::{Method, StatusCode};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};
use uuid::Uuid;

use crate::actions::{self, Act};
use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::held_form::HeldForm;
use crate::path::{self, LIVE, Named, OPERATOR_LIVE};
use crate::view::notice;
use crate::visit::{Listed, Posted, Refused, Visit};
use crate::{Dashboard, ROOT, Site, cookie, entrance, live, pages, sign_in};

pub(crate) struct Pages(pub Arc<Dashboard>);

#[async_trait]
impl Handler for Pages {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let dashboard = &self.0;
        let asker = Mutex::new(None);
        let answer = match answer(dashboard, req, depot, &asker).await {
            Ok(answer) => answer,
            Err(error) => {
                let id = request_id(depot);
                note(dashboard, req, who(&asker), id, &error);
                problem(dashboard, &error, id)
            }
        };
        answer.write(res, dashboard.site.is_https);
    }
}

/// Who has asked, in which scope, as far as that is known.
#[derive(Clone, Copy)]
struct Asker {
    scope_id: Uuid,
    account_id: Uuid,
    sign_in: Uuid,
}

/// What of the path is below `/dashboard`, as the tables of pages and forms have it.
fn below(path: &str) -> &str {
    path.strip_prefix(ROOT).unwrap_or_default().trim_start_matches('/')
}

fn who(asker: &Mutex<Option<Asker>>) -> Option<Asker> {
    *asker.lock().unwrap_or_else(PoisonError::into_inner)
}

fn request_id(depot: &Depot) -> Option<Uuid> {
    depot.get_typed::<PinnedPolicies>().ok().and_then(PinnedPolicies::request_id)
}

/// Has people be able to look up why somebody was refused, as far as it is known who has asked.
fn note(dashboard: &Dashboard, req: &Request, asker: Option<Asker>, request_id: Option<Uuid>, error: &Error) {
    let (Some(asker), Some(request_id)) = (asker, request_id) else { return };
    // The script of an open page is no person who wants to know: and pages look again when a refusal is noted.
    if is_by_person(req, *req.method() != Method::POST) {
        note_of(dashboard, asker, request_id, (req.method().as_str(), req.uri().path()), error);
    }
}

fn note_of(dashboard: &Dashboard, asker: Asker, request_id: Uuid, (method, path): (&str, &str), error: &Error) {
    let Asker { scope_id, account_id, sign_in } = asker;
    let status = (dashboard.status_of)(&error.code).as_u16();
    let is_routed = pages::find(below(path)).is_some() || actions::find(below(path)).is_some();
    let credential = &Credential::SignIn(sign_in);
    let refused = RefusedRequest { request_id, scope_id, account_id, credential, method, path, status, is_routed };
    dashboard.refusals.note(&dashboard.service, &refused, error);
}

/// A page that says what went wrong.
fn problem(dashboard: &Dashboard, error: &Error, request_id: Option<Uuid>) -> Answer {
    if error.source.is_some() {
        tracing::error!(error = %Chain(error), "a page could not be shown");
    }
    Answer::page((dashboard.status_of)(&error.code), notice::whole(error, &dashboard.docs_url, request_id))
        .retry_after(error.retry_after)
}

/// What is answered whoever asks: another host name, the network in the clear, another method, another site.
fn before_sign_in(dashboard: &Dashboard, req: &Request, reads: bool) -> Result<Option<Answer>> {
    let site = &dashboard.site;
    if !site.is_named_by(req) {
        return Ok(Some(if reads && Site::is_asked_by_address(req) && site.is_loopback {
            Answer::see_other(&format!("{}{}", site.origin, req.uri().path()))
        } else {
            Answer::page(StatusCode::MISDIRECTED_REQUEST, notice::other_host(site))
        }));
    }
    if !site.is_private() {
        return Ok(Some(Answer::page(StatusCode::FORBIDDEN, notice::needs_https(site))));
    }
    if !reads && *req.method() != Method::POST {
        let refused = problem(dashboard, &Error::of(Code::MethodNotAllowed), None);
        return Ok(Some(refused.allowing("GET, HEAD, POST")));
    }
    if !reads {
        site.check(req)?;
    }
    Ok(None)
}

async fn answer(
    dashboard: &Arc<Dashboard>,
    req: &mut Request,
    depot: &Depot,
    asker: &Mutex<Option<Asker>>,
) -> Result<Answer> {
    let path = req.uri().path().to_owned();
    let reads = matches!(*req.method(), Method::GET | Method::HEAD);
    if let Some(answer) = before_sign_in(dashboard, req, reads)? {
        return Ok(answer);
    }
    let client = client(dashboard, req);
    let below = below(&path).to_owned();
    let known = known(dashboard, req, &client, reads).await?;
    if let Some(answer) = entrance::answer(dashboard, req, &below, known.as_ref(), &client).await? {
        return Ok(answer);
    }
    let Some(sign_in) = known else { return sign_in_first(dashboard, req, &below, reads) };
    let asks_in = |scope_id| {
        let known = Asker { scope_id, account_id: sign_in.account_id, sign_in: sign_in.id };
        *asker.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
    };
    asks_in(sign_in.account_id);
    dashboard.sign_ins.count(&sign_in, !reads)?;
    if below.is_empty() {
        return Ok(Answer::see_other(&format!("{ROOT}/me")));
    }
    if reads && let Some(scope_id) = streamed(dashboard, &sign_in, &below).await? {
        return Ok(Answer::events(live::events(dashboard, sign_in, scope_id)?));
    }
    let policies = depot.get_typed::<PinnedPolicies>().map_err(|_| Error::internal("a request without policies"))?;
    let list = Listed { after: req.query("after"), find: req.query("find") };
    let visit = async |named: Named| {
        let (policies, sign_in, client) = (policies.clone(), sign_in.clone(), client.clone());
        let visit = visited(dashboard, policies, sign_in, (path.clone(), named), (list.clone(), client, reads)).await?;
        asks_in(visit.caller.scope.id);
        Ok::<_, Error>(visit)
    };
    if lacks_second_factor(dashboard, &sign_in, &below) {
        return Err(Error::of(Code::SecondFactorRequired));
    }
    if reads {
        if let Some((page, named)) = pages::find(&below) {
            return Ok(Answer::page(StatusCode::OK, (page.view)(&visit(named).await?).await?));
        }
        // After a refusal the address bar has the path of a form.
        let (act, named) = actions::find(&below).ok_or_else(Error::not_found)?;
        return Ok(Answer::see_other(&visit(named).await?.path_of(act.page)));
    }
    let Some((act, named)) = actions::find(&below) else {
        let is_page = pages::find(&below).is_some();
        let refused = if is_page { Error::of(Code::MethodNotAllowed) } else { Error::not_found() };
        note(dashboard, req, who(asker), request_id(depot), &refused);
        return Ok(problem(dashboard, &refused, request_id(depot)).allowing("GET, HEAD"));
    };
    let visit = visit(named).await?;
    let form = Form::read(req).await?;
    post(visit, act, form).await
}

/// What a page or a form is given, of somebody who may see its scope.
async fn visited(
    dashboard: &Arc<Dashboard>,
    policies: PinnedPolicies,
    sign_in: SignIn,
    (path, named): (String, Named),
    (list, client, is_live): (Listed, Client, bool),
) -> Result<Visit> {
    let caller = caller(dashboard, &sign_in, named.scope.as_deref()).await?;
    let teams = dashboard.service.teams_of(&sign_in).await?;
    Ok(Visit {
        dashboard: dashboard.clone(),
        policies,
        sign_in,
        caller,
        teams,
        path,
        ids: named.ids,
        list,
        client,
        is_live,
        refused: None,
        held: None,
    })
}

/// The sign-in whose cookie a request has.
async fn known(dashboard: &Dashboard, req: &Request, client: &Client, reads: bool) -> Result<Option<SignIn>> {
    let Some(value) = cookie::value(req, &dashboard.site) else { return Ok(None) };
    dashboard.sign_ins.find(&dashboard.service, &value, client.address, is_by_person(req, reads)).await
}

/// Whether a person has asked for it, and not the script of an open page: that one does not keep a sign-in from ending.
fn is_by_person(req: &Request, reads: bool) -> bool {
    !reads || req.headers().get("sec-fetch-dest").is_none_or(|destination| destination != "empty")
}

/// Whether a path is for those alone who have a second factor, which somebody has not. The account's own page is where it is
/// set up.
fn lacks_second_factor(dashboard: &Dashboard, sign_in: &SignIn, below: &str) -> bool {
    let is_asked = match dashboard.require_second_factor {
        RequireSecondFactor::Never => false,
        RequireSecondFactor::Operators => sign_in.is_operator && below.starts_with("operator/"),
        RequireSecondFactor::All => !below.starts_with("account"),
    };
    is_asked && !sign_in.has_two_factors()
}

/// Leads to the sign-in, and from there to the page that was asked for.
fn sign_in_first(dashboard: &Dashboard, req: &Request, below: &str, reads: bool) -> Result<Answer> {
    if !reads {
        return Ok(problem(dashboard, &Error::of(Code::SignInRequired), None));
    }
    let next = if pages::find(below).is_some() { req.uri().path() } else { "" };
    Ok(Answer::see_other(&sign_in::address(next)))
}

/// The scope of whose changes a path tells; `None` if it is the path of something else.
async fn streamed(dashboard: &Dashboard, sign_in: &SignIn, below: &str) -> Result<Option<Uuid>> {
    if below == OPERATOR_LIVE && sign_in.is_operator {
        return Ok(Some(INSTALLATION));
    }
    let Some(named) = path::matches(LIVE, below) else { return Ok(None) };
    Ok(Some(caller(dashboard, sign_in, named.scope.as_deref()).await?.scope.id))
}

async fn caller(dashboard: &Dashboard, sign_in: &SignIn, scope: Option<&str>) -> Result<Caller> {
    let scope_id = match scope {
        None | Some("me") => sign_in.account_id,
        Some(id) => Uuid::parse_str(id).map_err(|_| Error::not_found())?,
    };
    dashboard.service.caller_of_sign_in(sign_in, scope_id).await
}

/// Carries a form out; where that is refused, shows its page again with what was typed and why.
async fn post(mut visit: Visit, act: &Act, form: Form) -> Result<Answer> {
    let done = match key(&visit, &form) {
        Ok(key) if visit.is_elevated() || !act.needs_elevation => {
            (act.run)(&visit, Posted { form: form.clone(), key }).await
        }
        Ok(_) => Err(Error::of(Code::ElevationRequired)),
        Err(error) => Err(error),
    };
    let error = match done {
        Ok(answer) => return Ok(shown_again(visit, &form, answer).await),
        Err(error) if error.source.is_some() => return Err(error),
        Err(error) if matches!(error.code, Code::NotFound | Code::SignInRequired) => return Err(error),
        Err(error) => error,
    };
    let (status, wait) = ((visit.dashboard.status_of)(&error.code), error.retry_after);
    if let Some(request_id) = visit.policies.request_id() {
        let (scope_id, account_id, sign_in) = (visit.caller.scope.id, visit.caller.account_id, visit.sign_in.id);
        let asker = Asker { scope_id, account_id, sign_in };
        note_of(&visit.dashboard, asker, request_id, ("POST", &visit.path), &error);
    }
    let path = visit.path.clone();
    visit.path = visit.path_of(act.page);
    visit.refused = Some(Refused { path, form: form.without_secrets(), error });
    let page = pages::by_pattern(act.page).ok_or_else(Error::not_found)?;
    Ok(Answer::page(status, (page.view)(&visit).await?).retry_after(wait))
}

/// Shows the form that came along, in the place of the answer to who has proved who they are. The answer itself if none did, or if the
/// page is not theirs any more: it has the sign-in's new value.
async fn shown_again(visit: Visit, form: &Form, answer: Answer) -> Answer {
    match HeldForm::of(&visit, form) {
        Some(held) => match page_with(visit, held).await {
            Ok(page) => answer.showing(page),
            Err(_) => answer,
        },
        None => answer,
    }
}

async fn page_with(mut visit: Visit, HeldForm { path, form }: HeldForm) -> Result<Markup> {
    let (act, named) = actions::find(below(&path)).ok_or_else(Error::not_found)?;
    let present = visit.dashboard.sign_ins.present(visit.service(), &visit.sign_in).await?;
    visit.sign_in = present.ok_or_else(Error::not_found)?;
    visit.caller = caller(&visit.dashboard, &visit.sign_in, named.scope.as_deref()).await?;
    (visit.ids, visit.path, visit.held) = (named.ids, path, Some(form));
    visit.path = visit.path_of(act.page);
    let page = pages::by_pattern(act.page).ok_or_else(Error::not_found)?;
    (page.view)(&visit).await
}

/// The form's key, which is good for one sign-in and one path.
fn key(visit: &Visit, form: &Form) -> Result<IdempotencyKey> {
    let id = FormId { sign_in: visit.sign_in.id, path: &visit.path };
    let key = visit.service().open_form_key(id, form.get(KEY)).ok_or_else(|| Error::of(Code::FormExpired))?;
    let request = format!("POST\n{}\n\n{}", visit.path, form.tree().canonical()).into_bytes();
    Ok(IdempotencyKey { credential_id: visit.sign_in.id, key: key.to_string(), request })
}

fn client(dashboard: &Dashboard, req: &Request) -> Client {
    let forwarded = req.headers().get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes);
    let peer: Option<IpAddr> = req.remote_addr().ip();
    let address = peer.map(|peer| client_address(peer, forwarded, &dashboard.trusted_proxies));
    let agent = req.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default().to_owned();
    Client { address, agent }
}
