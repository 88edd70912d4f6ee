//! Decision records: one line of JSON for every answer of a module, written off the request's path.
//!
//! The queue is bounded. What finds no place in it is dropped and counted: a slow disk costs
//! records, never requests. Secrets are masked before a question comes here.

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

/// Records that wait to be written, at most.
const QUEUE: usize = 8192;
/// How often the writer looks.
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

/// One answer of one module.
pub struct Record {
    pub time: DateTime<Utc>,
    /// None where no request asked.
    pub request_id: Option<Uuid>,
    pub generation: u64,
    pub module: Arc<Configured>,
    pub question: PolicyRequest,
    /// What was masked in the question, and must not be in the answer.
    pub secrets: Vec<Secret>,
    pub answer: Result<PolicyResponse, String>,
    pub took: Duration,
}

/// A record as it is written.
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
        let answer = self.answer.as_ref();
        Line {
            time: self.time,
            request_id: self.request_id,
            generation: self.generation,
            kind: self.question.kind(),
            module: &about.name,
            version: &about.version,
            sha256: &self.module.digest,
            call: self.question.call(),
            input: &self.question,
            verdict: answer.map_or("failed", |answer| answer.outcome_label().name()),
            rules: answer.map(PolicyResponse::rules).unwrap_or_default(),
            answer: answer.ok().map(|answer| masked(answer.to_wit_json())),
            error: answer.err().map(|problem| masked(problem.as_str().into())),
            masked: self.secrets.iter().map(|secret| secret.field).collect(),
            duration_us: self.took.as_nanos() as f64 / 1000.0,
        }
    }
}

pub struct Records {
    /// Of 2^64 requests, so many.
    share: u128,
    queue: Arc<Queue>,
    dropped: Counter,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What waits to be written. The writer looks by itself from time to time: to wake it would take a
/// request longer than to decide.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    closed: Condvar,
}

#[derive(Default)]
struct Waiting {
    records: Vec<Record>,
    /// Whether the file was moved away.
    moved: bool,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has come together since the last look.
    fn take(&self) -> Waiting {
        let open = |waiting: &mut Waiting| !waiting.closed;
        let waited = self.closed.wait_timeout_while(self.lock(), LOOK, open);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        let closed = waiting.closed;
        std::mem::replace(&mut *waiting, Waiting { closed, ..Waiting::default() })
    }
}

impl Records {
    /// Opens the file, which is for this user alone: it says what clients asked for.
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

    /// Whether an answer is recorded: all those of a request are, or none. What a plan includes is
    /// asked once, for everybody.
    pub fn is_sampled(&self, question: &PolicyRequest, request_id: Option<Uuid>) -> bool {
        if matches!(question, PolicyRequest::Entitlements(_)) {
            return self.share > 0;
        }
        // The second half of an id is chance.
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

    /// Goes on in a file of the same name, after the old one was moved away.
    pub fn reopen(&self) {
        self.queue.lock().moved = true;
    }

    /// Writes what waits, and ends.
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
    // A host that was killed while it wrote has left half a line.
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
        // In one piece: whoever reads along finds whole lines.
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
