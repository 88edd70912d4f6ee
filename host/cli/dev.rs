//! `culvert dev`: the whole service on one machine, with a tunnel that works.
//!
//! Nothing here is special: the host is the real one, the agent is a process of its own, and the
//! tunnel is made through the public API.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use culvert_agent::output::print_line;
use culvert_domain::audit_log::Actor;
use culvert_wire::clock::Clock;
use reqwest::{Client, Method, RequestBuilder, Response};
use salvo::conn::TcpListener;
use salvo::writing::Text;
use salvo::{Depot, FlowCtrl, Handler, Listener, Request, Router, Server, async_trait};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::account::entrance;
use super::{CliError, PROGRAM, refused, serve};
use crate::app::App;
use crate::claim;
use crate::config::{Config, ConfigError};
use culvert_domain::permission::{PermissionPreset, Permissions};
use culvert_domain::sign_in::RequireSecondFactor;
use culvert_policy::load::chain::Trust;
use culvert_service::api_keys::{self, NewKey};
use culvert_service::links;
use culvert_service::{accounts, enrolment};
use culvert_store::keys::DeviceCode;

const EMAIL: &str = "dev@culvert.test";
const NAME: &str = "dev";
/// Where everything is kept, unless the configuration says otherwise.
const FOLDER: &str = "culvert-dev";
const NOTES: &str = "dev.json";
/// How long the pieces have to find each other.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);

/// What a second start finds again. The key is in it, so the file is for this user alone.
#[derive(Serialize, Deserialize)]
struct Notes {
    key: String,
    device_id: Uuid,
    tunnel_id: Uuid,
    /// The http tunnel. A folder of an earlier version has none yet, and a node without names takes none.
    #[serde(default)]
    web_tunnel_id: Option<Uuid>,
}

pub(super) async fn run(mut config: Config) -> Result<(), CliError> {
    config.data_dir = data_dir(&config);
    // Whoever tries a policy out builds it again and again.
    config.trust = Trust::Path;
    // It is for one person's machine, and its links are printed there.
    config.dashboard.require_second_factor = RequireSecondFactor::Never;
    serve::log(config.log.format, "warn");
    let folder = config.data_dir.clone();
    let mut stop = serve::StopSignals::listen().map_err(refused)?;
    let Some(host) = serve::start(config, &mut stop).await? else { return Ok(()) };
    let (sample, sample_server) = sample_service().await?;
    let api = format!("http://{}/v2", host.address);
    let mut agent = None;
    let ended = tokio::select! {
        ready = set_up(&host.app, &api, &folder, sample, &mut agent) => match ready {
            Ok(introduction) => {
                print_line(PROGRAM, &introduction);
                tokio::select! {
                    () = stop.next() => Ok(()),
                    cause = host.app.service.fleet().until_it_ends() => Err(claim::end_of(cause, &host.app.config).into()),
                }
            }
            Err(problem) => Err(problem),
        },
        () = stop.next() => Ok(()),
    };
    if let Some(agent) = agent {
        end(agent).await;
    }
    sample_server.abort();
    host.stop().await;
    ended
}

/// Where this command keeps everything.
pub(super) fn data_dir(config: &Config) -> PathBuf {
    if config.data_dir == Config::default().data_dir { FOLDER.into() } else { config.data_dir.clone() }
}

async fn set_up(
    app: &App,
    api: &str,
    folder: &Path,
    sample: SocketAddr,
    agent: &mut Option<Child>,
) -> Result<String, CliError> {
    let state = folder.join("agent");
    let notes = read_notes(folder)?;
    let (key, device_id) = if let Some(notes) = &notes {
        (notes.key.clone(), notes.device_id)
    } else {
        let (key, code) = first_account(app).await?;
        (key, enrol(api, &state, &code).await?)
    };
    *agent = Some(run_agent(folder, &state)?);
    let client = ApiClient { api: api.into(), key, clock: app.clock.clone(), http: Client::new() };
    client.wait(&format!("devices/{device_id}"), |device| device["online"] == true).await?;
    let tunnel_id = match &notes {
        Some(notes) => notes.tunnel_id,
        None => client.create_tunnel(json!({"name": "hello", "local_port": sample.port()})).await?,
    };
    let web_tunnel_id = match notes.and_then(|notes| notes.web_tunnel_id) {
        Some(known) => Some(known),
        None if takes_http(app) => Some(client.create_tunnel(web_tunnel(sample.port())).await?),
        None => None,
    };
    write_notes(folder, &Notes { key: client.key.clone(), device_id, tunnel_id, web_tunnel_id })?;
    let tunnel = client.start(tunnel_id, device_id, sample.port()).await?;
    let web = match web_tunnel_id.filter(|_| takes_http(app)) {
        Some(web_tunnel_id) => Some(client.start(web_tunnel_id, device_id, sample.port()).await?),
        None => None,
    };
    let names = web.iter().flat_map(|tunnel| names(app, tunnel)).collect();
    Ok(introduction(&client, &tunnel, names, &dashboard(app).await?, folder))
}

