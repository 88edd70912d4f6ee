//! Decision records: one line of JSON for every answer of a module, written off the request's path.
//!
//! The queue is bounded. What finds no place in it is dropped and counted: a slow disk costs
//! records, never requests. Secrets are masked before a question comes here.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use chrono::{DateTime, Utc};
use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::component::Configured;
use super::question::{Answer, Question, Secret};

/// Records that wait to be written.
const QUEUE: usize = 8192;

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
    pub question: Question,
    /// What was masked in the question, and must not be in the answer.
    pub secrets: Vec<Secret>,
    pub answer: Result<Answer, String>,
    pub took: Duration,
}

impl Record {
    fn line(&self) -> Value {
        let mut line = json!({
            "time": self.time,
            "request_id": self.request_id,
            "generation": self.generation,
            "kind": self.question.kind(),
            "module": self.module.description.name,
            "version": self.module.description.version,
            "sha256": self.module.digest,
            "call": self.question.call(),
            "input": self.question.plain(),
            "duration_us": self.took.as_nanos() as f64 / 1000.0,
        });
        match &self.answer {
            Ok(answer) => {
                line["verdict"] = json!(answer.word());
                line["rules"] = json!(answer.rules());
                line["answer"] = answer.plain();
            }
            Err(problem) => {
                line["verdict"] = json!("failed");
                line["rules"] = json!([]);
                line["error"] = json!(problem);
            }
        }
        if !self.secrets.is_empty() {
            let fields: BTreeSet<&str> = self.secrets.iter().map(|secret| secret.field).collect();
            line["masked"] = json!(fields);
            for said in ["answer", "error"] {
                if let Some(said) = line.get_mut(said) {
                    self.secrets.iter().for_each(|secret| secret.mask_in(said));
                }
            }
        }
        line
    }
}

enum Message {
    Record(Box<Record>),
    Close,
}

pub struct Records {
    /// Of 2^64 requests, so many.
    share: u128,
    queue: SyncSender<Message>,
    dropped: Counter,
    moved: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Records {
    /// Opens the file, which is for this user alone: it says what clients asked for.
    pub fn open(config: &RecordsConfig, written: Counter, dropped: Counter) -> io::Result<Option<Self>> {
        let Some(path) = &config.file else { return Ok(None) };
        let file = open(path)?;
        let (queue, messages) = sync_channel(QUEUE);
        let (path, lost, moved) = (path.clone(), dropped.clone(), Arc::new(AtomicBool::new(false)));
        let writer = Writer { path, file: BufWriter::new(file), written, lost, moved: moved.clone() };
        let work = move || writer.run(&messages);
        let writer = std::thread::Builder::new().name("policy-records".into()).spawn(work)?;
        let share = (config.sample * 2f64.powi(64)) as u128;
        Ok(Some(Self { share, queue, dropped, moved, writer: Mutex::new(Some(writer)) }))
    }

    /// Whether an answer is recorded: all those of a request are, or none. What a plan includes is
    /// asked once, for everybody.
    pub fn want(&self, question: &Question, request_id: Option<Uuid>) -> bool {
        if matches!(question, Question::Entitlements(_)) {
            return self.share > 0;
        }
        // The second half of an id is chance.
        let chance = request_id.map_or(0, |id| u128::from(id.as_u64_pair().1.reverse_bits()));
        chance < self.share
    }

    pub fn write(&self, record: Record) {
        if self.queue.try_send(Message::Record(Box::new(record))).is_err() {
            self.dropped.inc();
        }
    }

    /// Has the next record go to a file of the same name, after the old one was moved away.
    pub fn reopen(&self) {
        self.moved.store(true, Ordering::Relaxed);
    }

    /// Writes what waits, and ends.
    pub fn close(&self) {
        let _ = self.queue.send(Message::Close);
        if let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = writer.join();
        }
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
    moved: Arc<AtomicBool>,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        loop {
            let message = messages.try_recv().or_else(|error| {
                if error == TryRecvError::Empty {
                    self.flush();
                }
                messages.recv()
            });
            match message {
                Ok(Message::Record(record)) => self.write(&record),
                Ok(Message::Close) | Err(_) => return self.flush(),
            }
        }
    }

    fn write(&mut self, record: &Record) {
        if self.moved.swap(false, Ordering::Relaxed) {
            self.reopen();
        }
        // In one piece: whoever reads along finds whole lines.
        match self.file.write_all(format!("{}\n", record.line()).as_bytes()) {
            Ok(()) => drop(self.written.inc()),
            Err(error) => self.fail(&error),
        }
    }

    fn flush(&mut self) {
        if let Err(error) = self.file.flush() {
            self.fail(&error);
        }
    }

    fn reopen(&mut self) {
        self.flush();
        match open(&self.path) {
            Ok(file) => self.file = BufWriter::new(file),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&self, error: &io::Error) {
        self.lost.inc();
        tracing::warn!(%error, file = %self.path.display(), "a decision record was lost");
    }
}
