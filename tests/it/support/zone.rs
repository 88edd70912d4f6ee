//! A name server of a test's own: it says of names what the test has it say.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::rdata::CNAME;
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::sync::watch;

/// What there is to say of a name.
#[derive(Clone, Debug)]
enum Says {
    /// It is an alias for another name, spelled so.
    Alias(String),
    /// It is there, and no alias.
    NoAlias,
    Nothing,
    Failure,
}

/// A server that answers for every name; of those that it was not told of, that there are none.
pub struct Zone {
    pub address: SocketAddr,
    names: Arc<Mutex<HashMap<String, Says>>>,
    questions: watch::Receiver<u64>,
}

/// What resolvers may keep an answer for: longer than any test runs.
const TTL: u32 = 300;

impl Zone {
    pub async fn open() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let names: Arc<Mutex<HashMap<String, Says>>> = Arc::default();
        let (count, questions) = watch::channel(0);
        let known = names.clone();
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let question = Message::from_vec(&buffer[..length]).unwrap();
                let answer = answer(&question, &known.lock().unwrap());
                count.send_modify(|count| *count += 1);
                if let Some(answer) = answer {
                    socket.send_to(&answer.to_vec().unwrap(), from).await.unwrap();
                }
            }
        });
        Self { address, names, questions }
    }

    /// The name is an alias for another one from now on.
    pub fn alias(&self, name: &str, target: &str) {
        self.say(name, Says::Alias(target.into()));
    }

    /// The name is there, and no alias.
    pub fn no_alias(&self, name: &str) {
        self.say(name, Says::NoAlias);
    }

    /// There is no such name.
    pub fn forget(&self, name: &str) {
        self.names.lock().unwrap().remove(name);
    }

    /// Questions about the name get no answer.
    pub fn silence(&self, name: &str) {
        self.say(name, Says::Nothing);
    }

    /// Questions about the name get an answer that is none.
    pub fn fail(&self, name: &str) {
        self.say(name, Says::Failure);
    }

    fn say(&self, name: &str, says: Says) {
        self.names.lock().unwrap().insert(name.into(), says);
    }

    /// How many questions came so far.
    pub fn questions(&self) -> u64 {
        *self.questions.borrow()
    }

    /// Waits for a question beyond the first so many.
    pub async fn question_after(&self, count: u64) {
        self.questions.clone().wait_for(|questions| *questions > count).await.unwrap();
    }
}

fn answer(question: &Message, names: &HashMap<String, Says>) -> Option<Message> {
    let query = &question.queries[0];
    let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
    answer.metadata.recursion_desired = question.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.add_query(query.clone());
    match names.get(&name) {
        Some(Says::Alias(target)) if query.query_type() == RecordType::CNAME => {
            let target = RData::CNAME(CNAME(Name::from_ascii(target).unwrap()));
            answer.add_answer(Record::from_rdata(query.name().clone(), TTL, target));
        }
        Some(Says::Alias(_) | Says::NoAlias) => {}
        Some(Says::Nothing) => return None,
        Some(Says::Failure) => answer.metadata.response_code = ResponseCode::ServFail,
        None => answer.metadata.response_code = ResponseCode::NXDomain,
    }
    Some(answer)
}