/// Whether the node gives names to http tunnels.
fn takes_http(app: &App) -> bool {
    app.config.node.domain.is_some() && app.config.node.http_listen.address().is_some()
}

fn web_tunnel(port: u16) -> Value {
    json!({
        "name": "hello-web", "protocol": "http", "subdomain": "hello", "local_port": port, "http_ssl_enabled": false,
    })
}

/// The URL of the http tunnel, and the one by HTTPS, each with what curl needs for it. The domain's certificate covers
/// the name although the tunnel does not ask for HTTPS.
fn names(app: &App, web: &Value) -> Vec<(String, String)> {
    let address = &web["public_address"];
    let url = address["url"].as_str().unwrap_or_default().to_owned();
    let in_the_clear = (url.clone(), format!("curl {url}"));
    let config = &app.config.node;
    let (Some(port), Some(domain), Some(name)) =
        (config.public_https_port(), &config.domain, address["hostname"].as_str())
    else {
        return vec![in_the_clear];
    };
    let url = format!("https://{name}:{port}");
    let root = app.config.ca_dir().join(domain).join("root.pem");
    let fetch = format!("curl --cacert {} {url}", root.display());
    vec![in_the_clear, (url, fetch)]
}

/// The line with a link into the dashboard, which can be used once: the next start prints another.
async fn dashboard(app: &App) -> Result<String, CliError> {
    let account = app.store.account_by_email(EMAIL).await?.filter(|_| app.dashboard.is_some());
    let Some(account) = account else { return Ok(String::new()) };
    accounts::set_operator(&app.store, account.id, true, Actor::CLI).await?;
    let link = links::create(&app.store, account.id).await?;
    Ok(format!("dashboard      {}\n    ", entrance(&app.config, &link.secret)))
}

fn introduction(
    client: &ApiClient,
    tunnel: &Value,
    names: Vec<(String, String)>,
    dashboard: &str,
    folder: &Path,
) -> String {
    let address = &tunnel["public_address"];
    let public = format!("{}:{}", address["hostname"].as_str().unwrap_or_default(), address["port"]);
    let target = format!("{}:{}", tunnel["local_host"].as_str().unwrap_or_default(), tunnel["local_port"]);
    let ApiClient { api, key, .. } = client;
    let auth = format!("-H 'Authorization: Bearer {key}'");
    let documentation = api.trim_end_matches("/v2");
    let id = tunnel["id"].as_str().unwrap_or_default();
    // Another one every time: with the same, tomorrow's stop would be answered with today's.
    let stop_key = client.clock.id();
    let named: Vec<String> = names.iter().map(|(url, _)| format!("{url}  →  the same, by name\n    ")).collect();
    let visit: Vec<String> = names.iter().map(|(_, fetch)| format!("{fetch}\n    ")).collect();
    let (named, visit) = (named.concat(), visit.concat());
    format!(
        "Culvert is running:\n\n    \
         http://{public}  →  this machine, {target}\n    {named}\n    \
         {dashboard}\
         API            {api}\n    \
         API key        {key}\n    \
         documentation  {documentation}/docs\n    \
         data           {}\n\n\
         Try:\n\n    \
         curl http://{public}\n    {visit}\
         curl {auth} {api}/tunnels/{id}\n    \
         curl {auth} -X POST {api}/tunnels/{id}/actions/stop -H 'Idempotency-Key: {stop_key}'\n\n\
         Ctrl-C ends it; the next start finds everything again.",
        folder.display(),
    )
}

/// An account with a key and an enrolment code, as the operator's commands make them.
async fn first_account(app: &App) -> Result<(String, String), CliError> {
    let account = match app.store.account_by_email(EMAIL).await? {
        Some(account) => account,
        None => accounts::create(&app.store, EMAIL.into(), NAME.into(), app.service.default_plan()).await?,
    };
    let permissions = PermissionPreset::ALL.iter().find(|preset| preset.id == "full_access");
    let permissions = permissions.map_or(Permissions::default(), PermissionPreset::permissions);
    let NewKey { key, .. } = api_keys::create(&app.store, account.id, account.id, permissions, None, "dev").await?;
    let (code, _) = enrolment::create_code(
        &app.store,
        DeviceCode { account_id: account.id, scope_id: account.id, may_create: true },
    )
    .await?;
    Ok((key.reveal().into(), code.reveal().into()))
}

