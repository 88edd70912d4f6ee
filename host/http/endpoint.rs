//! What every endpoint does before its handler: scope, entitlement, body, Idempotency-Key, replay
//! (steps 5 to 8 of `docs/develop/decisions/0001-order-of-checks.md`).

use std::sync::Arc;
use std::time::Duration;

use salvo::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use salvo::http::{Mime, ParseError, StatusCode};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::call::Call;
use super::middleware::trace::{RequestId, Route};
use super::path::Path;
use super::problem;
use super::row::{BodyKind, Row};
use crate::Api;
use culvert_api_types::json_tree::JsonTree;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_service::call::Answered;
use culvert_service::gate::{self, PinnedPolicies};
use culvert_service::idempotency::IdempotencyKey;

/// Bytes of a request body.
pub(crate) const BODY_LIMIT: usize = 256 * 1024;
/// For the whole of a body: 256 KiB come over a slow line within it.
const BODY_WITHIN: Duration = Duration::from_mins(1);
const KEY_LIMIT: usize = 128;

#[derive(Clone)]
pub(crate) struct Endpoint {
    pub api: Arc<Api>,
    pub row: Arc<Row>,
}

#[async_trait]
impl Handler for Endpoint {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        depot.insert_typed(Route(self.row.path));
        match self.answer(req, depot).await {
            Ok(answered) => write(res, answered),
            Err(error) => problem::render(res, error, &self.api.docs_url, RequestId::of(depot)),
        }
    }
}

fn write(res: &mut Response, answered: Answered) {
    let (response, is_replay) = match answered {
        Answered::Fresh(response) => (response, false),
        Answered::Replayed(response) => (response, true),
    };
    res.status_code(StatusCode::from_u16(response.status).unwrap_or(StatusCode::OK));
    res.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if is_replay {
        res.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    }
    res.replace_body(response.body.into());
}

impl Endpoint {
    async fn answer(&self, req: &mut Request, depot: &Depot) -> Result<Answered> {
        let Self { api, row } = self;
        let caller = depot.get_typed::<Caller>().map_err(|_| Error::internal("a request without its caller"))?.clone();
        let needed = row.action.permission().ok_or_else(Error::not_found)?;
        if !caller.permissions.contains(needed) {
            let detail = format!("The key lacks the scope {needed}.");
            return Err(Error::new(Code::InsufficientScope, detail));
        }
        let policies =
            depot.get_typed::<PinnedPolicies>().map_err(|_| Error::internal("a request without policies"))?.clone();
        let entitlement = gate::entitlement(&policies, &caller.scope.plan).await?;
        if !entitlement.api_access {
            return Err(Error::new(Code::FeatureNotAvailable, "The plan does not include the API."));
        }
        let body = match row.takes {
            BodyKind::Nothing => None,
            BodyKind::EmptyObject | BodyKind::Object => {
                let read = api.clock.timeout(BODY_WITHIN, read_body(req, row.takes)).await;
                read.map_err(|_| Error::of(Code::RequestTimeout))??
            }
        };
        let path = Path::of(depot);
        let key = if row.idempotent { Some(idempotency_key(req, path, &caller, body.as_ref())?) } else { None };
        let call = Call {
            api: api.clone(),
            policies,
            caller,
            action: row.action,
            entitlement,
            request_id: RequestId::of(depot).into(),
            path: path.into(),
            query: req
                .queries()
                .iter_all()
                .flat_map(|(name, values)| values.iter().map(|v| (name.clone(), v.clone())))
                .collect(),
            ids: req.params().iter().map(|(_, id)| id.clone()).collect(),
            idempotency_key: key.clone(),
        };
        api.service.carry_out(key.as_ref(), (row.run)(call, body)).await
    }
}

/// The body as JSON, `None` where none was sent and none is needed.
async fn read_body(req: &mut Request, takes: BodyKind) -> Result<Option<JsonTree>> {
    let mut encodings = req.headers().get_all(CONTENT_ENCODING).iter();
    if encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        let detail = "A request body is sent as it is: the only content coding is `identity`.";
        return Err(Error::new(Code::UnsupportedContentEncoding, detail));
    }
    let is_json = req.content_type().is_some_and(|mime: Mime| mime.essence_str() == "application/json");
    let too_large = || Error::of(Code::PayloadTooLarge);
    let bytes = match req.payload_with_max_size(BODY_LIMIT).await {
        Ok(bytes) => bytes.clone(),
        Err(ParseError::PayloadTooLarge) => return Err(too_large()),
        Err(error) => return Err(Error::new(Code::InvalidJson, format!("The body could not be read: {error}."))),
    };
    if bytes.is_empty() && takes == BodyKind::EmptyObject {
        return Ok(None);
    }
    if !bytes.is_empty() && !is_json {
        return Err(Error::of(Code::InvalidContentType));
    }
    JsonTree::parse(&bytes).map(Some)
}

/// The request's Idempotency-Key, and what the request is.
fn idempotency_key(req: &Request, path: &str, caller: &Caller, body: Option<&JsonTree>) -> Result<IdempotencyKey> {
    let mut keys = req.headers().get_all("idempotency-key").iter();
    let key = keys.next().ok_or_else(|| Error::of(Code::IdempotencyKeyRequired))?;
    let visible = |key: &&str| (1..=KEY_LIMIT).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    let key = key.to_str().ok().filter(visible).filter(|_| keys.next().is_none());
    let key = key.ok_or_else(|| Error::of(Code::InvalidIdempotencyKey))?;
    let (method, uri) = (req.method(), req.uri());
    let body = body.map_or_else(|| "{}".into(), JsonTree::canonical);
    let request = format!("{method}\n{path}\n{}\n{body}", uri.query().unwrap_or_default()).into_bytes();
    Ok(IdempotencyKey { credential_id: caller.credential.id(), key: key.into(), request })
}
