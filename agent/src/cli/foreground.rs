//! `http`, `tcp`, `udp` and `both`: a tunnel for as long as the command runs.

use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::Failure;
use culvert_wire::socket;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::preset::Preset;
use super::screen::{Screen, printable};
use super::{CliError, Output, read_line};
use crate::agent::{Agent, Exit, Setup};
use crate::carrier::TransportChoice;
use crate::device::Device;
use crate::ipc::{Answer, Attendance, ForegroundState, ForegroundStatus, WantedTunnel};
use crate::state_dir::StateDir;
use crate::target::LinkLocal;

/// How long the command waits for another agent when the one that it used has ended, before it runs one itself.
const AGENT_BACK_WITHIN: Duration = Duration::from_secs(5);
/// How long the end of the tunnel may take.
const END_WITHIN: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// Where a service is of which only the port is said.
const LOOPBACK: &str = "127.0.0.1";

/// A local service: `3000`, `nas:8080`, `[::1]:3000`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LocalService {
    host: String,
    port: u16,
}

impl FromStr for LocalService {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or((LOOPBACK, text));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let port = port.parse::<u16>().ok().filter(|port| *port > 0);
        match (bare.unwrap_or(host), port) {
            (host, Some(port)) if !host.is_empty() && (bare.is_some() || !host.contains(':')) => {
                Ok(Self { host: host.into(), port })
            }
            _ => Err("must be a port from 1 to 65535, or a host and a port: 3000, nas:8080, [::1]:3000".into()),
        }
    }
}

#[derive(Args)]
pub(super) struct Http {
    #[command(flatten)]
    common: Common,
    /// The first label of its name [default: a generated one]
    #[arg(long)]
    subdomain: Option<String>,
    /// Ask visitors for this name and password; a password that is not given is asked for
    #[arg(long, value_name = "USER[:PASSWORD]")]
    basic_auth: Option<String>,
    /// Serve HTTP alone, without a certificate
    #[arg(long)]
    no_https: bool,
    /// How the service is spoken to: auto, http, https or h2c
    #[arg(long, value_name = "SCHEME")]
    local_scheme: Option<String>,
}

/// A tunnel with a public port.
#[derive(Args)]
pub(super) struct Port {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// The local service: a port of this machine, or host:port [default: that of the preset]
    #[arg(value_name = "PORT|HOST:PORT", required_unless_present = "preset")]
    service: Option<LocalService>,
    /// Name, service and extra ports of a preset: minecraft-bedrock, valheim, ssh
    #[arg(long, value_name = "PRESET")]
    preset: Option<Preset>,
    /// Tell the service who visitors are by the PROXY protocol: v1 (tcp, http), v2, spp (udp)
    #[arg(long, value_name = "VERSION")]
    proxy_protocol: Option<String>,
    /// What the tunnel is called [default: the protocol and the service]
    #[arg(long)]
    name: Option<String>,
    /// The region of its node
    #[arg(long)]
    region: Option<String>,
    /// Keep the tunnel when the command ends; it is only stopped then
    #[arg(long)]
    keep: bool,
}

impl Http {
    pub(super) fn wanted(self, clock: &Clock) -> Result<WantedTunnel, CliError> {
        let mut wanted = self.common.wanted("http", clock)?;
        set(&mut wanted.body, "local_scheme", self.local_scheme.map(Value::from));
        set(&mut wanted.body, "subdomain", self.subdomain.map(Value::from));
        set(&mut wanted.body, "http_ssl_enabled", self.no_https.then_some(Value::from(false)));
        if let Some(user) = self.basic_auth {
            let (user, password) = match user.split_once(':') {
                Some((user, password)) => (user.to_owned(), password.to_owned()),
                None => (user, ask_password()?),
            };
            set(&mut wanted.body, "http_basic_auth_enabled", Some(true.into()));
            set(&mut wanted.body, "http_basic_auth_username", Some(user.into()));
            set(&mut wanted.body, "http_basic_auth_password", Some(password.into()));
        }
        Ok(wanted)
    }
}

impl Port {
    pub(super) fn wanted(self, protocol: &str, clock: &Clock) -> Result<WantedTunnel, CliError> {
        self.common.wanted(protocol, clock)
    }
}

