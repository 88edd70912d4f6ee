//! `POST /agent/enroll`: a one-time code makes a machine a device.

use std::sync::Arc;
use std::time::Duration;

use culvert_wire::enrolment::{Enrol, Enrolled};
use salvo::writing::Json;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use crate::Api;
use crate::client_address::client_address;
use crate::middleware::trace::RequestId;
use crate::problem;
use culvert_domain::device::Description;
use culvert_domain::device::NewDevice;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::key::EnrolmentCode;
use culvert_domain::text;
use culvert_service::enrolment;

const BODY_LIMIT: usize = 16 * 1024;
/// For the whole of it: it comes from somebody without a key.
const BODY_WITHIN: Duration = Duration::from_secs(10);
const PUBLIC_KEY_BYTES: usize = 32;

pub(crate) struct Enrolment(pub Arc<Api>);

#[async_trait]
impl Handler for Enrolment {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        match enrol(&self.0, req).await {
            Ok(enrolled) => res.render(Json(enrolled)),
            Err(error) => problem::render(res, error, &self.0.docs_url, RequestId::of(depot)),
        }
    }
}

async fn enrol(api: &Api, req: &mut Request) -> Result<Enrolled> {
    let client = client_address(req, &api.trusted_proxies);
    // Nobody is hurt by waiting: a person types a code.
    if let Some(wait) = api.authentication.wrong_codes.wait(client, api.clock.moment()) {
        api.metrics.connections.count("codes");
        return Err(Error::new(Code::RateLimited, "Too many wrong codes from this address.").after(wait));
    }
    let enrol = read(api, req).await?;
    let new = new_device(&enrol)?;
    let name = new.name.clone();
    let device_id = match EnrolmentCode::hash_of(&enrol.code) {
        Some(hash) => enrolment::redeem(&api.service, hash, new).await?,
        // What cannot be a code is not looked for.
        None => None,
    };
    let Some(device_id) = device_id else {
        api.authentication.wrong_codes.count(client, api.clock.moment());
        let message = "is not valid, was used already, or is older than ten minutes";
        return Err(Error::invalid(vec![Fault::new("code", message)]));
    };
    tracing::info!(%device_id, "a device was enrolled");
    Ok(Enrolled { device_id, name })
}

async fn read(api: &Api, req: &mut Request) -> Result<Enrol> {
    let body = api.clock.timeout(BODY_WITHIN, req.payload_with_max_size(BODY_LIMIT)).await;
    let body = body.map_err(|_| Error::of(Code::RequestTimeout))?;
    let body = body.map_err(|error| Error::new(Code::InvalidJson, format!("The body could not be read: {error}.")))?;
    serde_json::from_slice(body)
        .map_err(|error| Error::new(Code::InvalidJson, format!("The body is no enrolment: {error}.")))
}

fn new_device(enrol: &Enrol) -> Result<NewDevice> {
    let mut faults = Vec::new();
    let name = enrol.name.as_deref().map(str::trim).filter(|name| !name.is_empty());
    if name.is_some_and(|name| name.chars().count() > 100 || !text::is_plain(name)) {
        faults.push(Fault::new("name", "must have at most 100 characters, none of them a control or format character"));
    }
    if enrol.public_key.0.len() != PUBLIC_KEY_BYTES {
        faults.push(Fault::new("public_key", "must be an Ed25519 public key (32 bytes)"));
    }
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    Ok(NewDevice {
        name: name.map(String::from),
        description: Description::cleaned(&enrol.platform, &enrol.version, &enrol.capabilities),
        public_key: enrol.public_key.0.clone(),
    })
}
