//! Metrics of the policies, for `/metrics`.

use std::collections::HashMap;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::engine::request::{OutcomeLabel, PolicyResponse};
use crate::engine::sandbox::Failed;
use crate::engine::sandbox::Failure;
use crate::load::component::Configured;

/// Bounds of the histogram, in seconds. Most decisions take some microseconds.
const BUCKETS: [f64; 15] = [1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1, 1.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    kind: &'static str,
    module: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Decision {
    kind: &'static str,
    module: String,
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRule {
    kind: &'static str,
    module: String,
    rule: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCause {
    kind: &'static str,
    module: String,
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Agreement {
    kind: &'static str,
    module: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reload {
    outcome: &'static str,
}

/// The metrics of all modules, and of the policies as a whole.
pub struct PolicyMetrics {
    decisions: Family<Decision, Counter>,
    rules: Family<ByRule, Counter>,
    failures: Family<ByCause, Counter>,
    durations: Family<Of, Histogram, fn() -> Histogram>,
    long: Family<Of, Gauge>,
    shadows: Family<Agreement, Counter>,
    reloads: Family<Reload, Counter>,
    pub generation: Gauge,
    pub shadows_dropped: Counter,
    pub records_written: Counter,
    pub records_dropped: Counter,
}

/// The metrics of one module, looked up in advance.
pub struct ModuleMetrics {
    words: [Counter; OutcomeLabel::ALL.len()],
    rules: HashMap<String, Counter>,
    failures: [Counter; Failure::CAUSES.len()],
    duration: Histogram,
    /// Decisions that take long and are under way.
    pub long: Gauge,
    agreed: Counter,
    disagreed: Counter,
    failed: Counter,
}

/// Result of comparing a shadow module's response with the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    Agreed,
    Disagreed,
    Failed,
}

impl PolicyMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            decisions: Family::default(),
            rules: Family::default(),
            failures: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            long: Family::default(),
            shadows: Family::default(),
            reloads: Family::default(),
            generation: Gauge::default(),
            shadows_dropped: Counter::default(),
            records_written: Counter::default(),
            records_dropped: Counter::default(),
        };
        let policies = registry.sub_registry_with_prefix("policy");
        policies.register("decisions", "Answers of modules", metrics.decisions.clone());
        policies.register("rules", "Refusals by the rule that decided", metrics.rules.clone());
        policies.register("failures", "Modules that gave no answer", metrics.failures.clone());
        policies.register_with_unit("decision_duration", "One answer", Unit::Seconds, metrics.durations.clone());
        policies.register(
            "long_decisions",
            "Decisions that take longer than a millisecond, under way",
            metrics.long.clone(),
        );
        policies.register("shadow_answers", "Shadows, compared with what was decided", metrics.shadows.clone());
        policies.register("shadows_dropped", "Questions that no shadow had time for", metrics.shadows_dropped.clone());
        policies.register("reloads", "Attempts to load another set", metrics.reloads.clone());
        policies.register("generation", "The set that decides", metrics.generation.clone());
        policies.register("records_written", "Decision records", metrics.records_written.clone());
        policies.register(
            "records_dropped",
            "Decision records that were lost: no place in the queue, or not written",
            metrics.records_dropped.clone(),
        );
        for outcome in ["done", "failed", "rolled_back"] {
            metrics.reloads.get_or_create(&Reload { outcome }).inc_by(0);
        }
        metrics
    }

    pub fn count_reload(&self, outcome: &'static str) {
        self.reloads.get_or_create(&Reload { outcome }).inc();
    }

    pub fn of(&self, module: &Configured) -> ModuleMetrics {
        let (kind, name) = (module.kind.name(), &module.description.name);
        let module_name = || name.clone();
        let agreement = |outcome| self.shadows.get_or_create_owned(&Agreement { kind, module: module_name(), outcome });
        let rules = module.description.rules.iter().map(|rule| {
            let counter =
                self.rules.get_or_create_owned(&ByRule { kind, module: module_name(), rule: rule.id.clone() });
            (rule.id.clone(), counter)
        });
        ModuleMetrics {
            words: OutcomeLabel::ALL.map(|outcome_label| {
                self.decisions.get_or_create_owned(&Decision {
                    kind,
                    module: module_name(),
                    verdict: outcome_label.name(),
                })
            }),
            rules: rules.collect(),
            failures: Failure::CAUSES
                .map(|cause| self.failures.get_or_create_owned(&ByCause { kind, module: module_name(), cause })),
            duration: self.durations.get_or_create_owned(&Of { kind, module: module_name() }),
            long: self.long.get_or_create_owned(&Of { kind, module: module_name() }),
            agreed: agreement("agreed"),
            disagreed: agreement("disagreed"),
            failed: agreement("failed"),
        }
    }
}

impl ModuleMetrics {
    pub fn count(&self, answer: &Result<PolicyResponse, Failed>, took: Duration) {
        self.duration.observe(took.as_secs_f64());
        match answer {
            Ok(answer) => {
                let outcome_label = answer.outcome_label();
                count(&self.words, OutcomeLabel::ALL.iter().position(|known| *known == outcome_label));
                for rule in answer.rules() {
                    self.rules.get(rule).map(Counter::inc);
                }
            }
            Err(failed) => {
                let cause = failed.failure.cause();
                count(&self.failures, Failure::CAUSES.iter().position(|known| *known == cause));
            }
        }
    }

    pub fn compare(&self, compared: Compared) {
        match compared {
            Compared::Agreed => self.agreed.inc(),
            Compared::Disagreed => self.disagreed.inc(),
            Compared::Failed => self.failed.inc(),
        };
    }
}

fn count(counters: &[Counter], which: Option<usize>) {
    which.and_then(|which| counters.get(which)).map(Counter::inc);
}
