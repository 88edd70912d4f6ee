//! What clients and visitors saw, and whether a service that keeps its promises can show it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use serde_json as json;
use uuid::Uuid;

use super::faults::Together;
use super::stage::FREE_TUNNELS;

/// An operation has so long, and as long as faults last.
const OPERATION_WITHIN: Duration = Duration::from_mins(2);

/// What a visitor was answered is noted within this time.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// The rank of an operation that has ended.
const ENDED: u8 = 3;

/// Something that was begun, and known to be over.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub begun: Moment,
    pub over: Moment,
}

/// A visitor was answered by a device.
#[derive(Clone, Debug)]
pub struct Visit {
    pub tunnel: Uuid,
    /// Numbers the visitors' connections.
    pub connection: u64,
    pub device: String,
    pub span: Span,
}

/// A value that was written to a tunnel, or read there.
#[derive(Clone, Debug)]
pub struct Value {
    pub tunnel: Uuid,
    pub text: String,
    pub span: Span,
}

/// A tunnel was stopped: from the moment at which somebody knew it until another start was asked for.
#[derive(Clone, Debug)]
pub struct Stopped {
    pub tunnel: Uuid,
    pub span: Span,
}

/// An operation was read.
#[derive(Clone, Debug)]
pub struct Seen {
    pub operation: Uuid,
    pub status: String,
    pub since: Moment,
    pub at: Moment,
}

/// A write that was asked for again under its key.
#[derive(Clone, Debug)]
pub struct Repeated {
    pub key: String,
    pub first: json::Value,
    pub again: json::Value,
}

/// How many more are asked for than there may be.
pub const TOO_MANY: usize = 2;

/// More tunnels were asked for at once than the plan of their account includes; none was there before.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    pub made: usize,
    pub refused: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Records {
    pub visits: Vec<Visit>,
    pub written: Vec<Value>,
    pub read: Vec<Value>,
    pub stopped: Vec<Stopped>,
    pub operations: Vec<Seen>,
    pub repeated: Vec<Repeated>,
    pub bursts: Vec<Burst>,
    /// Devices whose agents did nothing for longer than their leases.
    pub silent: Vec<String>,
    /// Events that were to come, and those that came: their type and the id of what they are about.
    pub expected: Vec<(String, Uuid)>,
    pub events: Vec<(String, Uuid)>,
    /// What went wrong, and whether somebody met it.
    pub faults: Vec<(Together, bool)>,
    /// How often a tunnel was moved.
    pub moved: usize,
    /// What no check of a history is needed for.
    pub wrong: Vec<String>,
}

pub struct History {
    pub clock: Clock,
    /// How often an answer did not come.
    unanswered: AtomicUsize,
    records: Mutex<Records>,
}

impl History {
    pub fn new(clock: Clock) -> Self {
        Self { clock, unanswered: AtomicUsize::new(0), records: Mutex::default() }
    }

    pub fn note(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap()
    }

    /// An answer did not come.
    pub fn met_a_fault(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    pub fn since(&self, begun: Moment) -> Span {
        Span { begun, over: self.clock.moment() }
    }
}

impl Records {
    /// Everything that is wrong.
    pub fn wrongs(&self) -> Vec<String> {
        let checks = [
            self.several_devices(),
            self.lost_writes(),
            self.several_effects(),
            self.operations_that_turn(),
            self.visits_after_a_stop(),
            self.limits_that_do_not_hold(),
            self.lost_events(),
        ];
        checks.into_iter().flatten().chain(self.wrong.iter().cloned()).collect()
    }

