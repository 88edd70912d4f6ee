//! The DNS server for DNS-01 (RFC 8555, section 8.4): it answers for `_acme-challenge.<domain>` alone, which the domain's
//! own zone delegates to it by an NS record.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use culvert_wire::client_network::network;
use culvert_wire::clock::Clock;
use culvert_wire::per_second::PerSecond;
use hickory_server::Server;
use hickory_server::net::runtime::Time;
use hickory_server::proto::op::{Header, HeaderCounts, Metadata, OpCode, ResponseCode};
use hickory_server::proto::rr::rdata::{SOA, TXT};
use hickory_server::proto::rr::{Name, RData, Record, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tokio::net::{TcpListener, UdpSocket};

/// What the names of all records begin with.
pub const LABEL: &str = "_acme-challenge";
/// Answers to one address (IPv4: a /24, IPv6: a /56) in a second. More are not given: the address may be forged.
const ANSWERS_PER_SECOND: usize = 50;
/// How long a connection may stay open without a question.
const TCP_IDLE: Duration = Duration::from_secs(5);
/// Answers that wait on one connection.
const TCP_ANSWERS: usize = 16;
/// Seconds that resolvers may keep a record.
const TTL: u32 = 5;

/// The zones, and the server that answers for them until this is dropped.
pub struct Zone {
    records: Records,
    _server: Server<Records>,
}

/// The records of the zones. Clones share them.
#[derive(Clone)]
struct Records(Arc<Shared>);

struct Shared {
    clock: Clock,
    /// The zones: `_acme-challenge.<domain>`.
    names: BTreeSet<Name>,
    values: RwLock<BTreeMap<Name, BTreeSet<String>>>,
    rate: PerSecond,
}

impl Zone {
    /// Answers on UDP and TCP.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub async fn open(domains: &[String], address: SocketAddr, clock: Clock) -> io::Result<Self> {
        let names = domains.iter().filter_map(|domain| absolute(&format!("{LABEL}.{domain}"))).collect();
        let rate = PerSecond::new(ANSWERS_PER_SECOND);
        let records = Records(Arc::new(Shared { clock, names, values: RwLock::default(), rate }));
        let mut server = Server::new(records.clone());
        let tcp = TcpListener::bind(address).await?;
        server.register_socket(UdpSocket::bind(tcp.local_addr()?).await?);
        server.register_listener(tcp, TCP_IDLE, TCP_ANSWERS);
        Ok(Self { records, _server: server })
    }

    /// Adds a value to a name.
    pub fn set(&self, name: &str, value: &str) {
        let mut values = self.records.0.values.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(name) = absolute(name) {
            values.entry(name).or_default().insert(value.to_owned());
        }
    }

    /// Removes a value of a name.
    pub fn clear(&self, name: &str, value: &str) {
        let mut values = self.records.0.values.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = absolute(name).and_then(|name| values.get_mut(&name)) {
            found.remove(value);
        }
    }
}

impl Records {
    /// The answer to a question: its records, or why there are none.
    fn answer(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, ResponseCode> {
        let shared = &self.0;
        if !shared.names.contains(name) {
            return Err(ResponseCode::Refused);
        }
        let records = match kind {
            RecordType::TXT => {
                let values = shared.values.read().unwrap_or_else(PoisonError::into_inner);
                let texts = values.get(name).into_iter().flatten();
                let record =
                    |value: &String| Record::from_rdata(name.clone(), TTL, RData::TXT(TXT::new(vec![value.clone()])));
                texts.map(record).collect()
            }
            RecordType::SOA => vec![self.authority(name)],
            _ => Vec::new(),
        };
        Ok(records)
    }

    fn authority(&self, name: &Name) -> Record {
        let serial = self.0.clock.now().timestamp() as u32;
        let ttl = TTL as i32;
        let soa = SOA::new(name.clone(), name.clone(), serial, ttl, ttl, ttl, TTL);
        Record::from_rdata(name.clone(), TTL, RData::SOA(soa))
    }
}

#[async_trait::async_trait]
impl RequestHandler for Records {
    async fn handle_request<R: ResponseHandler, T: Time>(&self, request: &Request, mut response: R) -> ResponseInfo {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.recursion_available = false;
        let ip = network(request.src().ip(), 24, 56);
        if !self.0.rate.allows(ip, self.0.clock.moment()) {
            // Nothing is sent.
            return ResponseInfo::from(unsent(metadata));
        }
        let answer = match request.request_info() {
            Ok(info) if request.metadata.op_code == OpCode::Query => {
                let name = Name::from(info.query.name());
                self.answer(&name, info.query.query_type()).map(|records| (name, records))
            }
            Ok(_) => Err(ResponseCode::NotImp),
            Err(_) => Err(ResponseCode::FormErr),
        };
        let builder = MessageResponseBuilder::from_message_request(request);
        let sent = match answer {
            Ok((name, records)) => {
                metadata.authoritative = true;
                // Where there are none, resolvers learn from the SOA for how long (RFC 2308, section 3).
                let soa = records.is_empty().then(|| self.authority(&name));
                response.send_response(builder.build(metadata, &records, None, &soa, None)).await
            }
            Err(code) => response.send_response(builder.error_msg(&request.metadata, code)).await,
        };
        sent.unwrap_or_else(|error| {
            tracing::debug!(%error, "a DNS answer could not be sent");
            ResponseInfo::from(unsent(metadata))
        })
    }
}

fn unsent(metadata: Metadata) -> Header {
    Header { metadata, counts: HeaderCounts::default() }
}

fn absolute(name: &str) -> Option<Name> {
    let mut name = Name::from_ascii(name).ok()?.to_lowercase();
    name.set_fqdn(true);
    Some(name)
}
