//! Decisions that take longer than about a millisecond: they run on threads of their own, with a low priority, so that
//! they hold up no other request.

use std::sync::Arc;
use std::thread::Builder;

use culvert_wire::clock::Clock;
use tokio::sync::oneshot;

use crate::engine::call::BRIEF;
use crate::engine::cpu_time;
use crate::engine::request::{PolicyRequest, PolicyResponse};
use crate::engine::sandbox::{Failed, Failure};
use crate::serve::live::PolicySet;
use crate::serve::priority;

/// Asks a module, by its place in the chain of its kind, with the whole deadline.
///
/// # Errors
///
/// If the module gives no valid response, or too many decisions of it are under way or wait.
pub(crate) async fn ask(
    set: &Arc<PolicySet>,
    index: usize,
    request: &PolicyRequest,
    clock: &Clock,
) -> Result<PolicyResponse, Failed> {
    let kind = request.kind();
    let decider = &set.chain(kind).enforced[index];
    let failed = |why: &str| decider.failed(Failure::Sandbox(why.into()));
    let was_open = decider.guard.is_open();
    let Some(place) = decider.guard.begin_long(clock).await else {
        return Err(failed("too many of its decisions take long"));
    };
    // Those before it may have opened the breaker meanwhile.
    if decider.guard.is_open() && !was_open {
        return Err(decider.failed(Failure::Breaker));
    }
    let (answer, answered) = oneshot::channel();
    let (set, request, clock) = (set.clone(), request.clone(), clock.clone());
    let work = move || {
        let _place = place;
        priority::lower();
        let decider = &set.chain(kind).enforced[index];
        decider.metrics.long.inc();
        let response = decider.ask(&request);
        decider.metrics.long.dec();
        decider.guard.note_long(cpu_time::of_this_thread() > BRIEF);
        // Counted here, because the request may have been given up.
        let timed_out = matches!(response, Err(Failed { failure: Failure::Timeout, .. }));
        decider.guard.note(timed_out, clock.moment());
        // Nobody waits any longer if the request was given up.
        let _ = answer.send(response);
    };
    if Builder::new().name("policy-long".into()).spawn(work).is_err() {
        return Err(failed("the operating system has no thread for it"));
    }
    answered.await.unwrap_or_else(|_| Err(failed("its thread ended")))
}
