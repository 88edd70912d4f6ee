//! The agent's command line.

mod doctor;
mod enrol;
mod foreground;
pub mod preset;
mod remote_control;
mod screen;

use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Args, Parser, Subcommand};
use culvert_wire::allowed_target::{AllowedTarget, ListError};
use culvert_wire::clock::Clock;
use culvert_wire::control::Failure;
use culvert_wire::socket;
use tokio_util::sync::CancellationToken;

use crate::VERSION;
use crate::agent::{Agent, Exit, Setup};
use crate::carrier::TransportChoice;
use crate::consent::Consent;
use crate::device::Device;
use crate::ipc::{self, Answer, NodeStatus, Request, Status, TunnelStatus};
use crate::output::print_line;
use crate::state_dir::StateDir;
use crate::target::LinkLocal;
use crate::targets::Targets;
use screen::{printable, printable_lines};

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
        /// Let clients of the API and the dashboard start and stop tunnels here, as `remote-control enable` does
        #[arg(long)]
        remote_control: bool,
    },
    /// Run the agent until it is stopped
    Run {
        /// Let tunnels that are started here lead to link-local addresses (169.254.0.0/16, fe80::/10), where
        /// clouds keep secrets
        #[arg(long)]
        allow_link_local: bool,
        /// What carries visitors to this device: `auto` is TLS and QUIC, as far as UDP is not blocked; `tcp` TLS alone;
        /// `quic` QUIC alone
        #[arg(long, value_name = "TRANSPORT", default_value = "auto")]
        transport: TransportChoice,
    },
    /// Show what the agent does
    Status,
    /// Try the ways to the server and to the nodes of the running tunnels, and say what is blocked
    Doctor,
    /// Let clients of the API start and stop tunnels on this device, or not
    #[command(subcommand)]
    RemoteControl(Decision),
    /// Say where remote control may lead
    #[command(subcommand)]
    Targets(Change),
    /// Make an http tunnel to a service of this device, for as long as this command runs
    Http(foreground::Http),
    /// Make a tcp tunnel to a service of this device, for as long as this command runs
    Tcp(foreground::Port),
    /// Make a udp tunnel to a service of this device, for as long as this command runs
    Udp(foreground::Port),
    /// Make a tunnel for tcp and udp on one public port, for as long as this command runs
    Both(foreground::Port),
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

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Text,
    Json,
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
            eprintln!("culvert-agent: {}", printable_lines(&problem.to_string()));
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
    #[error("{}", printable(&.0.detail))]
    Refused(Failure),
    #[error("{0} Start it with `--yes`, or allow it: `culvert-agent targets allow {1}`.")]
    NotAccepted(String, String),
    #[error("not started")]
    Declined,
    #[error("{}", foreground::refusal(.0))]
    Ended(Failure),
    #[error("the server could not be told that the tunnel ends; it deletes the tunnel in ten minutes")]
    NotDeleted,
    #[error("the server could not be told that the tunnel ends; it may run on until the server ends its lease")]
    NotStopped,
    #[error("{slug} is a preset of {protocol} tunnels: culvert-agent {protocol} --preset {slug}")]
    OtherProtocol { slug: &'static str, protocol: &'static str },
    #[error("--basic-auth: the password is empty")]
    NoPassword,
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
    let output = if cli.place.json { Output::Json } else { Output::Text };
    match cli.command {
        Commands::Enroll { server, code, name, remote_control } => {
            enrol::enrol(&state, &server, code, name, remote_control, output).await?;
        }
        Commands::Run { allow_link_local, transport } => return run_agent(state, allow_link_local, transport).await,
        Commands::Status => status(&state, output).await?,
        Commands::Doctor => doctor::doctor(&state, output).await?,
        Commands::RemoteControl(decision) => remote_control::remote_control(&state, decision, output).await?,
        Commands::Targets(change) => remote_control::change_targets(&state, change, output).await?,
        Commands::Http(http) => foreground::serve(state, http.wanted(&Clock::system())?, output).await?,
        Commands::Tcp(port) => foreground::serve(state, port.wanted("tcp", &Clock::system())?, output).await?,
        Commands::Udp(port) => foreground::serve(state, port.wanted("udp", &Clock::system())?, output).await?,
        Commands::Both(port) => foreground::serve(state, port.wanted("both", &Clock::system())?, output).await?,
        Commands::Start { tunnel, yes } => {
            if let Answer::Started(tunnel) = start(&state, &tunnel, yes).await? {
                print(output, &tunnel, || started(&tunnel));
            }
        }
        Commands::Stop { tunnel } => {
            let answer = ask(&state, Request::Stop { tunnel }).await?;
            if let Answer::Stopped { tunnel_id } = answer {
                print(output, &serde_json::json!({"tunnel_id": tunnel_id}), || "stopped".into());
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
        eprint!("{} Start it? [y/N] ", printable(&detail));
        let answer = read_line()?;
        if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            return Err(CliError::Declined);
        }
    }
    ask(state, wish(accept)).await
}

