//! One connection of a visitor, in either version of HTTP.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use culvert_wire::socket;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::future::FutureExt;

use super::exchanges::{EndReason, Exchanges};
use super::phase::{ConnectionPhase, PhasedStream};
use super::timer::ClockTimer;
use super::transport::Socket;
use super::visitor::VisitorConnection;
use super::{Front, exchange};

/// Bytes of a body that are read ahead.
const READ_BUFFER: usize = 128 * 1024;
/// Bytes of an answer that HTTP/2 takes ahead of a visitor, for each stream; a chunk of it may be more.
const SEND_BUFFER: usize = 64 * 1024;
/// How long a visitor of HTTP/2 without a request has to close the connection, after it was asked to.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(5);
/// How many streams of HTTP/2 may be cancelled before they were accepted (CVE-2023-44487), and how many the visitor's
/// errors may end (CVE-2025-8671).
const RESETS_BEFORE_ACCEPT: usize = 20;
const RESETS_BY_ERROR: usize = 128;

/// Serves a connection of HTTP/1.1 until it ends.
///
/// # Errors
///
/// Why it ended, unless its end was regular.
pub(super) async fn http1<S: Socket>(
    front: Arc<Front>,
    visitor: Arc<VisitorConnection>,
    phase: &Arc<ConnectionPhase>,
    stream: S,
) -> io::Result<()> {
    let limits = front.limits;
    let service = service_fn(|request| answered(&front, &visitor, request));
    let mut connection = http1::Builder::new()
        .max_headers(limits.header_count)
        .max_header_size(limits.header_bytes)
        .max_buf_size(READ_BUFFER)
        .serve_connection(TokioIo::new(PhasedStream::new(stream, phase.clone())), service)
        .with_upgrades();
    let ended = poll_fn(|context| match Pin::new(&mut connection).poll(context) {
        Poll::Ready(ended) => Poll::Ready(ended.map_err(io::Error::other)),
        Poll::Pending => phase.poll(context).map(Err),
    });
    let ended = ended.with_cancellation_token(&front.shared.stop).await;
    if phase.is_within_answer()
        && let Some(parts) = connection.into_parts()
    {
        // An answer that was cut short must not look complete.
        socket::reset(parts.io.inner().socket());
    }
    ended.unwrap_or(Ok(()))
}

/// Serves a connection of HTTP/2 until it ends.
///
/// # Errors
///
/// Why it ended, unless its end was regular.
pub(super) async fn http2<S: Socket>(
    front: Arc<Front>,
    visitor: Arc<VisitorConnection>,
    exchanges: &Exchanges,
    stream: S,
) -> io::Result<()> {
    let (limits, clock) = (front.limits, front.shared.clock.clone());
    let service_front = front.clone();
    let service = service_fn(move |request| {
        let (front, visitor) = (service_front.clone(), visitor.clone());
        async move { answered(&front, &visitor, request).await }
    });
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(ClockTimer(clock))
            .max_concurrent_streams(limits.h2_streams)
            .max_header_list_size(limits.header_bytes as u32)
            .initial_stream_window_size(limits.h2_stream_window)
            .initial_connection_window_size(limits.h2_connection_window)
            .max_send_buf_size(SEND_BUFFER)
            .max_pending_accept_reset_streams(RESETS_BEFORE_ACCEPT)
            .max_local_error_reset_streams(RESETS_BY_ERROR)
            .keep_alive_interval(limits.keep_alive)
            .keep_alive_timeout(limits.header_timeout)
            .enable_connect_protocol()
            .serve_connection(TokioIo::new(stream), service)
    );
    let stop = front.shared.stop.clone();
    let reason = tokio::select! {
        ended = connection.as_mut() => return ended.map_err(io::Error::other),
        reason = exchanges.end(limits.keep_alive) => reason,
        () = stop.cancelled() => return Ok(()),
    };
    if reason == EndReason::Abuse {
        return Err(io::Error::other("the visitor begins and cancels"));
    }
    connection.as_mut().graceful_shutdown();
    // A visitor may ignore that, or may not have begun to speak at all.
    tokio::select! {
        ended = connection => ended.map_err(io::Error::other),
        _ = exchanges.end(SHUTDOWN_WITHIN) => Ok(()),
        () = stop.cancelled() => Ok(()),
    }
}

async fn answered(
    front: &Front,
    visitor: &Arc<VisitorConnection>,
    request: hyper::Request<hyper::body::Incoming>,
) -> Result<hyper::Response<super::body::Body>, Infallible> {
    Ok(exchange::serve(front, visitor, request).await)
}
