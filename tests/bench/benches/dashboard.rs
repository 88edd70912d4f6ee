//! Pages of the dashboard beside the same reads by API calls; what 500 open streams cost; and what the API feels of people who
//! sign in with passwords.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use culvert_bench::load::{Round, load};
use culvert_bench::server::Servers;
use culvert_bench::{median, verdict};
use reqwest::header::{HeaderMap, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Response};
use serde_json::{Value, json};

const CONNECTIONS: usize = 32;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 7;
const STREAMS: usize = 500;
const TUNNELS_OF_ONE: usize = 10_000;
/// Of the accounts of the benchmark's server.
const PASSWORD: &str = "gravel otter lantern 42";

/// Somebody who is signed in, with a tunnel.
struct Person {
    cookie: String,
    key: String,
    tunnel: String,
}

fn main() {
    let servers = Servers::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let people = Arc::new(people(&servers).await);
        compare_pages(&servers, &people).await;
        time_lists(&servers, &people[0]).await;
        open_streams(&servers, &people).await;
        sign_in_at_once(&servers, &people[0]).await;
    });
}

fn client() -> Client {
    Client::builder().no_proxy().redirect(Policy::none()).build().unwrap()
}

fn name(host: SocketAddr) -> String {
    format!("localhost:{}", host.port())
}

async fn people(servers: &Servers) -> Vec<Person> {
    let (host, client) = (servers.addresses.host, client());
    let form_key = form_key(host, &client, "/dashboard/enter").await;
    let mut people = Vec::new();
    for (link, key) in servers.addresses.links.iter().zip(&servers.addresses.keys) {
        let answer =
            post(host, &client, "/dashboard/enter", "127.0.0.1", &[("form_key", &form_key), ("link", link)]).await;
        assert_eq!(answer.status(), 303, "{}", answer.text().await.unwrap());
        let cookie = cookie(answer.headers());
        people.push(Person { cookie, key: key.clone(), tunnel: tunnel(host, &client, key).await });
    }
    people
}

fn cookie(headers: &HeaderMap) -> String {
    headers[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned()
}

async fn form_key(host: SocketAddr, client: &Client, path: &str) -> String {
    let page = client.get(format!("http://{host}{path}")).header("host", name(host)).send().await.unwrap();
    let page = page.text().await.unwrap();
    page.split("name=\"form_key\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

async fn post(host: SocketAddr, client: &Client, path: &str, address: &str, fields: &[(&str, &str)]) -> Response {
    let encoded = reqwest::Url::parse_with_params("http://x", fields).unwrap();
    let request =
        client.post(format!("http://{host}{path}")).header("host", name(host)).header("x-forwarded-for", address);
    let request =
        request.header("sec-fetch-site", "same-origin").header("content-type", "application/x-www-form-urlencoded");
    request.body(encoded.query().unwrap().to_owned()).send().await.unwrap()
}

async fn tunnel(host: SocketAddr, client: &Client, key: &str) -> String {
    let request = client.post(format!("http://{host}/v2/tunnels")).bearer_auth(key);
    let key = uuid::Uuid::new_v4().to_string();
    let answer: Value = request
        .header("idempotency-key", key)
        .json(&json!({"local_port": 80}))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    answer["data"]["id"].as_str().unwrap().into()
}

fn get(host: SocketAddr, path: &str, header: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{header}\r\n\r\n", name(host))
}

/// Takes one after the other: a sign-in may ask for 600 pages in a minute.
fn in_turns(
    people: &Arc<Vec<Person>>,
    request: impl Fn(&Person) -> String + Clone + Send + 'static,
) -> impl Fn() -> String + Clone + Send + 'static {
    let (people, next) = (people.clone(), Arc::new(AtomicUsize::new(0)));
    move || request(&people[next.fetch_add(1, Ordering::Relaxed) % people.len()])
}

/// The page of a tunnel, beside the two reads of the API that it is made of.
async fn compare_pages(servers: &Servers, people: &Arc<Vec<Person>>) {
    let host = servers.addresses.host;
    let page = in_turns(people, move |person| {
        get(host, &format!("/dashboard/me/tunnels/{}", person.tunnel), &format!("Cookie: {}", person.cookie))
    });
    let odd = Arc::new(AtomicU64::new(0));
    let reads = in_turns(people, move |person| {
        let part = if odd.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { "" } else { "/usage" };
        get(host, &format!("/v2/tunnels/{}{part}", person.tunnel), &format!("Authorization: Bearer {}", person.key))
    });
    let (mut pages, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        pairs.push(load(host, CONNECTIONS, ROUND, reads.clone()).await);
        pages.push(load(host, CONNECTIONS, ROUND, page.clone()).await);
    }
    println!("the page of a tunnel, {CONNECTIONS} connections, the median of {ROUNDS} rounds of {} s", ROUND.as_secs());
    report("reads by API", &pairs);
    report("pages", &pages);
    let ratios = pages.iter().zip(&pairs).map(|(page, read)| page.per_second / (read.per_second / 2.0));
    let ratio = median(ratios.collect());
    verdict("pages to pairs of reads, a second", ratio, ">= 0.40", ratio >= 0.4);
}

fn report(what: &str, rounds: &[Round]) {
    let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value).collect());
    println!(
        "  {what:<12} {:>8.0}/s   p50 {:>6.2} ms   p99 {:>6.2} ms",
        of(|round| round.per_second),
        of(|round| round.p50.as_secs_f64() * 1e3),
        of(|round| round.p99.as_secs_f64() * 1e3),
    );
}

