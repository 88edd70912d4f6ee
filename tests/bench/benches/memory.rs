//! What a host and an agent that have nothing to do keep resident.

#![allow(clippy::print_stdout, reason = "this is what it is for")]
#![allow(clippy::disallowed_methods, reason = "it waits for processes to come to rest")]

use std::time::Duration;

use culvert_bench::service::Service;
use culvert_bench::verdict;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let service = Service::start().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    println!("resident memory, idle, in MiB");
    let (host, agent) = (service.host().resident(), service.agent().resident());
    verdict("host, with its policies and one connected agent", host, "< 80", host < 80.0);
    verdict("agent", agent, "< 12", agent < 12.0);
}
