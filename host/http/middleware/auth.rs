//! Who asks: authentication of a request by its API key; see
//! `docs/develop/decisions/0010-keys-and-rate-limits.md`.

use std::sync::Arc;

use salvo::http::header::AUTHORIZATION;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use super::trace::RequestId;
use crate::client_address::client_address;
use crate::path::Path;
use crate::{Api, AuthRequirement, auth_requirement, problem};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::key::ApiKey;

pub(crate) struct Auth(pub Arc<Api>);

#[async_trait]
impl Handler for Auth {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let api = &self.0;
        let refused = match auth_requirement(Path::of(depot)) {
            AuthRequirement::Anybody => return,
            AuthRequirement::FormerClients => Error::of(Code::ApiVersionGone),
            AuthRequirement::Clients => match authenticate(api, req).await {
                Ok(caller) => {
                    depot.insert_typed(caller);
                    return;
                }
                Err(error) => limit_failed_auth(api, req, error),
            },
        };
        problem::render(res, refused, &api.docs_url, RequestId::of(depot));
        ctrl.skip_rest();
    }
}

async fn authenticate(api: &Api, req: &Request) -> Result<Caller> {
    let mut headers = req.headers().get_all(AUTHORIZATION).iter();
    let invalid = || Error::of(Code::InvalidApiKey);
    let header = headers.next().ok_or_else(|| Error::of(Code::MissingApiKey))?;
    let (scheme, key) = header.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(invalid)?;
    if headers.next().is_some() || !scheme.eq_ignore_ascii_case("bearer") {
        return Err(invalid());
    }
    let key = ApiKey::parse(key.trim_start()).ok_or_else(invalid)?;
    api.authentication.caller(&api.service, &key, client_address(req, &api.trusted_proxies)).await
}

/// Too many failures from one address are told to wait. A key that was good within a day never comes
/// here.
fn limit_failed_auth(api: &Api, req: &Request, error: Error) -> Error {
    if !matches!(error.code, Code::MissingApiKey | Code::InvalidApiKey) {
        return error;
    }
    let client = client_address(req, &api.trusted_proxies);
    match api.authentication.failed_auth.count(client, api.clock.moment()) {
        None => error,
        Some(wait) => {
            api.metrics.count_refusal("address");
            Error::new(Code::RateLimited, "Too many failed authentications from this address.").after(wait)
        }
    }
}
