//! The operator's settings: defaults, then `culvert.toml`, then `CULVERT_…` in the environment
//! (`CULVERT_NODE__HOSTNAME` is `node.hostname`).

mod certificates;
mod dashboard;
mod database;
mod drain;
mod mail;
mod node;
mod oidc;
mod shared;
mod urls;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

pub use certificates::{AcmeConfig, AcmeDns, CertificatesConfig};
use culvert_domain::field_path;
use culvert_domain::fleet::AUTHORITY;
use culvert_policy::load::chain::{PolicyConfig, Trust};
use culvert_policy::serve::records::RecordsConfig;
pub use dashboard::DashboardConfig;
pub use database::{DatabaseConfig, Migrate};
pub use drain::DrainConfig;
pub use mail::MailConfig;
use node::check_domain;
pub use node::{HttpConfig, Listen, NodeConfig, NodeReplace};
pub use oidc::OidcConfig;

/// The file that is read where no other is named, if it is there.
pub const DEFAULT_FILE: &str = "culvert.toml";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of the API, its documentation and the agents' control channel.
    pub listen: SocketAddr,
    /// Address for the operator alone: `/healthz` and `/readyz`; with the token in `<data_dir>/admin.token` as
    /// `Authorization: Bearer` also `/status`, `/metrics` (Prometheus), `/policies`, `/policies/reload` and
    /// `/policies/rollback`.
    pub admin_listen: SocketAddr,
    /// URL under which clients and agents reach `listen` (default: `http://localhost:<port>`, or `http://<listen>` where
    /// `localhost` does not lead there).
    pub public_url: Option<String>,
    /// URL under which agents reach this host, where several share a database and `public_url` (default: `public_url`).
    /// Agents are told the URLs of all hosts, and connect to whichever answers.
    pub agent_url: Option<String>,
    /// URL that problem records point to (default: `<public_url>/docs`).
    pub docs_url: Option<String>,
    /// Folder for everything that the host keeps on disk. It is readable by the host's user alone (0700).
    pub data_dir: PathBuf,
    /// `sqlite:<path>` or `postgres://<user>@<host>/<database>` (default: a SQLite file in `data_dir`). A
    /// PostgreSQL server on another machine must show a certificate for its name, unless the URL says
    /// `?sslmode=…`.
    pub database_url: Option<String>,
    pub database: DatabaseConfig,
    /// File with the host's own keys, made on the first start (default: `secret.key` in `data_dir`). A database
    /// records which keys belong to it, and no host starts on it with others.
    pub secret_key_file: Option<PathBuf>,
    /// Plan of new accounts and Teams.
    pub default_plan: String,
    pub rate_limit: RateLimit,
    pub api: ApiConfig,
    pub dashboard: DashboardConfig,
    pub mail: MailConfig,
    /// Whether `/metrics` answers without the operator's token.
    pub metrics_open: bool,
    /// Networks whose `X-Forwarded-For` header is believed.
    pub trusted_proxies: Vec<IpNet>,
    pub node: NodeConfig,
    /// Seconds for which the nodes of a host that does not reach its PostgreSQL database go on, 60 to 3600. Their tunnels can
    /// be moved after that. The same on all hosts.
    pub node_authority_seconds: u64,
    /// What becomes of the tunnels of a node whose host is lost, when `node_authority_seconds` are over: with `any` they go to other nodes, where they have other public addresses; with `off` they wait for it. Of a host that was stopped they wait in either case. The same on all hosts.
    pub node_replace: NodeReplace,
    pub drain: DrainConfig,
    /// `[[extra_node]]` entries with the fields of `node`: more nodes in the same process, on addresses or
    /// ports of their own.
    pub extra_node: Vec<NodeConfig>,
    pub geoip: GeoipConfig,
    pub dns: DnsConfig,
    pub webhooks: WebhookConfig,
    pub certificates: CertificatesConfig,
    pub acme: AcmeConfig,
    pub log: LogConfig,
    /// `[[policy]]` entries with `kind`, `module`, `sha256`, `signature`, `mode`, `deadline_ms`, `memory_kib`, and `settings` or `settings_file`
    /// (default: the three shipped modules). See the guide for operators of policies.
    pub policy: Vec<PolicyConfig>,
    pub policies: PoliciesConfig,
    pub decisions: RecordsConfig,
    /// The file that these settings were read from; it is read again for a reload.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// Not for operators: `dev` sets it.
    #[serde(skip)]
    pub trust: Trust,
    /// Not for operators: whether a host whose ticker a test calls is one of several.
    #[serde(skip)]
    pub several_hosts: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Requests of one key in a minute.
    pub per_minute: u32,
    /// Requests of one key in 24 hours.
    pub per_day: u32,
    /// Failed authentications and wrong enrolment codes of one address in a minute (IPv6: a /64). A key that
    /// was used within a day is never refused by it.
    pub failed_auth_per_minute: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// Connections to `listen`; more wait to be accepted. Each has 10 s for a request's head (16 KiB always
    /// fit, more than 32 KiB never), 60 s for a body, and 30 s to take a piece of an answer.
    pub connections: usize,
    /// Connections from one address (IPv6: a /64), except for `trusted_proxies`.
    pub connections_per_address: usize,
    /// Agents that are connected.
    pub agents: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeoipConfig {
    /// A MaxMind database with countries (`.mmdb`), read again when it changes. Without one, GeoIP rules are
    /// stored and `enforced` is false.
    pub database: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DnsConfig {
    /// Resolver for the hosts of webhooks and for custom domains, `<address>:<port>` (default: those of the
    /// operating system).
    pub resolver: Option<SocketAddr>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// Networks that webhooks may be sent to although they are not public.
    pub allow_networks: Vec<IpNet>,
    /// Networks that no webhook is sent to; they take precedence over `allow_networks`.
    pub deny_networks: Vec<IpNet>,
    /// A PEM file of authorities that are trusted beside those of the operating system.
    pub extra_root_certificates: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// `text` or `json`. `RUST_LOG` sets the level.
    pub format: LogFormat,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoliciesConfig {
    /// Public keys, each a PEM text or the name of a file with one, for ECDSA P-256 or Ed25519. With any, a module that is
    /// not built in must have a signature by one of them. Read at the start.
    pub trusted_keys: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

impl Default for Config {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self {
            listen: loopback(8080),
            admin_listen: loopback(9180),
            public_url: None,
            agent_url: None,
            docs_url: None,
            data_dir: "culvert-data".into(),
            database_url: None,
            database: DatabaseConfig::default(),
            secret_key_file: None,
            default_plan: "self-hosted".into(),
            rate_limit: RateLimit { per_minute: 120, per_day: 10_000, failed_auth_per_minute: 30 },
            api: ApiConfig { connections: 4096, connections_per_address: 256, agents: 20_000 },
            dashboard: DashboardConfig::default(),
            mail: MailConfig::default(),
            metrics_open: false,
            trusted_proxies: Vec::new(),
            node: NodeConfig::default(),
            node_authority_seconds: AUTHORITY.as_secs(),
            node_replace: NodeReplace::Off,
            drain: DrainConfig::default(),
            extra_node: Vec::new(),
            geoip: GeoipConfig { database: None },
            dns: DnsConfig { resolver: None },
            webhooks: WebhookConfig {
                allow_networks: Vec::new(),
                deny_networks: Vec::new(),
                extra_root_certificates: None,
            },
            certificates: CertificatesConfig::default(),
            acme: AcmeConfig::default(),
            log: LogConfig { format: LogFormat::Text },
            policy: PolicyConfig::shipped(),
            policies: PoliciesConfig { trusted_keys: Vec::new() },
            decisions: RecordsConfig::default(),
            file: None,
            trust: Trust::Digest,
            several_hosts: false,
        }
    }
}

/// One line that names the setting and what is wrong with it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    pub fn new(setting: &str, problem: impl fmt::Display) -> Self {
        Self(format!("{setting}: {problem}"))
    }

    /// A problem that names its setting by itself.
    pub fn whole(problem: impl fmt::Display) -> Self {
        Self(problem.to_string())
    }
}

