//! Shadow modules: they evaluate the same requests as the chain, after it has decided. Their responses
//! have no effect; differences are counted and logged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use culvert_wire::clock::Clock;
use prometheus_client::metrics::counter::Counter;
use uuid::Uuid;

use crate::engine::facts::FactValues;
use crate::engine::request::{PolicyRequest, PolicyResponse};
use crate::serve::differences::{Difference, Differences};
use crate::serve::live::{ModuleInstance, PolicySet};
use crate::serve::metrics::Compared;
use crate::serve::priority;
use crate::serve::records::{Record, Records};

/// Most requests in the queue of the shadow modules.
const QUEUE: usize = 1024;

struct ShadowRequest {
    set: Arc<PolicySet>,
    request_id: Option<Uuid>,
    request: PolicyRequest,
    facts: Arc<FactValues>,
    response: PolicyResponse,
    /// The module that decided.
    decider: String,
}

pub struct Shadows {
    /// `None` stops the worker.
    queue: SyncSender<Option<Box<ShadowRequest>>>,
    dropped: Counter,
    stopped: Arc<AtomicBool>,
    differences: Arc<Differences>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Shadows {
    /// Starts the thread that asks the shadow modules.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start(dropped: Counter, clock: Clock, records: Option<Arc<Records>>) -> std::io::Result<Self> {
        let (queue, asked) = sync_channel(QUEUE);
        let stopped = Arc::new(AtomicBool::new(false));
        let differences = Arc::new(Differences::default());
        let (stop, found) = (stopped.clone(), differences.clone());
        let worker = std::thread::Builder::new()
            .name("policy-shadows".into())
            .spawn(move || run(&asked, &stop, &Notes { clock, records, differences: found }))?;
        Ok(Self { queue, dropped, stopped, differences, worker: Mutex::new(Some(worker)) })
    }

    /// The newest decisions in which a shadow disagreed.
    pub fn differences(&self) -> &Differences {
        &self.differences
    }

    /// Queues a request for the shadow modules of a set. If the queue is full, it is dropped and
    /// counted.
    pub fn ask(
        &self,
        set: Arc<PolicySet>,
        request_id: Option<Uuid>,
        request: PolicyRequest,
        facts: Arc<FactValues>,
        (decider, response): (String, PolicyResponse),
    ) {
        let asked = ShadowRequest { set, request_id, request, facts, response, decider };
        if self.queue.try_send(Some(Box::new(asked))).is_err() {
            self.dropped.inc();
        }
    }

    /// Stops the worker. Queued requests are discarded: they have no effect, and a slow shadow module
    /// may have many of them.
    pub fn close(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = self.queue.send(None);
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = worker.join();
        }
    }
}

/// Where it is noted what shadows say.
struct Notes {
    clock: Clock,
    records: Option<Arc<Records>>,
    differences: Arc<Differences>,
}

fn run(queue: &Receiver<Option<Box<ShadowRequest>>>, stopped: &AtomicBool, notes: &Notes) {
    priority::lower();
    while let Ok(Some(mut asked)) = queue.recv() {
        if stopped.load(Ordering::Relaxed) {
            continue;
        }
        let set = asked.set.clone();
        for shadow in &set.chain(asked.request.kind()).shadows {
            if !set.wanted.is_empty() {
                asked.request.set_attributes(asked.facts.attributes(shadow.module.facts));
            }
            asked.compare(shadow, notes);
        }
    }
}

impl ShadowRequest {
    fn compare(&self, shadow: &ModuleInstance, notes: &Notes) {
        let Notes { clock, records, .. } = notes;
        let module = &shadow.module.description.name;
        let (kind, generation) = (shadow.module.kind.name(), self.set.generation.number);
        let request_id = self.request_id.map(tracing::field::display);
        let started = clock.moment();
        let answer = shadow.ask(&self.request);
        let took = clock.moment().since(started);
        let compared = match &answer {
            // A module of another name leaves a plan that it does not know to the others.
            Ok(PolicyResponse::Entitlement(None)) if *module != self.decider => Compared::Agreed,
            Ok(response) if response.same_outcome(&self.response) => Compared::Agreed,
            Ok(response) => {
                let (decided, shadow) = (self.response.outcome_label().name(), response.outcome_label().name());
                let rules = response.rules().join(" ");
                tracing::info!(request_id, generation, kind, module, decided, shadow, rules, "a shadow disagrees");
                self.differs(module, notes, format!("{shadow} {rules}"));
                Compared::Disagreed
            }
            Err(failed) => {
                tracing::warn!(request_id, generation, kind, module, error = %failed.failure, "a shadow failed");
                self.differs(module, notes, format!("failed: {}", failed.failure));
                Compared::Failed
            }
        };
        // What the shadow would have answered is kept wherever it disagrees, whatever is sampled.
        if let (Some(records), Compared::Disagreed | Compared::Failed) = (records, compared) {
            records.write(Record::new(clock.now(), self.request_id, &self.set, shadow, &self.request, &answer, took));
        }
        shadow.metrics.compare(compared);
    }

    fn differs(&self, module: &str, notes: &Notes, shadow: String) {
        notes.differences.add(Difference {
            at: notes.clock.now(),
            request_id: self.request_id,
            generation: self.set.generation.number,
            kind: self.request.kind(),
            module: module.to_owned(),
            decided: self.response.outcome_label().name(),
            shadow,
        });
    }
}
