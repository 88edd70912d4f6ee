//! What goes wrong.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use super::asker::Random;
use super::history::History;
use super::stage::{Stage, Way};
use crate::support::database::END_LISTENERS;
use crate::support::host::within;
use crate::support::link::Mode;
use crate::support::server::Stop;

/// An agent's leases and a host's are over, and noticed, within this time, after a grace as well.
const NOTICED_WITHIN: Duration = Duration::from_secs(75 + 15 + 33 + 12);
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LISTENERS_ENDED_EVERY: Duration = Duration::from_millis(100);

/// One thing that goes wrong for a while.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    KillHost(usize),
    /// `kill -STOP`, and then `-CONT`.
    SuspendHost(usize),
    /// The same, until the other hosts have ended it.
    SuspendHostUntilEnded(usize),
    /// A stop and a start in order.
    RestartHost(usize),
    KillAgent(usize),
    StopDatabase(Stop),
    /// The sessions of PostgreSQL that listen are ended, again and again.
    EndListeners,
    Link(Way, usize, Mode),
    /// A host, to which a device is connected, has no database until the others have ended it. The device is not to notice.
    CutOffHost {
        host: usize,
        device: usize,
    },
    ReloadPolicies(usize),
    /// Nothing can be added to the decision records of a host (ENOSPC).
    FullDisk(usize),
}

/// What a fault needs for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Host(usize),
    Agent(usize),
    Link(Way, usize),
    Records(usize),
    Listeners,
    Database,
}

/// One fault, or two at a time.
pub type Together = Vec<Fault>;

impl Fault {
    /// One of each kind that does not last long, by twos, in an order that the seed says. What these concern is left alone.
    pub fn each(random: &mut Random, hosts: usize, devices: usize, leave_alone: &[Self]) -> Vec<Together> {
        let mut host = || random.below(hosts);
        let modes = [Mode::Hold, Mode::Cut, Mode::HoldToServer, Mode::HoldToClient, Mode::Delay(100)];
        let mut faults = vec![
            Self::KillHost(host()),
            Self::SuspendHost(host()),
            Self::RestartHost(host()),
            Self::StopDatabase(Stop::Immediate),
            Self::StopDatabase(Stop::Fast),
            Self::EndListeners,
            Self::ReloadPolicies(host()),
            Self::FullDisk(host()),
        ];
        for way in Way::ALL {
            faults.extend(modes.map(|mode| Self::Link(way, host(), mode)));
        }
        faults.push(Self::KillAgent(random.below(devices)));
        by_twos(random.shuffle(faults), leave_alone)
    }

    fn parts(self) -> Vec<Part> {
        match self {
            Self::KillHost(host) | Self::RestartHost(host) => {
                vec![Part::Host(host), Part::Link(Way::Store, host), Part::Database]
            }
            Self::SuspendHost(host) => vec![Part::Host(host)],
            Self::KillAgent(device) => vec![Part::Agent(device)],
            Self::StopDatabase(_) => vec![Part::Database, Part::Listeners],
            Self::EndListeners => vec![Part::Listeners],
            Self::Link(way, host, _) => vec![Part::Link(way, host)],
            Self::FullDisk(host) => vec![Part::Records(host)],
            // Every host that is alive has to load them. Without a database, and in the grace after it, no host is ended; nor
            // by one that does not reach it.
            Self::ReloadPolicies(_) | Self::SuspendHostUntilEnded(_) => all_hosts(),
            Self::CutOffHost { host, device } => {
                all_hosts().into_iter().chain([Part::Link(Way::Agents, host), Part::Agent(device)]).collect()
            }
        }
    }

    fn can_be_beside(self, other: &Self) -> bool {
        self.parts().iter().all(|part| !other.parts().contains(part))
    }

