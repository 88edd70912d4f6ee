//! Requests from people at the device.

use std::collections::HashMap;
use std::io;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::Agent;
use super::runs::{LocalStart, StartReply, not_running};
use crate::VERSION;
use crate::doctor;
use crate::ipc::{Answer, DoctorReport, IpcRequest, Reply, Request, Status};
use culvert_wire::allowed_target::{self, AllowedTarget};
use culvert_wire::clock::Moment;
use culvert_wire::control::{ConsentState, Failure, ToHost};
use culvert_wire::failure_code::FailureCode;

/// What is waiting for an answer or an event.
#[derive(Default)]
pub(super) struct Waiting {
    /// The URL of a host and the sender for a new connection to it, until its welcome arrives.
    pub host: Option<(String, mpsc::Sender<ToHost>)>,
    /// Operations whose tunnel is starting, by lease.
    pub operations: HashMap<Uuid, Uuid>,
    /// When the agent reported to the host that it is ready to begin an operation.
    pub ready: HashMap<Uuid, Moment>,
    /// Local starts that wait for the host's answer, by request.
    pub answers: HashMap<Uuid, LocalStart>,
    /// Local starts that wait for their tunnel to run, by lease.
    pub starts: HashMap<Uuid, Vec<StartReply>>,
    /// Requests that wait until the host has confirmed a consent.
    consents: Vec<(oneshot::Sender<Reply>, Decided)>,
    /// Leases that were stopped at the device and whose stop the host has not confirmed yet, by request.
    pub stops: HashMap<Uuid, Uuid>,
}

/// What a consent was signed for.
enum Decided {
    RemoteControl,
    Targets(Vec<AllowedTarget>),
}

impl Waiting {
    pub(super) fn fail_all(&mut self, detail: &str) {
        // Stops that were not confirmed are in the next hello.
        self.stops.clear();
        self.ready.clear();
        let wishes = self.answers.drain().filter_map(|(_, wish)| wish.into_reply());
        for reply in wishes.chain(self.consents.drain(..).map(|(reply, _)| reply)) {
            answer(reply, Err(Failure::new(FailureCode::NotConnected, detail)));
        }
    }

    pub(super) fn consent_confirmed(&mut self, state: ConsentState) {
        for (reply, decided) in self.consents.drain(..) {
            let said = match decided {
                Decided::RemoteControl => Answer::RemoteControl { state, confirmed: true },
                Decided::Targets(targets) => Answer::Targets { targets, confirmed: Some(true) },
            };
            answer(reply, Ok(said));
        }
    }
}

/// The caller may have gone. Then nobody needs the answer.
fn answer(to: oneshot::Sender<Reply>, reply: Reply) {
    let _ = to.send(reply);
}

pub(super) async fn take(agent: &mut Agent, request: IpcRequest) -> io::Result<()> {
    match request {
        IpcRequest::Once(request, reply) => take_once(agent, request, reply).await,
        IpcRequest::Foreground { id, wanted, updates } => {
            agent.begin_foreground(id, *wanted, updates);
            Ok(())
        }
        IpcRequest::Gone(id) => agent.end_foreground(id).await,
    }
}

async fn take_once(agent: &mut Agent, request: Request, reply: oneshot::Sender<Reply>) -> io::Result<()> {
    match request {
        Request::Status => answer(reply, Ok(Answer::Status(agent.status()))),
        Request::RemoteControl { enabled, allow } => agent.decide_consent(enabled, allow, reply).await?,
        Request::Targets { allow, revoke } => agent.change_targets(allow, &revoke, reply).await?,
        Request::Start { tunnel, accept } => agent.wish(tunnel, accept, StartReply::Start(reply)).await,
        Request::Stop { tunnel } => match agent.leases.find(&tunnel) {
            Some(lease_id) => {
                let tunnel_id = agent.stop_locally(lease_id).await?;
                answer(reply, tunnel_id.map(|tunnel_id| Answer::Stopped { tunnel_id }).ok_or_else(not_running));
            }
            None => answer(reply, Err(not_running())),
        },
        Request::Doctor => agent.examine(reply),
        Request::Foreground(_) => {}
    }
    Ok(())
}