    /// A connection goes on at a device although another device has answered meanwhile. Visitors are connected to the node
    /// itself: what they get late, it has let through late.
    fn several_devices(&self) -> Vec<String> {
        let mut by_tunnel: BTreeMap<Uuid, Vec<&Visit>> = BTreeMap::new();
        self.visits.iter().for_each(|visit| by_tunnel.entry(visit.tunnel).or_default().push(visit));
        let mut faults = Vec::new();
        for (tunnel, visits) in by_tunnel {
            let mut first_of: HashMap<u64, &Visit> = HashMap::new();
            for visit in &visits {
                let first = *first_of.entry(visit.connection).or_insert(visit);
                let between = |other: &&&Visit| {
                    other.device != visit.device
                        && first.span.over < other.span.begun
                        && other.span.over.plus(TOLD_WITHIN) < visit.span.over
                };
                if first.device != visit.device {
                    faults.push(format!("one device: a connection to {tunnel} changed its device"));
                }
                if let Some(other) = visits.iter().find(between) {
                    let (device, other) = (&visit.device, &other.device);
                    faults.push(format!("one device: {tunnel} is at {device} still after it was at {other}"));
                }
            }
        }
        faults
    }

    /// A value was read that had been overwritten before, or that nobody has written by then.
    fn lost_writes(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for read in &self.read {
            let of_tunnel = || self.written.iter().filter(|write| write.tunnel == read.tunnel);
            let can_be = |write: &&Value| {
                let is_over =
                    of_tunnel().any(|later| later.span.begun > write.span.over && later.span.over < read.span.begun);
                write.text == read.text && write.span.begun <= read.span.over && !is_over
            };
            if !of_tunnel().any(|write| can_be(&write)) {
                faults.push(format!("lost write: {} was read as `{}`", read.tunnel, read.text));
            }
        }
        faults
    }

    fn several_effects(&self) -> Vec<String> {
        let differs = |Repeated { first, again, .. }: &&Repeated| {
            // Whether rules are in force may have been known later.
            let is_known_later = first["data"]["enforced"] == false && again["data"]["enforced"] == true;
            let mut again = again.clone();
            if is_known_later {
                again["data"]["enforced"] = false.into();
            }
            *first != again
        };
        let told = |Repeated { key, first, again }: &Repeated| format!("one effect: {key}: {first}, then {again}");
        self.repeated.iter().filter(differs).map(told).collect()
    }

    /// An operation goes back, ends late, or is under way with another one of its tunnel.
    fn operations_that_turn(&self) -> Vec<String> {
        let rank = |status: &str| match status {
            "queued" => 0,
            "claimed" => 1,
            "running" => 2,
            _ => ENDED,
        };
        let mut last: HashMap<Uuid, &Seen> = HashMap::new();
        let mut faults = Vec::new();
        for seen in &self.operations {
            if let Some(before) = last.insert(seen.operation, seen) {
                let turned = rank(&before.status) == ENDED && before.status != seen.status;
                if turned || rank(&seen.status) < rank(&before.status) {
                    faults.push(format!("operation {}: {}, then {}", seen.operation, before.status, seen.status));
                }
            }
            if rank(&seen.status) < ENDED && seen.at.since(seen.since) > OPERATION_WITHIN {
                faults.push(format!("operation {}: {} for too long", seen.operation, seen.status));
            }
        }
        faults
    }

    /// A visitor is answered while the tunnel is stopped, or by a connection that is older than the stop.
    fn visits_after_a_stop(&self) -> Vec<String> {
        let mut since: HashMap<u64, Moment> = HashMap::new();
        for visit in &self.visits {
            since.entry(visit.connection).or_insert(visit.span.begun);
        }
        let outlives = |visit: &&Visit| {
            self.stopped.iter().any(|stopped| {
                let begun = stopped.span.begun;
                stopped.tunnel == visit.tunnel
                    && since[&visit.connection] < begun
                    && begun.plus(TOLD_WITHIN) < visit.span.over
            })
        };
        let during = |visit: &&Visit| {
            self.stopped.iter().any(|stopped| {
                stopped.tunnel == visit.tunnel
                    && stopped.span.begun < visit.span.begun
                    && visit.span.over < stopped.span.over
            })
        };
        let told = |visit: &Visit| format!("stop: {} was answered at {} after it", visit.tunnel, visit.device);
        self.visits.iter().filter(|visit| during(visit) || outlives(visit)).map(told).collect()
    }