impl Common {
    fn wanted(self, protocol: &str, clock: &Clock) -> Result<WantedTunnel, CliError> {
        if let Some(Preset { slug, protocol, .. }) = self.preset.filter(|preset| preset.protocol != protocol) {
            return Err(CliError::OtherProtocol { slug, protocol });
        }
        let of_preset = |preset: Preset| LocalService { host: LOOPBACK.into(), port: preset.local_port };
        // One of the two is given.
        let LocalService { host, port } = self.service.or(self.preset.map(of_preset)).unwrap_or_default();
        let service = if host == LOOPBACK { port.to_string() } else { format!("{host}:{port}") };
        // A preset has a name.
        let name = self.name.or_else(|| self.preset.is_none().then(|| format!("{protocol} {service}")));
        let mut body = json!({ "protocol": protocol, "local_host": host, "local_port": port });
        set(&mut body, "name", name.map(Value::from));
        set(&mut body, "game_preset_id", self.preset.map(|preset| Value::from(preset.id.to_string())));
        set(&mut body, "proxy_protocol", self.proxy_protocol.map(Value::from));
        set(&mut body, "region", self.region.map(Value::from));
        let extra_ports = self.preset.map(|preset| preset.extra_ports.to_vec()).unwrap_or_default();
        Ok(WantedTunnel {
            body,
            extra_ports,
            keep: self.keep,
            creation_id: Some(clock.id()),
            tunnel_id: None,
            ran_at: None,
        })
    }
}

fn set(body: &mut Value, field: &str, value: Option<Value>) {
    if let (Some(fields), Some(value)) = (body.as_object_mut(), value) {
        fields.insert(field.into(), value);
    }
}

/// The password, without showing it; from a pipe, its first line.
fn ask_password() -> Result<String, CliError> {
    let password =
        if io::stdin().is_terminal() { rpassword::prompt_password("Password for visitors: ")? } else { read_line()? };
    if password.is_empty() { Err(CliError::NoPassword) } else { Ok(password) }
}

/// Makes the tunnel and serves it, until the command is ended.
pub(super) async fn serve(state: StateDir, wanted: WantedTunnel, output: Output) -> Result<(), CliError> {
    Device::load(&state)?.ok_or(CliError::NotEnrolled)?;
    let mut command = Foreground {
        screen: Screen::new(output),
        signals: Signals::new()?,
        agent: None,
        clock: Clock::system(),
        state,
        wanted,
        is_running: false,
    };
    let ended = command.run().await;
    command.screen.close();
    if let Some(agent) = command.agent {
        agent.end().await;
    }
    ended
}

struct Foreground {
    state: StateDir,
    wanted: WantedTunnel,
    screen: Screen,
    signals: Signals,
    /// This process as the agent, where no other one runs.
    agent: Option<OwnAgent>,
    clock: Clock,
    /// Whether the tunnel ran when the agent last said something.
    is_running: bool,
}

/// How a connection to the agent ended.
enum Followed {
    /// The agent has gone.
    Lost,
    Ended(Result<(), CliError>),
}

impl Foreground {
    async fn run(&mut self) -> Result<(), CliError> {
        let mut own_from = self.clock.moment();
        loop {
            let Some(attendance) = self.attend(own_from).await? else { return Ok(()) };
            match self.follow(attendance).await {
                Followed::Ended(outcome) => return outcome,
                Followed::Lost => {
                    if self.is_running {
                        self.wanted.ran_at = Some(self.clock.now());
                    }
                    self.screen.say("the agent has ended; waiting for it");
                }
            }
            own_from = self.clock.moment().plus(AGENT_BACK_WITHIN);
        }
    }

    /// Asks the running agent for the tunnel. From `own_from` on, this process is the agent if none runs. `None` if
    /// the command is ended before.
    async fn attend(&mut self, own_from: Moment) -> Result<Option<Attendance>, CliError> {
        loop {
            if let Some(attendance) = Attendance::begin(&self.state, &self.wanted).await? {
                return Ok(Some(attendance));
            }
            if let Some(agent) = self.agent.take_if(|agent| agent.task.is_finished()) {
                agent.outcome().await?;
            }
            if self.agent.is_none() && self.clock.moment() >= own_from {
                self.agent = Some(OwnAgent::start(&self.state, &self.clock)?);
            }
            tokio::select! {
                () = self.signals.next() => return Ok(None),
                () = self.clock.sleep(POLL) => {}
            }
        }
    }