fn started(tunnel: &TunnelStatus) -> String {
    let mut text = tunnel.way();
    if let Some(error) = &tunnel.target_error {
        text += &format!("\nnothing answers there yet: {error}");
    }
    text
}

fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).into())
}

async fn run_agent(state: StateDir, allow_link_local: bool, transport: TransportChoice) -> Result<Exit, CliError> {
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
    let setup = Setup { state, device, clock: Clock::system(), link_local, transport, replaceable: true };
    match Agent::run(setup, stop).await {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(CliError::AlreadyRunning),
        ended => Ok(ended?),
    }
}

async fn status(state: &StateDir, output: Output) -> Result<(), CliError> {
    let running = ipc::ask(state, &Request::Status).await?;
    let (status, running) = match running {
        Some(Ok(Answer::Status(status))) => (status, true),
        Some(Err(failure)) => return Err(CliError::Refused(failure)),
        _ => (status_at_rest(state)?, false),
    };
    print(output, &serde_json::json!({"running": running, "agent": status}), || describe(&status, running));
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
        lease_seconds: None,
        remote_control: consent.state(),
        allowed_targets: Targets::open(state, consent.enabled())?.list(),
        nodes: Vec::new(),
        tunnels: Vec::new(),
    })
}

fn describe(status: &Status, running: bool) -> String {
    let Status { device_id, name, server, connected, remote_control, allowed_targets, nodes, tunnels, .. } = status;
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
    for NodeStatus { address, transport, warm, busy, round_trip_ms } in nodes {
        let trip = round_trip_ms.map(|ms| format!(", round trip {ms:.1} ms")).unwrap_or_default();
        text += &format!("\nnode            {address}: {transport}, {warm} warm and {busy} busy connections{trip}");
    }
    for tunnel in tunnels {
        text += &format!("\ntunnel          {}: {}", tunnel.name, tunnel.way());
        if let Some(error) = &tunnel.target_error {
            text += &format!(" ({error})");
        }
        let (visitors, bytes_in, bytes_out) = (tunnel.visitors, tunnel.bytes_in, tunnel.bytes_out);
        text += &format!("\n                connections {visitors}, bytes in {bytes_in}, out {bytes_out}");
    }
    text
}

async fn ask(state: &StateDir, request: Request) -> Result<Answer, CliError> {
    match ipc::ask(state, &request).await? {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(failure)) => Err(CliError::Refused(failure)),
        None if Device::load(state)?.is_none() => Err(CliError::NotEnrolled),
        None => Err(CliError::NotRunning),
    }
}

fn print(output: Output, value: &impl serde::Serialize, text: impl FnOnce() -> String) {
    match serde_json::to_string(value) {
        Ok(line) if output == Output::Json => print_line("culvert-agent", &line),
        _ => print_line("culvert-agent", &printable_lines(&text())),
    }
}
