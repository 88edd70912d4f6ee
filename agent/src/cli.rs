//! The agent's command line.

use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand};
use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, Exit, Setup, VERSION, platform};
use crate::consent::Consent;
use crate::device::{Device, DeviceKey};
use crate::ipc::{self, Answer, Request, Status, TunnelStatus};
use crate::state_dir::StateDir;
use crate::target::LinkLocal;
use crate::targets::Targets;
use culvert_wire::allowed_target::{self, AllowedTarget, ListError};
use culvert_wire::clock::Clock;
use culvert_wire::control::{Capability, Failure};
use culvert_wire::enrolment::{ENROL_PATH, Enrol, Enrolled};
use culvert_wire::socket;

/// Runs on a device and opens its tunnels.
#[derive(Parser)]
#[command(name = "culvert-agent", version)]
struct Cli {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Commands,
}

#[derive(Args)]
struct Place {
    /// The folder that holds the device's key and journal [default: ~/.local/state/culvert-agent]
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Commands {
    /// Make this machine a device of a Culvert server
    Enroll {
        /// The server's URL
        #[arg(long)]
        server: String,
        /// The one-time code from `culvert device code`; `-` reads it from standard input
        #[arg(long)]
        code: String,
        /// What the device is called [default: the machine's host name]
        #[arg(long)]
        name: Option<String>,
    },
    /// Run the agent until it is stopped
    Run {
        /// Let tunnels that are started here lead to link-local addresses (169.254.0.0/16, fe80::/10), where
        /// clouds keep secrets
        #[arg(long)]
        allow_link_local: bool,
    },
    /// Show what the agent does
    Status,
    /// Let clients of the API start and stop tunnels on this device, or not
    #[command(subcommand)]
    RemoteControl(Decision),
    /// Say where remote control may lead
    #[command(subcommand)]
    Targets(Change),
    /// Start a tunnel on this device
    Start {
        /// The tunnel's id or name
        tunnel: String,
        /// Start it also where it leads to a target that is not in this device's list
        #[arg(long)]
        yes: bool,
    },
    /// Stop a tunnel on this device
    Stop {
        /// The tunnel's id or name
        tunnel: String,
    },
}

#[derive(Subcommand)]
enum Decision {
    /// Let them, to targets on this machine and those that are allowed
    Enable {
        /// Allow a target elsewhere too: 10.0.0.5:5432, 10.0.0.0/24, [fd00::5]:443, db.internal
        #[arg(long, value_name = "TARGET")]
        allow: Vec<AllowedTarget>,
    },
    /// Do not let them
    Disable,
    /// Show whether they may
    Status,
}

#[derive(Subcommand)]
enum Change {
    /// Show the targets that are allowed
    List,
    /// Allow targets: an address, a network or a host name, with a port or without
    Allow {
        #[arg(required = true, value_name = "TARGET")]
        targets: Vec<AllowedTarget>,
    },
    /// Allow targets no longer, from their next connection on
    Revoke {
        #[arg(required = true, value_name = "TARGET")]
        targets: Vec<AllowedTarget>,
    },
}

/// Runs the command line that this process was started with.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

/// Runs a command line. `culvert agent …` comes here as well.
pub fn run(arguments: impl IntoIterator<Item = impl Into<std::ffi::OsString> + Clone>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // Two threads are enough to fill a network; more only cost memory.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.map_err(CliError::from).and_then(|runtime| runtime.block_on(execute(cli)));
    match ended {
        Ok(Exit::Stopped) => ExitCode::SUCCESS,
        Ok(Exit::Replace(program)) => replace(program),
        Err(problem) => {
            eprintln!("culvert-agent: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Puts a new process of the program in this one's place, with the same arguments.
fn replace(program: PathBuf) -> ExitCode {
    let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
    eprintln!("culvert-agent: the new process did not start: {error}");
    ExitCode::FAILURE
}

/// What the person at the terminal is told.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error("this machine is not enrolled; get a code with `culvert device code`, then `culvert-agent enroll`")]
    NotEnrolled,
    #[error("this machine is already the device {0}; use another --state-dir to enrol it again")]
    AlreadyEnrolled(uuid::Uuid),
    #[error("the agent is not running; start it with `culvert-agent run`")]
    NotRunning,
    #[error("another agent is running on this state folder")]
    AlreadyRunning,
    #[error("--server: {0}")]
    Server(String),
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    #[error("{}", .0.detail)]
    Refused(Failure),
    #[error("{0} Start it with `--yes`, or allow it: `culvert-agent targets allow {1}`.")]
    NotAccepted(String, String),
    #[error("not started")]
    Declined,
    #[error("--code: there is no code on standard input")]
    NoCode,
    #[error("{0}")]
    List(#[from] ListError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

async fn execute(cli: Cli) -> Result<Exit, CliError> {
    let folder = cli.place.state_dir.unwrap_or_else(StateDir::default_path);
    let state = StateDir::open(&folder)
        .map_err(|error| io::Error::new(error.kind(), format!("--state-dir {}: {error}", folder.display())))?;
    let json = cli.place.json;
    match cli.command {
        Commands::Enroll { server, code, name } => enrol(&state, &server, code, name, json).await?,
        Commands::Run { allow_link_local } => return run_agent(state, allow_link_local).await,
        Commands::Status => status(&state, json).await?,
        Commands::RemoteControl(decision) => remote_control(&state, decision, json).await?,
        Commands::Targets(change) => change_targets(&state, change, json).await?,
        Commands::Start { tunnel, yes } => {
            if let Answer::Started(tunnel) = start(&state, &tunnel, yes).await? {
                print(json, &tunnel, || started(&tunnel));
            }
        }
        Commands::Stop { tunnel } => {
            let answer = ask(&state, Request::Stop { tunnel }).await?;
            if let Answer::Stopped { tunnel_id } = answer {
                print(json, &serde_json::json!({"tunnel_id": tunnel_id}), || "stopped".into());
            }
        }
    }
    Ok(Exit::Stopped)
}

/// Starts a tunnel. Where it leads out of the list, somebody has to see where, and to want it.
async fn start(state: &StateDir, tunnel: &str, yes: bool) -> Result<Answer, CliError> {
    let wish = |accept| Request::Start { tunnel: tunnel.into(), accept };
    let Failure { detail, accept, .. } = match ask(state, wish(None)).await {
        Err(CliError::Refused(failure)) if failure.accept.is_some() => failure,
        answered => return answered,
    };
    if !yes {
        if !io::stdin().is_terminal() {
            return Err(CliError::NotAccepted(detail, accept.unwrap_or_default()));
        }
        eprint!("{detail} Start it? [y/N] ");
        let answer = read_line()?;
        if !matches!(answer.to_ascii_lowercase().as_str(), "y" | "yes") {
            return Err(CliError::Declined);
        }
    }
    ask(state, wish(accept)).await
}

fn started(tunnel: &TunnelStatus) -> String {
    let mut text = format!("{} → {}", tunnel.public_address, tunnel.local_target);
    if let Some(error) = &tunnel.target_error {
        text += &format!("\nnothing answers there yet: {error}");
    }
    text
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line.trim().into())
}

/// The code itself, which others on the machine would see among the arguments.
fn read_code(code: String) -> Result<String, CliError> {
    if code != "-" {
        return Ok(code);
    }
    Some(read_line()?).filter(|code| !code.is_empty()).ok_or(CliError::NoCode)
}

async fn enrol(state: &StateDir, server: &str, code: String, name: Option<String>, json: bool) -> Result<(), CliError> {
    if let Some(device) = Device::load(state)? {
        return Err(CliError::AlreadyEnrolled(device.id));
    }
    let (server, client) = (server_url(server)?, client(server)?);
    let code = read_code(code)?;
    let key = DeviceKey::generate(&Clock::system());
    let enrol = Enrol {
        code,
        name: name.or_else(host_name),
        platform: platform(),
        version: VERSION.into(),
        capabilities: Capability::ALL.map(String::from).into(),
        public_key: key.public(),
    };
    let request = client.post(format!("{server}{ENROL_PATH}")).json(&enrol);
    let response = request.send().await.map_err(unreachable)?;
    if !response.status().is_success() {
        let status = response.status();
        let failure = response.json().await;
        return Err(CliError::Refused(failure.unwrap_or_else(|_| Failure::new("refused", status.to_string()))));
    }
    let Enrolled { device_id, name } = response.json().await.map_err(unreachable)?;
    let device = Device { id: device_id, name, server, key };
    device.save(state)?;
    print(json, &serde_json::json!({"device_id": device.id, "name": device.name, "server": device.server}), || {
        let name = device.name.as_deref().unwrap_or("this machine");
        format!("{name} is now the device {}. Run it with `culvert-agent run`.", device.id)
    });
    Ok(())
}

fn unreachable(error: reqwest::Error) -> CliError {
    CliError::Unreachable(chain(&error))
}

/// What sends the code to the server that was named and to nobody else: no redirect takes it on, and
/// no proxy sees it on its way to this machine itself.
fn client(server: &str) -> Result<reqwest::Client, CliError> {
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let local = reqwest::Url::parse(server).is_ok_and(|url| is_loopback(&url));
    let builder = if local { builder.no_proxy() } else { builder };
    builder.build().map_err(unreachable)
}

fn is_loopback(url: &reqwest::Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        None => false,
    }
}

/// The server's base URL. Over plain HTTP the code would be there to be read on the way, so that is
/// for this machine alone.
fn server_url(server: &str) -> Result<String, CliError> {
    let url = reqwest::Url::parse(server).map_err(|error| CliError::Server(error.to_string()))?;
    match url.scheme() {
        "https" => {}
        "http" if is_loopback(&url) => {}
        "http" => return Err(CliError::Server("http:// is for loopback only; use https://".into())),
        other => return Err(CliError::Server(format!("{other}:// is no https:// URL"))),
    }
    Ok(url.as_str().trim_end_matches('/').into())
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

async fn run_agent(state: StateDir, allow_link_local: bool) -> Result<Exit, CliError> {
    let device = Device::load(&state)?.ok_or(CliError::NotEnrolled)?;
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new("info"))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    socket::allow_many();
    let link_local = if allow_link_local { LinkLocal::Allowed } else { LinkLocal::Refused };
    let stop = CancellationToken::new();
    let signalled = stop.clone();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        signalled.cancel();
    });
    let setup = Setup { state, device, clock: Clock::system(), link_local };
    match Agent::run(setup, stop).await {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(CliError::AlreadyRunning),
        ended => Ok(ended?),
    }
}

async fn status(state: &StateDir, json: bool) -> Result<(), CliError> {
    let running = ipc::ask(state, &Request::Status).await?;
    let (status, running) = match running {
        Some(Ok(Answer::Status(status))) => (status, true),
        Some(Err(failure)) => return Err(CliError::Refused(failure)),
        _ => (status_at_rest(state)?, false),
    };
    print(json, &serde_json::json!({"running": running, "agent": status}), || describe(&status, running));
    Ok(())
}

fn status_at_rest(state: &StateDir) -> Result<Status, CliError> {
    let device = Device::load(state)?.ok_or(CliError::NotEnrolled)?;
    let consent = Consent::load(state)?;
    Ok(Status {
        device_id: device.id,
        name: device.name,
        server: device.server,
        version: VERSION.into(),
        connected: false,
        remote_control: consent.state(),
        allowed_targets: Targets::open(state, consent.enabled())?.list(),
        tunnels: Vec::new(),
    })
}

fn describe(status: &Status, running: bool) -> String {
    let Status { device_id, name, server, connected, remote_control, allowed_targets, tunnels, .. } = status;
    let state = match (running, connected) {
        (true, true) => "connected",
        (true, false) => "running, not connected",
        (false, _) => "not running",
    };
    let consent = if remote_control.enabled { "enabled" } else { "disabled" };
    let name = name.as_deref().unwrap_or("-");
    let mut text = format!(
        "device          {device_id} ({name})\nserver          {server}\nagent           {state}\nremote control  {consent}"
    );
    for target in allowed_targets {
        text += &format!("\nmay lead to     {target}");
    }
    for tunnel in tunnels {
        text += &format!("\ntunnel          {}: {} → {}", tunnel.name, tunnel.public_address, tunnel.local_target);
        if let Some(error) = &tunnel.target_error {
            text += &format!(" ({error})");
        }
    }
    text
}

async fn remote_control(state: &StateDir, decision: Decision, json: bool) -> Result<(), CliError> {
    let (enabled, allow) = match decision {
        Decision::Status => return consent_status(state, json),
        Decision::Enable { allow } => (true, allow),
        Decision::Disable => (false, Vec::new()),
    };
    let request = Request::RemoteControl { enabled, allow: allow.clone() };
    let (now, confirmed) = match ipc::ask(state, &request).await? {
        Some(Ok(Answer::RemoteControl { state, confirmed })) => (state, confirmed),
        Some(Err(failure)) => return Err(CliError::Refused(failure)),
        _ => {
            // No agent runs, so the decision waits in the state folder for the next one.
            let device = Device::load(state)?.ok_or(CliError::NotEnrolled)?;
            let mut consent = Consent::load(state)?;
            let list = Targets::open(state, consent.enabled())?;
            if enabled {
                list.replace(allowed_target::with(list.list(), allowed_target::standard().into_iter().chain(allow))?)?;
            }
            consent.decide(enabled, &list.list(), &device, &Clock::system())?;
            (consent.state(), false)
        }
    };
    let word = if now.enabled { "enabled" } else { "disabled" };
    print(json, &serde_json::json!({"remote_control_enabled": now.enabled, "confirmed": confirmed}), || {
        let later = if confirmed { "" } else { "; the server will hear of it when the agent next connects" };
        format!("remote control is {word}{later}")
    });
    if now.enabled == enabled {
        Ok(())
    } else {
        let detail = "it was turned off on the server meanwhile; decide again";
        Err(CliError::Refused(Failure::new("consent_outdated", detail)))
    }
}

/// Shows the list of allowed targets, or changes it.
async fn change_targets(state: &StateDir, change: Change, json: bool) -> Result<(), CliError> {
    let (allow, revoke) = match change {
        Change::List => (Vec::new(), Vec::new()),
        Change::Allow { targets } => (targets, Vec::new()),
        Change::Revoke { targets } => (Vec::new(), targets),
    };
    let request = Request::Targets { allow: allow.clone(), revoke: revoke.clone() };
    let (list, confirmed) = match ipc::ask(state, &request).await? {
        Some(Ok(Answer::Targets { targets, confirmed })) => (targets, confirmed),
        Some(Err(failure)) => return Err(CliError::Refused(failure)),
        _ => change_at_rest(state, allow, &revoke)?,
    };
    print(json, &serde_json::json!({"targets": list, "confirmed": confirmed}), || {
        let mut lines: Vec<_> = list.iter().map(ToString::to_string).collect();
        if confirmed == Some(false) {
            lines.push("the server will hear of it when the agent next connects".into());
        }
        lines.join("\n")
    });
    Ok(())
}

/// No agent runs, so the change waits in the state folder for the next one.
fn change_at_rest(
    state: &StateDir,
    allow: Vec<AllowedTarget>,
    revoke: &[AllowedTarget],
) -> Result<(Vec<AllowedTarget>, Option<bool>), CliError> {
    let device = Device::load(state)?.ok_or(CliError::NotEnrolled)?;
    let mut consent = Consent::load(state)?;
    let targets = Targets::open(state, consent.enabled())?;
    let before = targets.list();
    let list = allowed_target::without(allowed_target::with(before.clone(), allow)?, revoke)?;
    if list == before {
        return Ok((list, None));
    }
    targets.replace(list.clone())?;
    if consent.enabled() {
        consent.decide(true, &list, &device, &Clock::system())?;
    }
    Ok((list, consent.enabled().then_some(false)))
}

fn consent_status(state: &StateDir, json: bool) -> Result<(), CliError> {
    Device::load(state)?.ok_or(CliError::NotEnrolled)?;
    let enabled = Consent::load(state)?.enabled();
    let word = if enabled { "enabled" } else { "disabled" };
    print(json, &serde_json::json!({"remote_control_enabled": enabled}), || format!("remote control is {word}"));
    Ok(())
}

async fn ask(state: &StateDir, request: Request) -> Result<Answer, CliError> {
    match ipc::ask(state, &request).await? {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(failure)) => Err(CliError::Refused(failure)),
        None if Device::load(state)?.is_none() => Err(CliError::NotEnrolled),
        None => Err(CliError::NotRunning),
    }
}

#[expect(clippy::print_stdout, reason = "this is what the command is for")]
fn print(json: bool, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
    match serde_json::to_string(value) {
        Ok(line) if json => println!("{line}"),
        _ => println!("{}", text()),
    }
}
