//! What goes wrong.

use std::time::Duration;

use tokio::process::Command;

use super::history::History;
use super::load::Random;
use super::stage::Stage;
use crate::support::host::within;
use crate::support::link::Mode;
use crate::support::server::Stop;

/// One thing that goes wrong for a while.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    KillHost(usize),
    /// `kill -STOP`, and then `-CONT`.
    SuspendHost(usize),
    /// A stop and a start in order.
    RestartHost(usize),
    KillAgent(usize),
    StopDatabase(Stop),
    /// The sessions of PostgreSQL that listen are ended.
    EndListeners,
    Store(usize, Mode),
    Agents(usize, Mode),
    ReloadPolicies(usize),
}

impl Fault {
    /// One of each kind, in an order that the seed says.
    pub fn each(random: &mut Random, hosts: usize, devices: usize) -> Vec<Self> {
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
        ];
        for mode in modes {
            faults.push(Self::Store(host(), mode));
            faults.push(Self::Agents(host(), mode));
        }
        faults.push(Self::KillAgent(random.below(devices)));
        let mut shuffled = Vec::new();
        while !faults.is_empty() {
            shuffled.push(faults.swap_remove(random.below(faults.len())));
        }
        shuffled
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
                *program = Some(within(60, host.place.serve()).await);
            }
            Self::SuspendHost(number) => {
                let program = stage.hosts[number].program.lock().await;
                let id = program.as_ref().unwrap().id();
                signal("-STOP", id).await;
                pause().await;
                signal("-CONT", id).await;
            }
            Self::RestartHost(number) => {
                let host = &stage.hosts[number];
                let mut program = host.program.lock().await;
                let ended = within(60, program.take().unwrap().terminate()).await;
                if ended != Some(0) {
                    history.note().wrong.push(format!("{self:?}: it ended with {ended:?}"));
                }
                *program = Some(within(60, host.place.serve()).await);
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
                stage.server.sql(END_LISTENERS).await;
            }
            Self::Store(number, mode) => {
                stage.hosts[number].store.set(mode);
                pause().await;
                stage.hosts[number].store.set(Mode::Pass);
            }
            Self::Agents(number, mode) => {
                stage.hosts[number].agents.set(mode);
                pause().await;
                stage.hosts[number].agents.set(Mode::Pass);
            }
            Self::ReloadPolicies(number) => {
                let output = within(120, stage.hosts[number].place.run("culvert policy reload")).await;
                if !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    history.note().wrong.push(format!("{self:?}: {said}"));
                }
            }
        }
    }
}

const END_LISTENERS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";

async fn signal(signal: &str, id: u32) {
    assert!(Command::new("kill").args([signal, &id.to_string()]).status().await.unwrap().success());
}