    /// Shows what the tunnel does, until it or the command ends.
    async fn follow(&mut self, mut attendance: Attendance) -> Followed {
        let mut give_up = None;
        loop {
            let gave_up = async {
                match give_up {
                    Some(at) => self.clock.until(at).await,
                    None => std::future::pending().await,
                }
            };
            let ends = tokio::select! {
                reply = attendance.next() => match reply {
                    Some(Ok(Answer::Foreground(status))) => {
                        self.note(&status);
                        // Whoever has closed the output wants no more of it.
                        self.screen.show(*status).is_err() && give_up.is_none()
                    }
                    Some(Ok(_)) => return Followed::Ended(Ok(())),
                    Some(Err(failure)) => return Followed::Ended(Err(CliError::Ended(failure))),
                    None if give_up.is_some() => return Followed::Ended(self.not_confirmed()),
                    None => return Followed::Lost,
                },
                () = self.signals.next() => true,
                () = gave_up => return Followed::Ended(self.not_confirmed()),
            };
            if ends && give_up.is_some() {
                return Followed::Ended(self.not_confirmed());
            }
            if ends {
                attendance.end().await;
                give_up = Some(self.clock.moment().plus(END_WITHIN));
            }
        }
    }

    /// What another agent needs to know to go on.
    fn note(&mut self, status: &ForegroundStatus) {
        (self.wanted.tunnel_id, self.wanted.creation_id) = (status.tunnel_id, status.creation_id);
        self.is_running = status.state == ForegroundState::Running;
        if self.is_running {
            self.wanted.ran_at = Some(self.clock.now());
        }
    }

    fn not_confirmed(&self) -> Result<(), CliError> {
        Err(if self.wanted.keep { CliError::NotStopped } else { CliError::NotDeleted })
    }
}

/// The agent in this process.
struct OwnAgent {
    stop: CancellationToken,
    task: JoinHandle<io::Result<Exit>>,
}

impl OwnAgent {
    fn start(state: &StateDir, clock: &Clock) -> Result<Self, CliError> {
        socket::allow_many();
        let device = Device::load(state)?.ok_or(CliError::NotEnrolled)?;
        let (state, clock, link_local) = (state.clone(), clock.clone(), LinkLocal::Refused);
        // A new process would not know of this command's tunnel.
        let setup = Setup { state, device, clock, link_local, transport: TransportChoice::Auto, replaceable: false };
        let stop = CancellationToken::new();
        let task = tokio::spawn(Agent::run(setup, stop.clone()));
        Ok(Self { stop, task })
    }

    /// Why it has ended. Another agent on the folder is no error: the command uses that one.
    async fn outcome(self) -> io::Result<()> {
        match self.task.await {
            Ok(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    async fn end(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

/// The signals that end the command.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// A refusal with its code and rule, and a line for each field that is wrong.
pub(super) fn refusal(failure: &Failure) -> String {
    let by = |rule: &Option<String>| rule.as_ref().map(|rule| format!(", rule {rule}")).unwrap_or_default();
    let detail = if failure.faults.is_empty() { &failure.detail } else { "The server refuses the tunnel:" };
    let mut text = printable(&format!("{detail} ({}{})", failure.code, by(&failure.rule)));
    for fault in &failure.faults {
        let rule = fault.rule.as_ref().map(|rule| format!(" (rule {rule})")).unwrap_or_default();
        text += &format!("\n  {}", printable(&format!("{} {}{rule}", fault.field, fault.message)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_a_port_or_a_host_and_a_port() {
        let parsed = |text: &str| text.parse::<LocalService>().map(|s| (s.host, s.port)).ok();
        assert_eq!(parsed("3000"), Some(("127.0.0.1".into(), 3000)));
        assert_eq!(parsed("nas:8080"), Some(("nas".into(), 8080)));
        assert_eq!(parsed("[::1]:22"), Some(("::1".into(), 22)));
        for wrong in ["", "0", "65536", "nas", ":80", "nas:", "::1", "[]:80", "http://nas:80/"] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
