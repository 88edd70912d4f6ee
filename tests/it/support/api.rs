//! The API as a client sees it.

use std::fmt;

use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use uuid::Uuid;

#[derive(Clone)]
pub struct Api {
    base: String,
    key: Option<String>,
    http: Client,
}

/// An answer: what it says, and the headers it says it with.
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
    /// As it came.
    pub text: String,
}

impl Api {
    pub fn new(url: &str, key: &str) -> Self {
        let http = Client::builder().no_proxy().build().unwrap();
        Self { base: format!("{url}/v2"), key: Some(key.into()), http }
    }

    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.into()), ..self.clone() }
    }

    /// The same client at another host.
    pub fn at(&self, url: &str) -> Self {
        Self { base: format!("{url}/v2"), ..self.clone() }
    }

    pub fn without_key(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// With an Idempotency-Key that no other request has.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.change(Method::POST, path).json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(self.change(Method::PUT, path).json(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PATCH, path).json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.change(Method::DELETE, path)).await
    }

    /// A request without anything that was not asked for.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    fn change(&self, method: Method, path: &str) -> RequestBuilder {
        self.request(method, path).header("idempotency-key", Uuid::from_bytes(random()).to_string())
    }

    pub async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status, headers, body, text }
    }
}

fn random() -> [u8; 16] {
    culvert_wire::clock::Clock::system().random()
}

impl Answer {
    /// `data` of an answer that must be a success.
    #[track_caller]
    pub fn data(&self) -> &Value {
        assert!(StatusCode::from_u16(self.status).unwrap().is_success(), "{self}");
        &self.body["data"]
    }

    /// `data.id` of an answer that must be a success.
    #[track_caller]
    pub fn id(&self) -> Uuid {
        self.data()["id"].as_str().and_then(|id| Uuid::parse_str(id).ok()).unwrap()
    }

    /// `409 device_offline`, or only the status of a success.
    pub fn outcome(&self) -> String {
        match self.body["code"].as_str() {
            Some(code) => format!("{} {code}", self.status),
            None => self.status.to_string(),
        }
    }

    /// The fields that a 422 names, in order.
    pub fn fields(&self) -> Vec<String> {
        let errors = self.body["errors"].as_array().into_iter().flatten();
        let mut fields: Vec<_> = errors.map(|error| error["field"].as_str().unwrap_or_default().to_owned()).collect();
        fields.sort();
        fields
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Status and body, without what is different every time.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.status, scrubbed(&self.body))
    }
}

/// A record without what is different every time.
pub fn scrubbed(record: &Value) -> String {
    let mut record = record.clone();
    scrub(&mut record);
    serde_json::to_string_pretty(&record).unwrap()
}

/// The first loopback address that a text holds: the node of a test is on one of its own.
fn loopback(text: &str) -> Option<String> {
    let from = &text[text.find("127.")?..];
    Some(from.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect())
}

fn scrub(value: &mut Value) {
    match value {
        Value::String(text) => {
            if Uuid::parse_str(text).is_ok() {
                *text = "[uuid]".into();
            } else if text.len() >= 20 && chrono::DateTime::parse_from_rfc3339(text).is_ok() {
                *text = "[time]".into();
            } else if let Some(address) = loopback(text) {
                *text = text.replace(&address, "[host]");
            } else if text.starts_with("node-") {
                *text = "[node]".into();
            } else if text.starts_with("whsec_") {
                *text = "[secret]".into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(scrub),
        Value::Object(fields) => {
            fields.values_mut().for_each(scrub);
            for name in ["port", "remote_port"] {
                if let Some(port) = fields.get_mut(name).filter(|port| port.as_u64() >= Some(20_000)) {
                    *port = "[port]".into();
                }
            }
        }
        _ => {}
    }
}