    fn limits_that_do_not_hold(&self) -> Vec<String> {
        let wrong = self.bursts.iter().filter(|burst| burst.made != FREE_TUNNELS || burst.refused != TOO_MANY);
        wrong.map(|burst| format!("limit: {burst:?}, the plan includes {FREE_TUNNELS} tunnels")).collect()
    }

    fn lost_events(&self) -> Vec<String> {
        let lost = self.expected.iter().filter(|event| !self.events.contains(event));
        lost.map(|(kind, id)| format!("event: {kind} of {id} did not come")).collect()
    }
}

/// Each check finds what it is for.
#[test]
fn made_up_histories_are_found_wrong() {
    let clock = Clock::manual(chrono::DateTime::UNIX_EPOCH);
    let start = clock.moment();
    let at = |from: u64, to: u64| {
        let moment = |seconds| start.plus(Duration::from_secs(seconds));
        Span { begun: moment(from), over: moment(to) }
    };
    let tunnel = Uuid::from_u128(1);
    let visit = |connection, device: &str, span| Visit { tunnel, connection, device: device.into(), span };
    let value = |value: &str, span| Value { tunnel, text: value.into(), span };
    let seen = |status: &str, from, to| {
        let Span { begun: since, over: at } = at(from, to);
        Seen { operation: Uuid::from_u128(2), status: status.into(), since, at }
    };
    let good = Records {
        visits: vec![
            visit(1, "a", at(0, 1)),
            visit(2, "b", at(2, 4)),
            visit(1, "a", at(3, 5)),
            visit(4, "a", at(2, 3)),
            visit(3, "a", at(6, 7)),
        ],
        written: vec![value("old", at(0, 1)), value("new", at(2, 4))],
        read: vec![value("old", at(1, 3)), value("new", at(3, 5)), value("new", at(5, 6))],
        stopped: vec![Stopped { tunnel, span: at(8, 10) }],
        operations: vec![seen("queued", 0, 1), seen("running", 0, 2), seen("succeeded", 0, 200)],
        repeated: vec![Repeated { key: "k".into(), first: 1.into(), again: 1.into() }],
        bursts: vec![Burst { made: 3, refused: 2 }],
        silent: Vec::new(),
        moved: 1,
        expected: vec![("command.succeeded".into(), tunnel)],
        events: vec![("command.succeeded".into(), tunnel)],
        faults: Vec::new(),
        wrong: Vec::new(),
    };
    assert_eq!(good.wrongs(), Vec::<String>::new());
    let bad = |change: &dyn Fn(&mut Records)| {
        let mut records = good.clone();
        change(&mut records);
        records.wrongs().join("; ")
    };
    let found = [
        bad(&|records| records.visits.push(visit(1, "a", at(6, 7)))),
        bad(&|records| records.visits.push(visit(1, "a", at(2, 8)))),
        bad(&|records| records.visits.push(visit(3, "b", at(7, 8)))),
        bad(&|records| records.read.push(value("old", at(5, 6)))),
        bad(&|records| records.read.push(value("none", at(5, 6)))),
        bad(&|records| records.repeated[0].again = 2.into()),
        bad(&|records| records.operations.push(seen("failed", 0, 201))),
        bad(&|records| records.operations[1].at = start.plus(Duration::from_secs(500))),
        bad(&|records| records.visits.push(visit(5, "a", at(9, 9)))),
        bad(&|records| {
            let (before, after) = (visit(6, "a", at(7, 8)), visit(6, "a", at(11, 12)));
            records.visits.extend([before, after]);
        }),
        bad(&|records| records.bursts.push(Burst { made: 4, refused: 1 })),
        bad(&|records| records.bursts.push(Burst { made: 2, refused: 3 })),
        bad(&|records| records.events.clear()),
    ];
    let at_fault = |text: &String| text.split(':').next().unwrap().split(' ').next().unwrap().to_owned();
    let kinds: Vec<_> = found.iter().map(at_fault).collect();
    let wanted = [
        "one",
        "one",
        "one",
        "lost",
        "lost",
        "one",
        "operation",
        "operation",
        "stop",
        "stop",
        "limit",
        "limit",
        "event",
    ];
    assert_eq!(kinds, wanted, "{found:?}");
}
