//! Decision records: one line of JSON for each response of a module, written by a separate thread.
//!
//! The queue is limited. A record that does not fit is dropped and counted, so a slow disk loses
//! records but never delays requests. Secrets are redacted before a request is recorded.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_wire::clock::Clock;
use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::engine::kind::Kind;
use crate::engine::request::{PolicyRequest, PolicyResponse, Secret};
use crate::engine::sandbox::Failed;
use crate::load::chain::Mode;
use crate::load::component::Configured;
use crate::serve::live::{ModuleInstance, PolicySet};
use crate::serve::record_writer::{RecordWriter, RecordsHealth};

/// Most records in the queue.
const QUEUE: usize = 8192;
/// Interval at which the writer empties the queue.
const LOOK: Duration = Duration::from_millis(50);

/// `[decisions]` of the configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordsConfig {
    /// Where decision records are added, as JSON lines; none are written without it.
    pub file: Option<PathBuf>,
    /// The part of all requests whose decisions are recorded, from 0 to 1.
    pub sample: f64,
}

impl Default for RecordsConfig {
    fn default() -> Self {
        Self { file: None, sample: 1.0 }
    }
}

/// One response of one module.
pub struct Record {
    pub time: DateTime<Utc>,
    /// None if the evaluation belongs to no request.
    pub request_id: Option<Uuid>,
    pub generation: u64,
    /// Digest of the generation: the same at every host.
    pub generation_sha256: Arc<str>,
    pub mode: Mode,
    pub module: Arc<Configured>,
    pub request: PolicyRequest,
    /// The secrets that were redacted in the request. They are redacted in the response as well.
    pub secrets: Vec<Secret>,
    pub response: Result<PolicyResponse, String>,
    pub took: Duration,
}

/// A record as it is serialized.
#[derive(Serialize)]
struct Line<'a> {
    time: DateTime<Utc>,
    /// None where a command asks.
    host_id: Option<Uuid>,
    request_id: Option<Uuid>,
    generation: u64,
    generation_sha256: &'a str,
    kind: Kind,
    mode: Mode,
    module: &'a str,
    version: &'a str,
    sha256: &'a str,
    /// Digest of the settings that the module decided by.
    settings_sha256: &'a str,
    call: &'static str,
    input: &'a PolicyRequest,
    verdict: &'static str,
    rules: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    masked: BTreeSet<&'static str>,
    duration_us: f64,
}

impl Record {
    /// The record of a module's answer, without secrets.
    pub fn new(
        time: DateTime<Utc>,
        request_id: Option<Uuid>,
        set: &PolicySet,
        decider: &ModuleInstance,
        request: &PolicyRequest,
        answer: &Result<PolicyResponse, Failed>,
        took: Duration,
    ) -> Self {
        let (request, secrets) = request.clone().redacted();
        let response = match answer {
            Ok(response) => Ok(response.clone()),
            Err(failed) => Err(failed.to_string()),
        };
        let (mode, module) = (decider.mode, decider.module.clone());
        let (generation, generation_sha256) = (set.generation.number, set.digest.clone());
        Self { time, request_id, generation, generation_sha256, mode, module, request, secrets, response, took }
    }

    fn line(&self, host_id: Option<Uuid>) -> Line<'_> {
        let masked = |mut said: Value| {
            self.secrets.iter().for_each(|secret| secret.redact(&mut said));
            said
        };
        let about = &self.module.description;
        let response = self.response.as_ref();
        Line {
            time: self.time,
            host_id,
            request_id: self.request_id,
            generation: self.generation,
            generation_sha256: &self.generation_sha256,
            kind: self.request.kind(),
            mode: self.mode,
            module: &about.name,
            version: &about.version,
            sha256: &self.module.digest,
            settings_sha256: &self.module.settings_digest,
            call: self.request.call(),
            input: &self.request,
            verdict: response.map_or("failed", |response| response.outcome_label().name()),
            rules: response.map(PolicyResponse::rules).unwrap_or_default(),
            answer: response.ok().map(|response| masked(response.to_wit_json())),
            error: response.err().map(|problem| masked(problem.as_str().into())),
            masked: self.secrets.iter().map(|secret| secret.field).collect(),
            duration_us: self.took.as_nanos() as f64 / 1000.0,
        }
    }
}

pub struct Records {
    /// The sampled requests, out of 2^64.
    share: u128,
    queue: Arc<Queue>,
    dropped: Counter,
    health: Arc<Mutex<RecordsHealth>>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// The records that wait to be written. The writer checks the queue at an interval, because waking it
/// would take a request longer than the decision itself.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    closed: Condvar,
}

#[derive(Default)]
struct Waiting {
    records: Vec<Record>,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the interval or for the end, then takes all records.
    fn take(&self) -> Waiting {
        let open = |waiting: &mut Waiting| !waiting.closed;
        let waited = self.closed.wait_timeout_while(self.lock(), LOOK, open);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        let closed = waiting.closed;
        std::mem::replace(&mut *waiting, Waiting { closed, ..Waiting::default() })
    }
}

impl Records {
    /// Opens the file with permissions for this user alone, because it contains the requests of
    /// clients.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread that writes it cannot be started.
    pub fn open(
        config: &RecordsConfig,
        host_id: Option<Uuid>,
        clock: Clock,
        written: Counter,
        dropped: Counter,
    ) -> io::Result<Option<Self>> {
        let Some(path) = &config.file else { return Ok(None) };
        let health = RecordsHealth { file: path.clone(), lost: 0, problem: None };
        let health = Arc::new(Mutex::new(health));
        let writer = RecordWriter::open(path, clock, written, dropped.clone(), health.clone())?;
        let queue = Arc::new(Queue::default());
        let looked_at = queue.clone();
        let work = move || run(writer, host_id, &looked_at);
        let writer = std::thread::Builder::new().name("policy-records".into()).spawn(work)?;
        let share = (config.sample * 2f64.powi(64)) as u128;
        Ok(Some(Self { share, queue, dropped, health, writer: Mutex::new(Some(writer)) }))
    }

    /// Whether a response is recorded: either all of a request are, or none. Entitlements of a plan are
    /// evaluated once for all requests, so they are recorded unless sampling is off.
    pub fn is_sampled(&self, request: &PolicyRequest, request_id: Option<Uuid>) -> bool {
        if matches!(request, PolicyRequest::Entitlements(_)) {
            return self.share > 0;
        }
        // The second half of an id is random apart from its first two bits. Reversal makes those the
        // lowest ones.
        let chance = request_id.map_or(0, |id| u128::from(id.as_u64_pair().1.reverse_bits()));
        chance < self.share
    }

    pub fn write(&self, record: Record) {
        let mut waiting = self.queue.lock();
        if waiting.records.len() < QUEUE {
            waiting.records.push(record);
        } else {
            self.dropped.inc();
        }
    }

    pub fn health(&self) -> RecordsHealth {
        let health = self.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        RecordsHealth { lost: self.dropped.get(), ..health }
    }

    /// Writes the queued records and stops the writer.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.queue.closed.notify_one();
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = writer.join();
        }
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.close();
    }
}

/// Writes the queued records until the end.
fn run(mut writer: RecordWriter, host_id: Option<Uuid>, queue: &Queue) {
    loop {
        let Waiting { records, closed } = queue.take();
        let mut lines = Vec::new();
        for record in &records {
            // Serializing plain values into memory does not fail.
            let _ = serde_json::to_writer(&mut lines, &record.line(host_id));
            lines.push(b'\n');
        }
        if !lines.is_empty() {
            writer.write(&lines);
        }
        if closed {
            return;
        }
    }
}
