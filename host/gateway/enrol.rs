//! `POST /agent/enroll`: a one-time code makes a machine a device.

use std::sync::Arc;

use culvert_agent::wire::{Enrol, Enrolled};
use salvo::writing::Json;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};

use crate::app::App;
use crate::domain::key::EnrolmentCode;
use crate::error::{Code, Error, Fault, Result};
use crate::http::hoop::auth::client_address;
use crate::http::hoop::trace::RequestId;
use crate::http::problem;
use crate::store::devices::NewDevice;

const BODY_LIMIT: usize = 16 * 1024;
const PUBLIC_KEY_BYTES: usize = 32;

pub struct Enrolment(pub Arc<App>);

#[async_trait]
impl Handler for Enrolment {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        match enrol(&self.0, req).await {
            Ok(enrolled) => res.render(Json(enrolled)),
            Err(error) => problem::render(res, &error, &self.0.docs_url, RequestId::of(depot)),
        }
    }
}

async fn enrol(app: &App, req: &mut Request) -> Result<Enrolled> {
    let client = client_address(req, &app.config.trusted_proxies);
    let body = req.payload_with_max_size(BODY_LIMIT).await;
    let body = body.map_err(|error| Error::new(Code::InvalidJson, format!("The body could not be read: {error}.")))?;
    let enrol: Enrol = serde_json::from_slice(body)
        .map_err(|error| Error::new(Code::InvalidJson, format!("The body is no enrolment: {error}.")))?;
    let new = new_device(&enrol)?;
    let hash = EnrolmentCode::hash(&enrol.code);
    let name = new.name.clone();
    let device_id = app
        .store
        .write(None, move |write| {
            Box::pin(async move {
                match write.take_device_code(&hash).await? {
                    Some((account_id, scope_id)) => Ok(Some(write.create_device(scope_id, account_id, &new).await?)),
                    None => Ok(None),
                }
            })
        })
        .await?;
    match device_id {
        Some(device_id) => {
            tracing::info!(%device_id, "a device was enrolled");
            Ok(Enrolled { device_id, name })
        }
        None => Err(match app.strangers.count(client, app.clock.moment()) {
            Some(wait) => Error::new(Code::RateLimited, "Too many wrong codes from this address.").after(wait),
            None => {
                Error::invalid(vec![Fault::new("code", "is not valid, was used already, or is older than ten minutes")])
            }
        }),
    }
}

fn new_device(enrol: &Enrol) -> Result<NewDevice> {
    let mut faults = Vec::new();
    let text = |text: &str, longest: usize| text.chars().count() <= longest && !text.chars().any(char::is_control);
    let name = enrol.name.as_deref().map(str::trim).filter(|name| !name.is_empty());
    if name.is_some_and(|name| !text(name, 100)) {
        faults.push(Fault::new("name", "must have at most 100 characters, none of them a control character"));
    }
    let short = text(&enrol.platform, 100) && text(&enrol.version, 100);
    let words =
        enrol.capabilities.len() <= 50 && enrol.capabilities.iter().all(|word| text(word, 64) && !word.contains(' '));
    if !short || !words {
        faults.push(Fault::new("capabilities", "platform, version and capabilities must be short words"));
    }
    if enrol.public_key.0.len() != PUBLIC_KEY_BYTES {
        faults.push(Fault::new("public_key", "must be an Ed25519 public key (32 bytes)"));
    }
    if !faults.is_empty() {
        return Err(Error::invalid(faults));
    }
    Ok(NewDevice {
        name: name.map(String::from),
        platform: enrol.platform.clone(),
        version: enrol.version.clone(),
        capabilities: enrol.capabilities.clone(),
        public_key: enrol.public_key.0.clone(),
    })
}