/// The overview and the list of somebody with 25 tunnels, and with 10,000; beside the list by the API. One connection.
async fn time_lists(servers: &Servers, person: &Person) {
    let (host, client) = (servers.addresses.host, client());
    let mut made = 1;
    for count in [25, TUNNELS_OF_ONE] {
        while made < count {
            tunnel(host, &client, &person.key).await;
            made += 1;
        }
        let bearer = format!("Bearer {}", person.key);
        println!("{count} tunnels of one account, one connection");
        for (what, path, header) in [
            ("list by API", "/v2/tunnels?limit=25", ("authorization", &bearer)),
            ("overview", "/dashboard/me", ("cookie", &person.cookie)),
            ("list", "/dashboard/me/tunnels", ("cookie", &person.cookie)),
        ] {
            // Fewer than a sign-in may ask for in a minute.
            let mut times = Vec::new();
            for _ in 0..100 {
                let request = client.get(format!("http://{host}{path}")).header("host", name(host));
                let start = Instant::now();
                let answer = request.header(header.0, header.1).send().await.unwrap();
                assert_eq!(answer.status(), 200);
                answer.bytes().await.unwrap();
                times.push(start.elapsed());
            }
            let time = median(times).as_secs_f64() * 1e3;
            if what == "list" && count == TUNNELS_OF_ONE {
                verdict("list, ms", time, "<= 60", time <= 60.0);
            } else {
                println!("  {what:<12} {time:>6.2} ms");
            }
        }
    }
}

/// What the host's memory and the API's reads are with idle streams.
async fn open_streams(servers: &Servers, people: &Arc<Vec<Person>>) {
    let (host, client) = (servers.addresses.host, client());
    let read = in_turns(people, move |person| {
        get(host, &format!("/v2/tunnels/{}", person.tunnel), &format!("Authorization: Bearer {}", person.key))
    });
    let (mut without, mut with, mut grown) = (Vec::new(), Vec::new(), 0.0);
    for _ in 0..3 {
        without.push(load(host, CONNECTIONS, ROUND, read.clone()).await);
        let before = servers.resident();
        let mut streams = Vec::new();
        for number in 0..STREAMS {
            let person = &people[number % people.len()];
            let request = client.get(format!("http://{host}/dashboard/me/live")).header("host", name(host));
            let mut stream = request.header("cookie", &person.cookie).send().await.unwrap();
            assert_eq!(stream.status(), 200);
            stream.chunk().await.unwrap();
            streams.push(stream);
        }
        grown = f64::max(grown, servers.resident() - before);
        with.push(load(host, CONNECTIONS, ROUND, read.clone()).await);
        drop(streams);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!("{STREAMS} idle streams");
    let kib = grown * 1024.0 / STREAMS as f64;
    verdict("resident memory, KiB a stream", kib, "<= 50", kib <= 50.0);
    let ratio = median(with.iter().zip(&without).map(|(with, without)| with.per_second / without.per_second).collect());
    verdict("reads a second, with them to without", ratio, ">= 0.90", ratio >= 0.9);
}

/// What `GET /v2` is while 32 people at a time sign in with a password.
async fn sign_in_at_once(servers: &Servers, person: &Person) {
    let host = servers.addresses.host;
    let form_key = form_key(host, &client(), "/dashboard/sign-in").await;
    let request = get(host, "/v2", &format!("Authorization: Bearer {}", person.key));
    let (mut without, mut with, mut signed_in) = (Vec::new(), Vec::new(), 0);
    let next = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let ask = request.clone();
        without.push(load(host, CONNECTIONS, ROUND, move || ask.clone()).await);
        let ends = Instant::now() + ROUND;
        let people = (0..32).map(|_| tokio::spawn(sign_in(host, form_key.clone(), next.clone(), ends)));
        let people: Vec<_> = people.collect();
        let ask = request.clone();
        with.push(load(host, CONNECTIONS, ROUND, move || ask.clone()).await);
        for one in people {
            signed_in += one.await.unwrap();
        }
    }
    println!("32 people sign in at once; {signed_in} did in {} s", 3 * ROUND.as_secs());
    let ratio = median(with.iter().zip(&without).map(|(with, without)| with.per_second / without.per_second).collect());
    verdict("GET /v2 a second, with them to without", ratio, ">= 0.60", ratio >= 0.6);
}

/// Signs people in, one after the other; how many.
async fn sign_in(host: SocketAddr, form_key: String, next: Arc<AtomicUsize>, ends: Instant) -> u32 {
    let (client, mut signed_in) = (client(), 0);
    while Instant::now() < ends {
        let number = next.fetch_add(1, Ordering::Relaxed) % 256;
        let (email, address) = (format!("bench-{number}@example.com"), format!("10.0.0.{number}"));
        let fields = [("form_key", form_key.as_str()), ("email", &email), ("password", PASSWORD)];
        let answer = post(host, &client, "/dashboard/sign-in", &address, &fields).await;
        assert!(matches!(answer.status().as_u16(), 303 | 503), "{}", answer.status());
        signed_in += u32::from(answer.status() == 303);
        if let Some(wait) = answer.headers().get("retry-after") {
            tokio::time::sleep(Duration::from_secs(wait.to_str().unwrap().parse().unwrap())).await;
        }
    }
    signed_in
}
