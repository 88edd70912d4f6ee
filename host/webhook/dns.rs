//! DNS lookups: the addresses of webhook endpoints, and the CNAME records of custom domains.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use hickory_resolver::{Resolver, TokioResolver};

/// How long a query waits for its response. A query is sent twice.
const ANSWER_WITHIN: Duration = Duration::from_millis(1200);
/// Longest time that an address is cached, even if the record's TTL is longer.
const KEEP: Duration = Duration::from_mins(1);

#[derive(Clone)]
pub struct Dns {
    addresses: TokioResolver,
    /// Caches nothing, so that a change in the DNS is visible at once.
    aliases: TokioResolver,
}

/// Why a lookup failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    #[error("there is no such name")]
    NoSuchName,
    #[error("the name could not be looked up")]
    Unavailable,
}

/// Why no resolver can be set up.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    #[error("the resolver configuration of the operating system cannot be used: {0}")]
    System(#[source] NetError),
    #[error("the resolver cannot be set up: {0}")]
    Setup(#[source] NetError),
}

impl Dns {
    /// Uses this resolver, or those of the operating system if it is none.
    ///
    /// # Errors
    ///
    /// Where the operating system's resolver configuration cannot be read.
    pub fn new(resolver: Option<SocketAddr>) -> Result<Self, ResolverError> {
        let aliases = |options: &mut ResolverOpts| options.cache_size = 0;
        Ok(Self { addresses: open(resolver, |_| {})?, aliases: open(resolver, aliases)? })
    }

    /// All IPv4 and IPv6 addresses of a name.
    ///
    /// # Errors
    ///
    /// [`DnsError`], also if the name has no address.
    pub async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, DnsError> {
        let found = self.addresses.lookup_ip(absolute(name)?).await.map_err(|e| failure(&e))?;
        let addresses: Vec<IpAddr> = found.iter().collect();
        if addresses.is_empty() { Err(DnsError::NoSuchName) } else { Ok(addresses) }
    }

    /// The target of a name's CNAME record, in lower case and without the trailing dot.
    ///
    /// # Errors
    ///
    /// [`DnsError`], also if the name has no CNAME record.
    pub async fn cname(&self, name: &str) -> Result<String, DnsError> {
        let found = self.aliases.lookup(absolute(name)?, RecordType::CNAME).await.map_err(|e| failure(&e))?;
        let alias = found.answers().iter().find_map(|record| match &record.data {
            RData::CNAME(target) => Some(target.0.to_ascii().trim_end_matches('.').to_ascii_lowercase()),
            _ => None,
        });
        alias.ok_or(DnsError::NoSuchName)
    }
}

impl Dns {
    /// The texts of a name's TXT records; none if it has none.
    ///
    /// # Errors
    ///
    /// [`DnsError::Unavailable`].
    pub async fn texts(&self, name: &str) -> Result<Vec<String>, DnsError> {
        let found = match self.aliases.lookup(absolute(name)?, RecordType::TXT).await.map_err(|e| failure(&e)) {
            Err(DnsError::NoSuchName) => return Ok(Vec::new()),
            found => found?,
        };
        let text = |record: &Record| match &record.data {
            RData::TXT(text) => Some(String::from_utf8_lossy(&text.txt_data.concat()).into_owned()),
            _ => None,
        };
        Ok(found.answers().iter().filter_map(text).collect())
    }
}

fn open(resolver: Option<SocketAddr>, change: impl FnOnce(&mut ResolverOpts)) -> Result<TokioResolver, ResolverError> {
    let mut builder = match resolver {
        Some(address) => {
            let connection = |mut connection: ConnectionConfig| {
                connection.port = address.port();
                connection
            };
            let connections = vec![connection(ConnectionConfig::udp()), connection(ConnectionConfig::tcp())];
            let server = NameServerConfig::new(address.ip(), true, connections);
            let config = ResolverConfig::from_name_servers(vec![server]);
            Resolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
        None => Resolver::builder_tokio().map_err(ResolverError::System)?,
    };
    set_up(builder.options_mut());
    change(builder.options_mut());
    builder.build().map_err(ResolverError::Setup)
}

fn set_up(options: &mut ResolverOpts) {
    options.timeout = ANSWER_WITHIN;
    options.attempts = 1;
    // Failed lookups are not cached, so that a name added to the DNS is visible at once.
    options.negative_max_ttl = Some(Duration::ZERO);
    options.positive_max_ttl = Some(KEEP);
    // The guard checks all addresses of a name, so both families are looked up.
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
}

/// Makes the name fully qualified, so that no search domain is appended.
fn absolute(name: &str) -> Result<Name, DnsError> {
    let mut name = Name::from_ascii(name).map_err(|_| DnsError::NoSuchName)?;
    name.set_fqdn(true);
    Ok(name)
}

fn failure(error: &NetError) -> DnsError {
    if error.is_no_records_found() || error.is_nx_domain() { DnsError::NoSuchName } else { DnsError::Unavailable }
}