impl Agent {
    /// The host that the agent is connected to, or else the one that the device enrolled with.
    fn server(&self) -> &str {
        self.host.as_ref().map_or(&self.device.server, |host| &host.server)
    }

    fn status(&self) -> Status {
        let mut tunnels: Vec<_> = self.leases.ids().into_iter().filter_map(|id| self.leases.status(id)).collect();
        tunnels.sort_by(|a, b| a.name.cmp(&b.name));
        Status {
            device_id: self.device.id,
            name: self.device.name.clone(),
            server: self.server().into(),
            version: VERSION.into(),
            connected: self.host.is_some(),
            lease_seconds: self.leases.next_expiry().map(|at| at.since(self.clock.moment()).as_secs()),
            remote_control: self.consent.state(),
            allowed_targets: self.targets.list(),
            nodes: self.leases.nodes(),
            tunnels,
        }
    }

    /// Tries the ways to the nodes, beside everything else.
    fn examine(&self, reply: oneshot::Sender<Reply>) {
        let (server, connected, clock) = (self.server().to_owned(), self.host.is_some(), self.clock.clone());
        let nodes = self.leases.node_addresses();
        tokio::spawn(async move {
            let mut nodes = join_all(nodes.iter().map(|node| doctor::examine(node, &clock))).await;
            nodes.sort_by(|a, b| a.address.cmp(&b.address));
            answer(reply, Ok(Answer::Doctor(DoctorReport { server, connected, nodes })));
        });
    }

    async fn decide_consent(
        &mut self,
        enabled: bool,
        allow: Vec<AllowedTarget>,
        reply: oneshot::Sender<Reply>,
    ) -> io::Result<()> {
        if enabled {
            match allowed_target::with(self.targets.list(), allowed_target::standard().into_iter().chain(allow)) {
                Ok(list) => self.targets.replace(list)?,
                Err(error) => {
                    answer(reply, Err(error.into()));
                    return Ok(());
                }
            }
        }
        let signed = self.consent.decide(enabled, &self.targets.list(), &self.device, &self.clock)?;
        if self.host.is_some() {
            self.waiting.consents.push((reply, Decided::RemoteControl));
            self.say(ToHost::Consent(signed)).await;
        } else {
            answer(reply, Ok(Answer::RemoteControl { state: self.consent.state(), confirmed: false }));
        }
        self.try_refused_again().await
    }

    /// Changes the list of allowed targets. While remote control is on, the new list is sent to the host.
    async fn change_targets(
        &mut self,
        allow: Vec<AllowedTarget>,
        revoke: &[AllowedTarget],
        reply: oneshot::Sender<Reply>,
    ) -> io::Result<()> {
        let before = self.targets.list();
        let changed =
            allowed_target::with(before.clone(), allow).and_then(|list| allowed_target::without(list, revoke));
        let targets = match changed {
            Ok(targets) => targets,
            Err(error) => {
                answer(reply, Err(error.into()));
                return Ok(());
            }
        };
        if targets == before {
            answer(reply, Ok(Answer::Targets { targets, confirmed: None }));
            return Ok(());
        }
        self.targets.replace(targets.clone())?;
        self.tell_targets(targets, reply).await?;
        self.try_refused_again().await
    }

    async fn tell_targets(&mut self, targets: Vec<AllowedTarget>, reply: oneshot::Sender<Reply>) -> io::Result<()> {
        if !self.consent.enabled() {
            answer(reply, Ok(Answer::Targets { targets, confirmed: None }));
            return Ok(());
        }
        let signed = self.consent.decide(true, &targets, &self.device, &self.clock)?;
        if self.host.is_some() {
            self.waiting.consents.push((reply, Decided::Targets(targets)));
            self.say(ToHost::Consent(signed)).await;
        } else {
            answer(reply, Ok(Answer::Targets { targets, confirmed: Some(false) }));
        }
        Ok(())
    }

    /// Tries refused targets again, because the changed list may allow them.
    async fn try_refused_again(&mut self) -> io::Result<()> {
        for (lease_id, target) in self.leases.refused() {
            self.retarget(lease_id, target).await?;
        }
        Ok(())
    }
}