    /// Has it go wrong for so long, and be right again.
    pub async fn inject(self, stage: &Stage, history: &History, lasting: Duration) {
        let pause = || history.clock.sleep(lasting);
        match self {
            Self::KillHost(number) => {
                let host = &stage.hosts[number];
                let mut program = host.program.lock().await;
                program.take().unwrap().kill().await;
                pause().await;
                *program = Some(host.serve().await);
            }
            Self::SuspendHost(number) | Self::SuspendHostUntilEnded(number) => {
                let program = stage.hosts[number].program.lock().await;
                let program = program.as_ref().unwrap();
                program.signal("-STOP").await;
                if matches!(self, Self::SuspendHostUntilEnded(_)) {
                    until_ended(stage, history, number).await;
                }
                pause().await;
                program.signal("-CONT").await;
            }
            Self::RestartHost(number) => {
                let host = &stage.hosts[number];
                let mut program = host.program.lock().await;
                let ended = within(60, program.take().unwrap().terminate()).await;
                if ended != Some(0) {
                    history.note().wrong.push(format!("{self:?}: it ended with {ended:?}"));
                }
                *program = Some(host.serve().await);
            }
            Self::KillAgent(number) => {
                let device = &stage.devices[number];
                device.kill().await;
                pause().await;
                device.start().await;
            }
            Self::StopDatabase(how) => {
                stage.server.stop(how).await;
                pause().await;
                stage.server.again("").await;
            }
            Self::EndListeners => {
                let begun = history.clock.moment();
                while history.clock.moment().since(begun) < lasting {
                    stage.server.sql(END_LISTENERS).await;
                    history.clock.sleep(LISTENERS_ENDED_EVERY).await;
                }
            }
            Self::Link(way, number, mode) => {
                let link = stage.hosts[number].link(way);
                link.set(mode);
                pause().await;
                link.set(Mode::Pass);
            }
            Self::CutOffHost { host, .. } => {
                let link = stage.hosts[host].link(Way::Store);
                link.set(Mode::Hold);
                until_ended(stage, history, host).await;
                pause().await;
                link.set(Mode::Pass);
            }
            Self::ReloadPolicies(number) => {
                let output = within(120, stage.hosts[number].place.run("culvert policy reload")).await;
                if !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    history.note().wrong.push(format!("{self:?}: {said}"));
                }
            }
            Self::FullDisk(number) => {
                let file = stage.hosts[number].records();
                let full = file.with_extension("full");
                symlink("/dev/full", &full).unwrap();
                std::fs::rename(&full, &file).unwrap();
                pause().await;
                std::fs::remove_file(&file).unwrap();
                until_recorded(history, &file).await;
            }
        }
    }
}

/// All hosts, and their ways to the database.
fn all_hosts() -> Vec<Part> {
    let of_host = |host| [Part::Host(host), Part::Link(Way::Store, host)];
    (0..super::HOSTS).flat_map(of_host).chain([Part::Database]).collect()
}

/// Waits until the other hosts have ended one.
async fn until_ended(stage: &Stage, history: &History, host: usize) {
    let url = stage.hosts[host].agent_url();
    let alive = format!("SELECT count(*) FROM hosts WHERE agent_url = '{url}' AND ended_at IS NULL");
    until_none(stage, history, &alive).await;
}

/// Waits until whole records are in a file.
async fn until_recorded(history: &History, file: &Path) {
    let begun = history.clock.moment();
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        // The last line may be on its way.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let damaged = whole.lines().find(|line| serde_json::from_str::<serde_json::Value>(line).is_err());
        assert_eq!(damaged, None, "in the records after the disk was full");
        if !whole.is_empty() {
            return;
        }
        assert!(history.clock.moment().since(begun) < NOTICED_WITHIN, "nothing is recorded after the disk was full");
        history.clock.sleep(LOOK_EVERY).await;
    }
}

/// Waits until a statement counts nothing.
pub async fn until_none(stage: &Stage, history: &History, count: &str) {
    let begun = history.clock.moment();
    while stage.server.sql(count).await != "0" {
        assert!(history.clock.moment().since(begun) < NOTICED_WITHIN, "there is one still: {count}");
        history.clock.sleep(LOOK_EVERY).await;
    }
}

/// Two that do not concern the same, nor what is wrong already; one that finds no other stays alone.
fn by_twos(faults: Vec<Fault>, beside: &[Fault]) -> Vec<Together> {
    let mut left: Vec<_> =
        faults.into_iter().filter(|fault| beside.iter().all(|other| fault.can_be_beside(other))).collect();
    let mut together = Vec::new();
    while let Some(first) = left.pop() {
        let second = left.iter().rposition(|other| first.can_be_beside(other)).map(|place| left.remove(place));
        together.push([first].into_iter().chain(second).collect());
    }
    together
}
