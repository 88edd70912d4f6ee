//! Decision records: one line of JSON for each response of a module, written by a separate thread.
//!
//! The queue is limited. A record that does not fit is dropped and counted, so a slow disk loses
//! records but never delays requests. Secrets are redacted before a request is recorded.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use chrono::{DateTime, Utc};
use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::engine::kind::Kind;
use crate::engine::request::{PolicyRequest, PolicyResponse, Secret};
use crate::load::component::Configured;

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
    request_id: Option<Uuid>,
    generation: u64,
    kind: Kind,
    module: &'a str,
    version: &'a str,
    sha256: &'a str,
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
    fn line(&self) -> Line<'_> {
        let masked = |mut said: Value| {
            self.secrets.iter().for_each(|secret| secret.redact(&mut said));
            said
        };
        let about = &self.module.description;
        let response = self.response.as_ref();
        Line {
            time: self.time,
            request_id: self.request_id,
            generation: self.generation,
            kind: self.request.kind(),
            module: &about.name,
            version: &about.version,
            sha256: &self.module.digest,
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
    /// Whether the file may have been renamed, so that the writer must open it again.
    moved: bool,
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
    pub fn open(config: &RecordsConfig, written: Counter, dropped: Counter) -> io::Result<Option<Self>> {
        let Some(path) = &config.file else { return Ok(None) };
        let writer = Writer { path: path.clone(), file: BufWriter::new(open(path)?), written, lost: dropped.clone() };
        let queue = Arc::new(Queue::default());
        let looked_at = queue.clone();
        let work = move || writer.run(&looked_at);
        let writer = std::thread::Builder::new().name("policy-records".into()).spawn(work)?;
        let share = (config.sample * 2f64.powi(64)) as u128;
        Ok(Some(Self { share, queue, dropped, writer: Mutex::new(Some(writer)) }))
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

    /// Opens a file of the same name again, for use after the old one was renamed.
    pub fn reopen(&self) {
        self.queue.lock().moved = true;
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

fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    // A host that was killed while it wrote may have left an incomplete line.
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 && file.metadata()?.is_file() {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    written: Counter,
    lost: Counter,
}

impl Writer {
    fn run(mut self, queue: &Queue) {
        loop {
            let Waiting { records, moved, closed } = queue.take();
            records.iter().for_each(|record| self.write(record));
            if let Err(error) = self.file.flush() {
                self.fail(&error);
            }
            if closed {
                return;
            }
            if moved {
                match open(&self.path) {
                    Ok(file) => self.file = BufWriter::new(file),
                    Err(error) => self.fail(&error),
                }
            }
        }
    }

    fn write(&mut self, record: &Record) {
        let line = serde_json::to_vec(&record.line()).map_err(io::Error::other);
        // Written in one call, so that other readers of the file find whole lines.
        let written = line.and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)
        });
        match written {
            Ok(()) => {
                self.written.inc();
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&self, error: &io::Error) {
        self.lost.inc();
        tracing::warn!(%error, file = %self.path.display(), "a decision record was lost");
    }
}
