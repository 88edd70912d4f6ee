//! What webhook endpoints are sent.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::Schemas;
use culvert_api_types::event::{
    CommandResponse, DevicePresenceResponse, EventResponse, TunnelRunResponse, WebhookTestResponse,
};
use culvert_domain::event::{EventKind, TEST_EVENT};
use culvert_domain::string_enum::StringEnum;

/// Every event kind, as OpenAPI describes requests that the service makes.
pub(super) fn webhooks(schemas: &mut Schemas) -> Map<String, Value> {
    let mut webhooks = Map::new();
    for kind in EventKind::ALL {
        let event = match kind.as_str().split_once('.').map(|(noun, _)| noun) {
            Some("command") => event::<CommandResponse>(kind.as_str(), schemas),
            Some("tunnel") => event::<TunnelRunResponse>(kind.as_str(), schemas),
            _ => event::<DevicePresenceResponse>(kind.as_str(), schemas),
        };
        webhooks.insert(kind.as_str().into(), event);
    }
    webhooks.insert(TEST_EVENT.into(), event::<WebhookTestResponse>(TEST_EVENT, schemas));
    webhooks
}

fn event<D: JsonSchema>(kind: &str, schemas: &mut Schemas) -> Value {
    let schema = schemas.answers.subschema_for::<EventResponse<D>>();
    let mut body = json!({"schema": {"allOf": [schema], "properties": {"type": {"const": kind}}}});
    if let Some(mut example) = schemas.example(&schema) {
        example["type"] = kind.into();
        body["example"] = example;
    }
    let header = |name: &str, about: &str, schema: Value| json!({"name": name, "in": "header", "required": true, "description": about, "schema": schema});
    json!({
        "post": {
            "operationId": format!("on_{}", kind.replace('.', "_")),
            "tags": ["Events"],
            "summary": kind,
            "security": [],
            "parameters": [
                header("Service-Webhook-Id", "The event's id: the same on every attempt.", json!({"type": "string", "format": "uuid"})),
                header("Service-Webhook-Timestamp", "Unix seconds of this attempt. Refuse what is older than five minutes.", json!({"type": "string", "pattern": "^[0-9]+$"})),
                header("Service-Webhook-Signature", "`v1=` and the HMAC-SHA256 of `<id>.<timestamp>.<raw body>` in hexadecimal, keyed with the endpoint's secret. Compare in constant time.", json!({"type": "string", "pattern": "^v1=[0-9a-f]{64}$"})),
            ],
            "requestBody": {"required": true, "content": {"application/json": body}},
            "responses": {
                "2XX": {"description": "Taken, if the answer is complete within 15 seconds and has at most 16 KiB. Anything else is tried again after about 1 minute, 5 minutes, 30 minutes, 2 hours and 12 hours."},
            },
        },
    })
}
