//! Requests over connections that stay open, and how long each took: as many as are answered, or at a fixed rate.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// What one round of load came to.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub per_second: f64,
    pub p50: Duration,
    pub p99: Duration,
}

/// Asks over so many connections for so long. `request` writes the next request of a connection.
pub async fn load(
    address: SocketAddr,
    connections: usize,
    time: Duration,
    request: impl Fn() -> String + Clone + Send + 'static,
) -> Round {
    let start = Instant::now();
    let tasks = (0..connections).map(|_| tokio::spawn(ask(address, start + time, request.clone())));
    round(start, tasks.collect()).await
}

/// Asks at a fixed rate, in turns over so many connections. A request that waits for the one before it on its connection
/// has waited since it was due.
pub async fn paced(
    address: SocketAddr,
    connections: u32,
    per_second: u32,
    time: Duration,
    request: impl Fn() -> String + Clone + Send + 'static,
) -> Round {
    let start = Instant::now();
    let apart = Duration::from_secs(1) / per_second;
    let ask = |number| ask_paced(address, (start + apart * number, apart * connections, start + time), request.clone());
    round(start, (0..connections).map(ask).map(tokio::spawn).collect()).await
}

async fn round(start: Instant, tasks: Vec<JoinHandle<Vec<Duration>>>) -> Round {
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let took = start.elapsed();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    Round { per_second: times.len() as f64 / took.as_secs_f64(), p50: at(0.5), p99: at(0.99) }
}

async fn ask_paced(
    address: SocketAddr,
    (mut due, period, until): (Instant, Duration, Instant),
    request: impl Fn() -> String,
) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut times, mut buffer) = (Vec::new(), Vec::new());
    while due < until {
        tokio::time::sleep_until(due.into()).await;
        stream.write_all(request().as_bytes()).await.unwrap();
        read_answer(&mut stream, &mut buffer).await;
        times.push(due.elapsed());
        due += period;
    }
    times
}

async fn ask(address: SocketAddr, until: Instant, request: impl Fn() -> String) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut times, mut buffer) = (Vec::new(), Vec::new());
    while Instant::now() < until {
        let text = request();
        let start = Instant::now();
        stream.write_all(text.as_bytes()).await.unwrap();
        read_answer(&mut stream, &mut buffer).await;
        times.push(start.elapsed());
    }
    times
}

/// Reads one answer, which must be a success.
async fn read_answer(stream: &mut TcpStream, buffer: &mut Vec<u8>) {
    buffer.clear();
    loop {
        assert_ne!(stream.read_buf(buffer).await.unwrap(), 0, "the server hung up");
        let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&buffer[..end]).unwrap();
        assert!(head.starts_with("HTTP/1.1 2"), "{}", String::from_utf8_lossy(buffer));
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if buffer.len() >= end + 4 + length.unwrap() {
            return;
        }
    }
}