impl Config {
    /// Reads the settings. A file that is named must be there; [`DEFAULT_FILE`] may be missing.
    ///
    /// # Errors
    ///
    /// One line that names the setting or the file, and says what is wrong with it.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let path = file.unwrap_or(Path::new(DEFAULT_FILE));
        if file.is_some() && !path.is_file() {
            return Err(ConfigError::new(&path.display().to_string(), "there is no such file"));
        }
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if path.is_file() {
            figment = figment.merge(Toml::file_exact(path));
        }
        let figment = figment.merge(Env::prefixed("CULVERT_").split("__"));
        let mut config: Self = figment.extract().map_err(|errors| {
            let error = errors.into_iter().next();
            ConfigError(error.map_or_else(|| "the configuration cannot be read".into(), |e| one_line(&e)))
        })?;
        config.file = path.is_file().then(|| path.to_owned());
        for (index, entry) in config.policy.iter_mut().enumerate() {
            entry.read_settings().map_err(|e| ConfigError::new(&format!("policy[{index}].settings_file"), e))?;
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        self.check_urls()?;
        if let Some(url) = &self.database_url
            && !["sqlite:", "postgres:", "postgresql:"].iter().any(|scheme| url.starts_with(scheme))
        {
            return Err(ConfigError::new(
                "database_url",
                "must be sqlite:<path> or postgres://<user>@<host>/<database>",
            ));
        }
        self.acme.check()?;
        self.dashboard.check()?;
        self.dashboard.check_sign_up(self.mail.smtp_url.is_some())?;
        self.mail.worker()?;
        self.check_bounds()?;
        if !(0.0..=1.0).contains(&self.decisions.sample) {
            return Err(ConfigError::new("decisions.sample", "must be between 0 and 1"));
        }
        self.check_listeners()?;
        self.check_nodes()
    }

