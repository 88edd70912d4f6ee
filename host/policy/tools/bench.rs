//! Measures how fast a module decides, and how many instructions a decision takes.

use std::time::Duration;

use culvert_wire::clock::Clock;
use serde::Serialize;
use serde_json::{Map, Value};
use wasmtime::component::Component;

use crate::engine::engines::{self, Engines};
use crate::engine::sandbox::{self, Limits};
use crate::load::artefact::Artefacts;
use crate::load::cases::{Case, File};
use crate::load::component::Module;
use crate::load::dynamic::{CallError, PreparedCall, UntypedModule};
use crate::load::load_error::LoadError;

/// Least decisions between two checks of the elapsed time.
const ROUND: usize = 64;

/// The result of a measurement. Each decision creates a fresh sandbox, makes one call, and drops the
/// sandbox.
#[derive(Debug, Serialize)]
pub struct BenchResult {
    pub decisions: usize,
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// WebAssembly instructions of a decision, as the mean over the requests. It is the same on every
    /// machine.
    pub instructions: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("{0}")]
    Load(#[from] LoadError),
    #[error("{0}")]
    CallError(#[from] CallError),
    #[error("there is no question; give the component cases")]
    NoQuestion,
}

/// The name of the function to call, and the request.
type BenchInput<'a> = (Option<&'a str>, Value);

/// Evaluates the requests of the cases in turn until `time` has passed.
///
/// # Errors
///
/// If there is no request, a request is invalid, or the module cannot be loaded or fails.
pub fn measure(
    engines: &Engines,
    module: &Module,
    cases: &File,
    limits: Limits,
    time: Duration,
) -> Result<BenchResult, BenchError> {
    let settings = &cases.settings;
    let configured = module.configure(engines, &Artefacts::none(), settings, limits)?;
    let dynamic = UntypedModule::new(engines, &configured)?;
    let request = |case: &'_ Case| cases.request(case, module.kind, dynamic.facts);
    let requests: Vec<BenchInput<'_>> = cases
        .cases
        .iter()
        .map(|case| Ok((case.call.as_deref(), request(case)?)))
        .collect::<Result<_, String>>()
        .map_err(CallError::PolicyRequest)?;
    let prepared = prepare(&dynamic, &requests)?;
    let instructions = count(engines, module, settings, &requests, limits)?;
    let clock = Clock::system();
    let mut took: Vec<Duration> = Vec::new();
    let started = clock.moment();
    let mut total = Duration::ZERO;
    while total < time {
        for request in prepared.iter().cycle().take(ROUND.max(prepared.len())) {
            let before = clock.moment();
            dynamic.decide(&mut dynamic.store(), request).map_err(CallError::Failed)?;
            took.push(clock.moment().since(before));
        }
        total = clock.moment().since(started);
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1000.0;
    let per_second = took.len() as f64 / total.as_secs_f64();
    Ok(BenchResult { decisions: took.len(), per_second, p50_us: at(0.50), p99_us: at(0.99), instructions })
}

fn prepare(dynamic: &UntypedModule, requests: &[BenchInput<'_>]) -> Result<Vec<PreparedCall>, BenchError> {
    if requests.is_empty() {
        return Err(BenchError::NoQuestion);
    }
    Ok(requests.iter().map(|(call, request)| dynamic.prepare(*call, request)).collect::<Result<_, _>>()?)
}

/// The mean number of instructions that the requests take.
fn count(
    engines: &Engines,
    module: &Module,
    settings: &Map<String, Value>,
    requests: &[BenchInput<'_>],
    limits: Limits,
) -> Result<u64, BenchError> {
    let snapshot = module.snapshot(engines, settings, limits)?;
    let engine = engines::counting().map_err(LoadError::engine)?;
    let component = Component::from_binary(&engine, &snapshot).map_err(LoadError::engine)?;
    let said = (module.description.clone(), module.facts);
    let dynamic = UntypedModule::on(&engine, component, module.kind, said, limits)?;
    let mut instructions = 0;
    for request in prepare(&dynamic, requests)? {
        let mut store = dynamic.store();
        sandbox::count_instructions(&mut store).map_err(LoadError::engine)?;
        dynamic.decide(&mut store, &request).map_err(CallError::Failed)?;
        instructions += sandbox::instructions(&store).map_err(LoadError::engine)?;
    }
    Ok(instructions / requests.len() as u64)
}
