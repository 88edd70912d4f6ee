//! A name server on loopback, whose answers a test sets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::CNAME;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::sync::watch;

pub struct Names {
    pub address: SocketAddr,
    zone: Arc<Mutex<HashMap<String, Entry>>>,
    questions: watch::Sender<u32>,
}

/// What resolvers may keep an alias for, in seconds: longer than any test runs. Addresses may change
/// with every question.
const KEEP_ALIASES: u32 = 300;

/// What is said of a name.
#[derive(Clone, Debug)]
pub enum Answer {
    Addresses(Vec<IpAddr>),
    /// Another name, spelled so.
    Alias(String),
    NoSuchName,
    Silence,
    /// An answer that is none.
    Failure,
}

/// The answers to the first, the second … question for a type of record; the last one stays.
struct Entry {
    answers: Vec<Answer>,
    asked: HashMap<RecordType, usize>,
}

impl Answer {
    pub fn addresses<const N: usize>(addresses: [&str; N]) -> Self {
        Self::Addresses(addresses.map(|address| address.parse().unwrap()).into())
    }
}

impl Names {
    pub async fn open() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let names =
            Self { address: socket.local_addr().unwrap(), zone: Arc::default(), questions: watch::Sender::new(0) };
        let (zone, questions) = (names.zone.clone(), names.questions.clone());
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
                let question = Message::from_vec(&buffer[..length]).unwrap();
                if let Some(answer) = answer(&zone, &question) {
                    socket.send_to(&answer.to_vec().unwrap(), peer).await.unwrap();
                }
                questions.send_modify(|questions| *questions += 1);
            }
        });
        names
    }

    /// What is said of a name from here on. A name that nothing was said of is none.
    pub fn set(&self, name: &str, answers: impl IntoIterator<Item = Answer>) {
        let entry = Entry { answers: answers.into_iter().collect(), asked: HashMap::new() };
        self.zone.lock().unwrap().insert(name.into(), entry);
    }

    /// The name is an alias for another one from here on.
    pub fn alias(&self, name: &str, target: &str) {
        self.set(name, [Answer::Alias(target.into())]);
    }

    /// The name is there, and no alias.
    pub fn no_alias(&self, name: &str) {
        self.set(name, [Answer::Addresses(Vec::new())]);
    }

    /// There is no such name.
    pub fn forget(&self, name: &str) {
        self.set(name, [Answer::NoSuchName]);
    }

    /// How many questions came so far.
    pub fn asked(&self) -> u32 {
        *self.questions.borrow()
    }

    /// Waits for a question beyond the first so many.
    pub async fn question_after(&self, count: u32) {
        self.questions.subscribe().wait_for(|questions| *questions > count).await.unwrap();
    }

    /// A look at the questions from here on.
    pub fn questions(&self) -> watch::Receiver<u32> {
        self.questions.subscribe()
    }
}

fn answer(zone: &Mutex<HashMap<String, Entry>>, question: &Message) -> Option<Message> {
    let query = question.queries.first()?;
    let mut message = Message::response(question.metadata.id, question.metadata.op_code);
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    let record = |ttl, data| Record::from_rdata(query.name().clone(), ttl, data);
    match next_answer(zone, query.name(), query.query_type()) {
        Answer::Silence => return None,
        Answer::NoSuchName => message.metadata.response_code = ResponseCode::NXDomain,
        Answer::Failure => message.metadata.response_code = ResponseCode::ServFail,
        Answer::Alias(target) => {
            let mut target = Name::from_ascii(target).unwrap();
            target.set_fqdn(true);
            message.add_answer(record(KEEP_ALIASES, RData::CNAME(CNAME(target))));
        }
        Answer::Addresses(addresses) => {
            let data = addresses.into_iter().map(RData::from);
            message
                .add_answers(data.filter(|data| data.record_type() == query.query_type()).map(|data| record(0, data)));
        }
    }
    Some(message)
}

fn next_answer(zone: &Mutex<HashMap<String, Entry>>, name: &Name, kind: RecordType) -> Answer {
    let name = name.to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let mut zone = zone.lock().unwrap();
    let Some(entry) = zone.get_mut(&name) else { return Answer::NoSuchName };
    let asked = entry.asked.entry(kind).or_default();
    *asked += 1;
    entry.answers[(*asked - 1).min(entry.answers.len() - 1)].clone()
}