/// This program, as the agent.
fn agent_command(state: &Path) -> Result<Command, CliError> {
    let mut command = Command::new(std::env::current_exe().map_err(refused)?);
    command.arg("agent").arg("--state-dir").arg(state).stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

/// Makes this machine a device, and lets it be controlled from afar: it is its owner who runs this.
async fn enrol(api: &str, state: &Path, code: &str) -> Result<Uuid, CliError> {
    // A former start that did not get this far has left a device that nobody knows.
    let _ = fs::remove_dir_all(state);
    let server = api.trim_end_matches("/v2");
    let mut enrol = agent_command(state)?;
    enrol.args(["--json", "enroll", "--server", server, "--code", code, "--name", NAME]);
    let output = enrol.output().await.map_err(refused)?;
    if !output.status.success() {
        return Err(refused(String::from_utf8_lossy(&output.stderr).trim()));
    }
    let answer: Value = serde_json::from_slice(&output.stdout).map_err(refused)?;
    let consent = agent_command(state)?.args(["remote-control", "enable"]).stdout(Stdio::null()).status().await;
    consent.map_err(refused)?;
    answer["device_id"]
        .as_str()
        .and_then(|id| Uuid::parse_str(id).ok())
        .ok_or_else(|| refused("the agent did not enrol"))
}

fn run_agent(folder: &Path, state: &Path) -> Result<Child, CliError> {
    let log = fs::File::create(folder.join("agent.log")).map_err(refused)?;
    agent_command(state)?.arg("run").stderr(log).stdout(Stdio::null()).spawn().map_err(refused)
}

/// Asks the agent to end, so that it says goodbye.
async fn end(mut agent: Child) {
    if let Some(id) = agent.id() {
        let _ = Command::new("kill").arg(id.to_string()).status().await;
    }
    let _ = agent.wait().await;
}

/// A service to be reached through the tunnel.
async fn sample_service() -> Result<(SocketAddr, tokio::task::JoinHandle<()>), CliError> {
    let acceptor = TcpListener::new((Ipv4Addr::LOCALHOST, 0)).try_bind().await.map_err(refused)?;
    let address = acceptor.inner().local_addr().map_err(refused)?;
    let server = tokio::spawn(Server::new(acceptor).serve(Router::new().get(Sample)));
    Ok((address, server))
}

struct Sample;

#[async_trait]
impl Handler for Sample {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut salvo::Response, _: &mut FlowCtrl) {
        res.render(Text::Plain("Hello from the other end of a Culvert tunnel.\n"));
    }
}

/// The public API, as any client uses it.
struct ApiClient {
    api: String,
    key: String,
    clock: Clock,
    http: Client,
}

impl ApiClient {
    async fn create_tunnel(&self, tunnel: Value) -> Result<Uuid, CliError> {
        let tunnel = self.send(Method::POST, "tunnels", Some(tunnel)).await?;
        tunnel["id"].as_str().and_then(|id| Uuid::parse_str(id).ok()).ok_or_else(|| refused("the API made no tunnel"))
    }

    /// Starts the tunnel and waits until it runs; the sample service has another port every time.
    async fn start(&self, tunnel_id: Uuid, device_id: Uuid, port: u16) -> Result<Value, CliError> {
        let path = format!("tunnels/{tunnel_id}");
        self.send(Method::PATCH, &path, Some(json!({"local_port": port}))).await?;
        // What a former run was asked for in its last moment is done first.
        let ended = |operation: &Value| !operation["finished_at"].is_null();
        self.wait("operations", |all| all.as_array().is_none_or(|all| all.iter().all(ended))).await?;
        let start = format!("{path}/actions/start");
        let operation = self.send(Method::POST, &start, Some(json!({"device_id": device_id}))).await?;
        let operation = format!("operations/{}", operation["id"].as_str().unwrap_or_default());
        let ended = self.wait(&operation, ended).await?;
        if ended["status"] != "succeeded" {
            return Err(refused(format!(
                "the tunnel did not start: {}",
                ended["error"]["detail"].as_str().unwrap_or_default()
            )));
        }
        self.send(Method::GET, &path, None).await
    }

    /// Reads a resource until it is as wanted.
    async fn wait(&self, path: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value, CliError> {
        let patience = self.clock.moment().plus(PATIENCE);
        loop {
            let found = self.send(Method::GET, path, None).await?;
            if wanted(&found) {
                return Ok(found);
            }
            if self.clock.moment() > patience {
                return Err(refused(format!("{path} did not get ready; the log of the agent may say why")));
            }
            self.clock.sleep(POLL).await;
        }
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, CliError> {
        let mut request: RequestBuilder =
            self.http.request(method.clone(), format!("{}/{path}", self.api)).bearer_auth(&self.key);
        if method == Method::POST {
            request = request.header("idempotency-key", self.clock.id().to_string());
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response: Response = request.send().await.map_err(refused)?;
        let failed = !response.status().is_success();
        let mut answer: Value = response.json().await.map_err(refused)?;
        if failed {
            return Err(refused(format!("{method} {path}: {}", answer["detail"].as_str().unwrap_or_default())));
        }
        Ok(answer["data"].take())
    }
}

fn read_notes(folder: &Path) -> Result<Option<Notes>, CliError> {
    let path: PathBuf = folder.join(NOTES);
    match fs::read(&path) {
        Ok(text) => {
            let fail = |error| {
                ConfigError::new("data_dir", format!("{}: {error}; delete the folder to begin anew", path.display()))
            };
            Ok(Some(serde_json::from_slice(&text).map_err(fail)?))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refused(error)),
    }
}

fn write_notes(folder: &Path, notes: &Notes) -> Result<(), CliError> {
    let text = serde_json::to_vec_pretty(notes).map_err(refused)?;
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(folder.join(NOTES));
    file.and_then(|mut file| file.write_all(&text)).map_err(refused)
}
