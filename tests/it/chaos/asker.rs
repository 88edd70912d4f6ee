//! Somebody who asks one host after the other until one answers for good.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use reqwest::Method;
use serde_json::Value as Json;

use super::history::{History, Repeated, Span};
use super::longest_fault;
use super::stage::Stage;
use crate::support::api::Api;

/// How long all hosts together have for an answer.
pub const ANSWERED_WITHIN: Duration = Duration::from_mins(2);
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// How long one host has for an answer, or a visit: longer than a fault lasts. What was given up takes no effect later.
pub fn answer_within() -> Duration {
    Duration::from_secs(longest_fault() + 2)
}

/// Numbers that a seed stands for.
pub struct Random(TestRng);

impl Random {
    pub fn of(seed: u64, stream: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&stream.to_le_bytes());
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    /// A number below this one.
    pub fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.0.next_u64() % most as u64).unwrap()
    }

    /// A duration from one to another.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let more = (most.saturating_sub(least)).as_millis() as usize + 1;
        least + Duration::from_millis(self.below(more) as u64)
    }

    pub fn shuffle<T>(&mut self, mut from: Vec<T>) -> Vec<T> {
        let mut shuffled = Vec::new();
        while !from.is_empty() {
            shuffled.push(from.swap_remove(self.below(from.len())));
        }
        shuffled
    }

    fn key(&mut self) -> String {
        format!("{:016x}{:016x}", self.0.next_u64(), self.0.next_u64())
    }
}

/// An answer that no other host would change.
pub struct Answer {
    pub span: Span,
    pub status: u16,
    pub body: Json,
}

pub struct Asker {
    pub stage: Arc<Stage>,
    pub history: Arc<History>,
    pub random: Random,
    /// The API key, where it is not the stage's.
    key: Option<String>,
}

impl Asker {
    pub fn new(stage: &Arc<Stage>, history: &Arc<History>, random: Random) -> Self {
        Self { stage: stage.clone(), history: history.clone(), random, key: None }
    }

    pub fn with_key(self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self }
    }

    /// A write under an idempotency key of its own, which is repeated now and then.
    pub async fn write(&mut self, method: Method, path: &str, body: &Json) -> Answer {
        let key = self.random.key();
        let first = self.ask(&method, path, Some(body), Some(&key)).await;
        if (200..300).contains(&first.status) && self.random.below(3) == 0 {
            let again = self.ask(&method, path, Some(body), Some(&key)).await.body;
            self.history.note().repeated.push(Repeated { key, first: first.body.clone(), again });
        }
        first
    }

    pub async fn read(&mut self, path: &str) -> Answer {
        self.ask(&Method::GET, path, None, None).await
    }

    async fn ask(&mut self, method: &Method, path: &str, body: Option<&Json>, key: Option<&str>) -> Answer {
        let begun = self.history.clock.moment();
        let mut last = String::new();
        while self.history.clock.moment().since(begun) < ANSWERED_WITHIN {
            let host = self.random.below(self.stage.hosts.len());
            let api = &self.stage.hosts[host].api;
            let api = self.key.as_ref().map_or_else(|| api.clone(), |key| api.with_key(key));
            match ask_at(&api, method, path, body, key).await {
                Ok((status, body)) if is_final(status, &body) => {
                    return Answer { span: self.history.since(begun), status, body };
                }
                Ok((503, body)) => last = body.to_string(),
                Ok((status, body)) => {
                    last = format!("{status} {body}");
                    if status >= 500 {
                        self.history.note().wrong.push(format!("answer: {method} {path}: {last}"));
                    }
                }
                Err(error) => last = format!("{error:?}"),
            }
            self.history.met_a_fault();
            self.history.clock.sleep(AGAIN_AFTER).await;
        }
        self.history.note().wrong.push(format!("no answer: {method} {path}: {last}"));
        Answer { span: self.history.since(begun), status: 0, body: Json::Null }
    }
}

/// Whether another host would say nothing else.
fn is_final(status: u16, body: &Json) -> bool {
    status < 500 && status != 429 && body["code"] != "idempotency_in_progress"
}

async fn ask_at(
    api: &Api,
    method: &Method,
    path: &str,
    body: Option<&Json>,
    key: Option<&str>,
) -> reqwest::Result<(u16, Json)> {
    let mut request = api.request(method.clone(), path).timeout(answer_within());
    if let Some(body) = body {
        request = request.json(body);
    }
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let response = request.send().await?;
    let status = response.status().as_u16();
    Ok((status, serde_json::from_slice(&response.bytes().await?).unwrap_or_default()))
}