    fn check_bounds(&self) -> Result<(), ConfigError> {
        let limits = &self.rate_limit;
        for (setting, limit) in [
            ("rate_limit.per_minute", limits.per_minute),
            ("rate_limit.per_day", limits.per_day),
            ("rate_limit.failed_auth_per_minute", limits.failed_auth_per_minute),
        ] {
            if limit == 0 {
                return Err(ConfigError::new(setting, "must be at least 1"));
            }
        }
        if !(60..=3600).contains(&self.node_authority_seconds) {
            return Err(ConfigError::new("node_authority_seconds", "must be between 60 and 3600"));
        }
        self.drain.check()?;
        let api = &self.api;
        for (setting, bound) in [
            ("api.connections", api.connections),
            ("api.connections_per_address", api.connections_per_address),
            ("api.agents", api.agents),
        ] {
            at_least_one(setting, bound)?;
        }
        for (node, config) in self.nodes() {
            for (setting, bound) in [
                ("visitors", config.visitors),
                ("visitors_per_tunnel", config.visitors_per_tunnel),
                ("visitors_per_address", config.visitors_per_address),
                ("flows", config.flows),
                ("flows_per_tunnel", config.flows_per_tunnel),
                ("flows_per_address", config.flows_per_address),
                ("new_flows_per_second", config.new_flows_per_second),
                ("buffer_mib", config.buffer_mib),
                ("unproven", config.unproven),
                ("unproven_per_address", config.unproven_per_address),
            ] {
                at_least_one(&format!("{node}.{setting}"), bound)?;
            }
            for (setting, value, allowed) in config.http.bounds() {
                if !allowed.contains(&value) {
                    let problem = format!("must be between {} and {}", allowed.start(), allowed.end());
                    return Err(ConfigError::new(&format!("{node}.http.{setting}"), problem));
                }
            }
            if !(0.0..=0.9).contains(&config.descriptor_reserve) {
                return Err(ConfigError::new(&format!("{node}.descriptor_reserve"), "must be between 0 and 0.9"));
            }
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), ConfigError> {
        let nodes = self.nodes();
        for (index, (setting, node)) in nodes.iter().enumerate() {
            if node.hostname.is_empty() || node.hostname.contains(['/', ':', ' ']) {
                let setting = format!("{setting}.hostname");
                return Err(ConfigError::new(&setting, "must be a host name or an IPv4 address"));
            }
            if let Some(domain) = &node.domain
                && let Err(problem) = check_domain(domain)
            {
                return Err(ConfigError::new(&format!("{setting}.domain"), problem));
            }
            let same_domain = |other: &NodeConfig| node.domain.is_some() && other.domain == node.domain;
            if let Some((other, _)) = nodes[..index].iter().find(|(_, other)| same_domain(other)) {
                let problem = format!("must not be that of {other}: each name leads to one node");
                return Err(ConfigError::new(&format!("{setting}.domain"), problem));
            }
            for (port, name) in [(node.http_port, "http_port"), (node.https_port, "https_port")] {
                if port == Some(0) {
                    return Err(ConfigError::new(&format!("{setting}.{name}"), "must be between 1 and 65535"));
                }
            }
            let clashes = |other: &NodeConfig| other.bind == node.bind && other.ports.overlaps(node.ports);
            if let Some((other, _)) = nodes[..index].iter().find(|(_, other)| clashes(other)) {
                let problem = format!("must not overlap with {other}.ports, for both bind {}", node.bind);
                return Err(ConfigError::new(&format!("{setting}.ports"), problem));
            }
            if let Some((listener, address)) = self.listener_within(node) {
                let problem = format!("must not contain {}, which is {listener}", address.port());
                return Err(ConfigError::new(&format!("{setting}.ports"), problem));
            }
        }
        Ok(())
    }

    /// Two listeners at one address. Those at port 0 get one each.
    fn check_listeners(&self) -> Result<(), ConfigError> {
        let udp = self.nodes().into_iter().filter_map(|(setting, node)| Some((setting, node.udp_address()?)));
        let udp: Vec<_> = udp.map(|(setting, address)| (format!("{setting}.udp_listen"), address)).collect();
        Self::check_distinct(&self.listeners())?;
        Self::check_distinct(&udp)
    }

    fn check_distinct(all: &[(String, SocketAddr)]) -> Result<(), ConfigError> {
        for (index, (setting, address)) in all.iter().enumerate() {
            let is_same = |(_, other): &&(String, SocketAddr)| {
                address.port() != 0 && address.port() == other.port() && overlap(address.ip(), other.ip())
            };
            if let Some((other, _)) = all[..index].iter().find(is_same) {
                return Err(ConfigError::new(setting, format!("must not be the address of {other}")));
            }
        }
        Ok(())
    }

    /// A listener of this host that has one of a node's public ports.
    fn listener_within(&self, node: &NodeConfig) -> Option<(String, SocketAddr)> {
        let is_within = |(_, address): &(String, SocketAddr)| {
            overlap(address.ip(), node.bind) && node.ports.contains(address.port())
        };
        self.listeners().into_iter().find(is_within)
    }

    /// Every listener of this host, with its setting.
    fn listeners(&self) -> Vec<(String, SocketAddr)> {
        let mut all = vec![("listen".to_owned(), self.listen), ("admin_listen".to_owned(), self.admin_listen)];
        for (setting, node) in self.nodes() {
            all.push((format!("{setting}.listen"), node.listen));
            let web = [("http_listen", node.http_listen), ("https_listen", node.https_listen)];
            let open = web.into_iter().filter_map(|(name, listen)| Some((name, listen.address()?)));
            all.extend(open.map(|(name, address)| (format!("{setting}.{name}"), address)));
        }
        all
    }

    /// Every node of this host, with the setting that describes it.
    pub fn nodes(&self) -> Vec<(String, &NodeConfig)> {
        let extra = self.extra_node.iter().enumerate().map(|(index, node)| (format!("extra_node.{index}"), node));
        std::iter::once(("node".to_owned(), &self.node)).chain(extra).collect()
    }

    pub fn node_authority(&self) -> Duration {
        Duration::from_secs(self.node_authority_seconds)
    }

    pub fn database_url(&self) -> String {
        let file = || format!("sqlite:{}", self.data_dir.join("culvert.db").display());
        self.database_url.clone().unwrap_or_else(file)
    }

    /// The domains of the nodes of this process.
    pub fn domains(&self) -> Vec<String> {
        self.nodes().into_iter().filter_map(|(_, node)| node.domain.clone()).collect()
    }

    pub fn ca_dir(&self) -> PathBuf {
        self.certificates.ca_dir.clone().unwrap_or_else(|| self.data_dir.join("ca"))
    }

    pub fn secret_key_file(&self) -> PathBuf {
        self.secret_key_file.clone().unwrap_or_else(|| self.data_dir.join("secret.key"))
    }
}

/// Whether listeners at these addresses take the same connections.
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    // `[::]` takes those by IPv4 as well, `0.0.0.0` none by IPv6.
    let takes = |one: IpAddr, other: IpAddr| one.is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    one == other || takes(one, other) || takes(other, one)
}

fn at_least_one(setting: &str, bound: usize) -> Result<(), ConfigError> {
    if bound == 0 { Err(ConfigError::new(setting, "must be at least 1")) } else { Ok(()) }
}

/// `node.ports: must be … (in culvert.toml)`.
fn one_line(error: &figment::Error) -> String {
    let mut setting = field_path::along(&error.path);
    let problem = match &error.kind {
        figment::error::Kind::UnknownField(field, known) => {
            if error.path.last() != Some(field) {
                setting = field_path::field(&setting, field);
            }
            format!("there is no such setting; there are {}", known.join(", "))
        }
        // Of a syntax error, the place and what is wrong there; the drawing between them takes lines.
        kind => kind
            .to_string()
            .lines()
            .map(str::trim)
            .filter(|line| !line.contains('|') && !line.is_empty())
            .collect::<Vec<_>>()
            .join(": "),
    };
    let source = error.metadata.as_ref().map(|metadata| match &metadata.source {
        Some(source) => format!(" (in {source})"),
        None => format!(" (in {})", metadata.name),
    });
    let subject = if setting.is_empty() { "configuration".to_owned() } else { setting };
    format!("{subject}: {}{}", problem.replace('\n', " ").replace("``", "`"), source.unwrap_or_default())
}
