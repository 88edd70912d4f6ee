//! One connection's life: it waits for a visit, serves it, and waits again.

use std::io;
use std::time::Duration;

use super::census::Census;
use super::served::{Served, ServedTunnels};
use crate::service_stream::ServiceStream;
use crate::target::Unreached;
use culvert_wire::clock::Clock;
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::{Frame, malformed};
use culvert_wire::data2::stream::{Finished, VisitStream};
use culvert_wire::data2::transport::Transport;
use culvert_wire::data2::visit::{Accepted, RefusalCode, Refused, Visit};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::{pipe, socket};
use tokio_util::future::FutureExt;

/// How long a connection waits for a visit before it is closed if there are too many.
const SURPLUS_FOR: Duration = Duration::from_secs(10);
/// How long the node may take to end its direction of a refused visit, or to answer the wish to close.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// A data connection to a node.
pub(super) type Carrier = Connection<Transport>;

/// What visits need of their pool.
pub(super) struct VisitContext {
    pub clock: Clock,
    pub census: Census,
    pub served: ServedTunnels,
}

/// Serves visits on a connection that counts as warm, until it ends.
pub(super) async fn wait(cx: &VisitContext, mut carrier: Carrier) {
    loop {
        let visit = match next_visit(cx, &mut carrier).await {
            Next::Visit(visit) => visit,
            Next::Surplus => return retire(cx, carrier).await,
            Next::Lost(error) => {
                tracing::debug!(%error, "a warm connection has ended");
                return cx.census.lose();
            }
        };
        cx.census.begin_visit(visit.waiting);
        let kept = serve(cx, carrier, visit).await;
        cx.census.end_visit(kept.is_some());
        match kept {
            Some(warm) => carrier = warm,
            None => return,
        }
    }
}

/// Serves the visit of a stream that the node has opened for it.
pub(super) async fn serve_single(cx: &VisitContext, mut carrier: Carrier) {
    let Ok(Ok(Some(Frame::Visit(visit)))) = cx.clock.timeout(ANSWER_WITHIN, carrier.next()).await else {
        return carrier.get_mut().reset();
    };
    cx.census.begin_stream();
    if let Some(carrier) = serve(cx, carrier, visit).await {
        // It has failed only where the connection has ended.
        let _ = carrier.close().await;
    }
    cx.census.end_stream();
}

enum Next {
    Visit(Visit),
    /// The connection is one too many, and no longer counts as warm.
    Surplus,
    Lost(io::Error),
}

async fn next_visit(cx: &VisitContext, carrier: &mut Carrier) -> Next {
    loop {
        match cx.clock.timeout(SURPLUS_FOR, carrier.next()).await {
            Ok(Ok(Some(Frame::Visit(visit)))) => return Next::Visit(visit),
            Ok(Ok(Some(frame))) => return Next::Lost(malformed(format!("{frame:?} came instead of a visit"))),
            Ok(Ok(None)) => return Next::Lost(io::ErrorKind::UnexpectedEof.into()),
            Ok(Err(error)) => return Next::Lost(error),
            Err(_) if cx.census.is_surplus() => return Next::Surplus,
            Err(_) => {}
        }
    }
}

/// Closes a connection. If the node has given it to a visitor meanwhile, the visit is served first.
async fn retire(cx: &VisitContext, mut carrier: Carrier) {
    loop {
        let answer = async {
            carrier.send(&Frame::Retire).await?;
            carrier.next().await
        };
        let Ok(Ok(Some(Frame::Visit(visit)))) = cx.clock.timeout(ANSWER_WITHIN, answer).await else {
            return drop(carrier.close().await);
        };
        // For the node, the connection is warm again when the visit has ended, so the wish is repeated.
        match serve(cx, carrier, visit).await {
            Some(warm) => carrier = warm,
            None => return,
        }
    }
}

/// Serves a visit, until it ends or its tunnel stops. Returns the connection if it can be used again.
async fn serve(cx: &VisitContext, mut carrier: Carrier, visit: Visit) -> Option<Carrier> {
    let Some(served) = cx.served.find(visit.tunnel_id, visit.epoch) else {
        let refused = Refused { code: RefusalCode::Fenced, detail: "this epoch is not served here".into() };
        return refuse(cx, carrier, refused).await;
    };
    let reached = async {
        tokio::select! {
            biased;
            reached = served.target.reach(&visit) => reached,
            never = carrier.note_wanted() => match never {},
        }
    };
    let reached = Box::pin(reached).with_cancellation_token(&served.stop).await?;
    if visit.port_id.is_none() {
        // The service of an extra port may be unavailable without the tunnel being reported as degraded.
        served.target.note(reached.as_ref().err().map(|unreached| unreached.failure.clone())).await;
    }
    match reached {
        Ok(reached) => carry(cx, &served, carrier, &visit, reached).await,
        Err(unreached) => refuse(cx, carrier, refusal(unreached)).await,
    }
}

async fn carry(
    cx: &VisitContext,
    served: &Served,
    carrier: Carrier,
    visit: &Visit,
    (service, accepted): (ServiceStream, Accepted),
) -> Option<Carrier> {
    let mut target = Connected { stream: service, is_complete: false };
    // Who waits for the protocol sends nothing before.
    let is_awaited = visit.alpn.is_some();
    let mut stream = VisitStream::accept(carrier, accepted, is_awaited).ok()?;
    let (_open, budget) = (served.traffic.enter(), pipe::Budget::unlimited());
    let account = pipe::Account { counters: &served.traffic.bytes, budget: &budget };
    let limits = served.target.limits();
    let pipe = pipe::run(&mut stream, &mut target.stream, limits, account, &cx.clock);
    let ended = pipe.with_cancellation_token(&served.stop).await;
    target.is_complete = matches!(ended, Some(Ok(())));
    if let Some(Err(error)) = ended {
        tracing::debug!(%error, visitor = %visit.visitor, tunnel = %served.name, "a connection was cut");
    }
    match stream.finish() {
        Finished::Warm(carrier) => return Some(carrier),
        Finished::Used(carrier) => drop(carrier.close().await),
        Finished::Cut(mut carrier) => carrier.get_mut().reset(),
    }
    None
}

/// Refuses a visit, and waits for the end of the node's direction.
async fn refuse(cx: &VisitContext, mut carrier: Carrier, refused: Refused) -> Option<Carrier> {
    let refused = async {
        carrier.send(&Frame::Refused(refused)).await?;
        carrier.discard().await
    };
    if let Ok(Ok(())) = cx.clock.timeout(ANSWER_WITHIN, refused).await {
        Some(carrier)
    } else {
        carrier.get_mut().reset();
        None
    }
}

fn refusal(Unreached { failure, is_silent }: Unreached) -> Refused {
    let code = match failure.code {
        _ if is_silent => RefusalCode::TargetSilent,
        FailureCode::AgentRejected | FailureCode::TargetNotAllowed => RefusalCode::NotAgreed,
        FailureCode::LocalTlsFailed => RefusalCode::TargetTls,
        _ => RefusalCode::TargetRefused,
    };
    Refused { code, detail: failure.detail }
}

/// A connection to the local target. If it is dropped before the transfer is complete, also because the
/// tunnel stops, it is reset: a transfer that was cut short must not look complete.
struct Connected {
    stream: ServiceStream,
    is_complete: bool,
}

impl Drop for Connected {
    fn drop(&mut self) {
        if !self.is_complete {
            socket::reset(self.stream.socket());
        }
    }
}
