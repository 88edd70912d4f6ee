//! Nodes of other hosts on the database: what this host asks of them, and what it answers to the others. A request is a row. A
//! notification tells that it is there, and a look every second finds one that was not heard of.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_domain::error::{Chain, Error, Result};
use culvert_domain::lease::Lease;
use culvert_domain::node_request::RequestKind;
use culvert_store::node_requests::{EndsElsewhere, NewRequest, NodeRequest, Sent};
use culvert_wire::clock::Moment;
use culvert_wire::control::{Failure, NodeAddress};
use futures_util::future::join_all;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::metrics::fleet::NodeAnswer;

use super::{ANSWER_WITHIN, APPLY_WITHIN, EndedSessions, Link, Nodes, RETRY, lock, not_started, unavailable};

/// How often it is looked for answers of which no notification has told.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The address of a node that serves what it was asked to; None for other requests.
type Answer = Result<Option<NodeAddress>, Failure>;

#[derive(Default)]
pub(super) struct Elsewhere {
    /// Who waits for an answer, by request.
    waiting: Mutex<HashMap<Uuid, oneshot::Sender<Answer>>>,
    /// When answers were looked for last.
    looked_at: Mutex<Option<Moment>>,
    /// The requests of other hosts that are being answered.
    under_way: Mutex<HashSet<Uuid>>,
}

impl Elsewhere {
    fn wait_for(&self, request_id: Uuid) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = lock(&self.waiting);
        // A client that has gone does not wait any longer.
        waiting.retain(|_, sender| !sender.is_closed());
        waiting.insert(request_id, sender);
        receiver
    }

    /// Whether this wait is to look for answers now. One does it for all.
    fn looks(&self, now: Moment) -> bool {
        let mut looked_at = lock(&self.looked_at);
        let is_due = looked_at.is_none_or(|last| now.since(last) >= LOOK_EVERY);
        if is_due {
            *looked_at = Some(now);
        }
        is_due
    }
}

/// What came of requests to several nodes.
struct Asked {
    /// Those that were sent.
    request_ids: Vec<Uuid>,
    /// Their answers; None where one of them is missing.
    answers: Option<Vec<Answer>>,
    /// The nodes that serve nothing because they have no host.
    without_host: Vec<Uuid>,
    /// The hosts of some nodes are not heard of.
    is_away: bool,
}

impl Nodes {
    pub(super) async fn serve_elsewhere(&self, lease: &Lease, within: Duration) -> Result<NodeAddress, Failure> {
        let asked = self.ask([self.about(lease, RequestKind::Serve)].into(), within).await;
        tokio::spawn(self.forget(asked.request_ids.clone()));
        if asked.is_away {
            return Err(unavailable());
        }
        if asked.request_ids.is_empty() {
            return Err(not_started("The tunnel's node is not there."));
        }
        let answer = asked.answers.into_iter().flatten().next().ok_or_else(unavailable)?;
        answer?.ok_or_else(unavailable)
    }

    /// Asks for the end of leases. What this returns has to be taken up.
    pub(super) async fn end_elsewhere(&self, leases: &[&Lease]) -> Result<EndsElsewhere, Failure> {
        let requests: Vec<_> = leases.iter().map(|lease| self.about(lease, RequestKind::End)).collect();
        let Asked { request_ids, answers, without_host, is_away } = self.ask(requests, ANSWER_WITHIN).await;
        let have_ended = answers.is_some_and(|answers| answers.iter().all(Result::is_ok));
        if have_ended && !is_away {
            return Ok(EndsElsewhere { request_ids, without_host });
        }
        self.forget(request_ids).await;
        Err(unavailable())
    }

    pub(super) async fn apply_elsewhere(&self, node_ids: Vec<Uuid>) -> Result<()> {
        let request = |node_id| NewRequest { id: self.clock.id(), node_id, kind: RequestKind::Apply, session: None };
        let Asked { request_ids, answers, is_away, .. } =
            self.ask(node_ids.into_iter().map(request).collect(), APPLY_WITHIN).await;
        tokio::spawn(self.forget(request_ids));
        if !is_away && answers.is_some_and(|answers| answers.iter().all(Result::is_ok)) {
            return Ok(());
        }
        Err(Error::internal("a node of another host has not applied a change within 2 seconds"))
    }

    fn about(&self, lease: &Lease, kind: RequestKind) -> NewRequest {
        let Lease { node_id, tunnel_id, session_id, epoch, .. } = *lease;
        NewRequest { id: self.clock.id(), node_id, kind, session: Some((tunnel_id, session_id, epoch)) }
    }

    /// Asks the hosts of nodes, and waits for their answers.
    async fn ask(&self, requests: Vec<NewRequest>, within: Duration) -> Asked {
        let mut asked =
            Asked { request_ids: Vec::new(), answers: Some(Vec::new()), without_host: Vec::new(), is_away: false };
        if requests.is_empty() {
            return asked;
        }
        let begun = self.clock.moment();
        let deadline = begun.plus(within);
        let waits: Vec<_> = requests.iter().map(|request| self.elsewhere.wait_for(request.id)).collect();
        let all: Vec<NewRequest> = requests.clone();
        let sent = self.store.ask_nodes(requests).await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "the hosts of nodes could not be asked");
            vec![Sent::HostAway; all.len()]
        });
        let mut answers = Vec::new();
        for ((request, wait), sent) in all.iter().zip(waits).zip(sent) {
            match sent {
                Sent::Asked => {
                    asked.request_ids.push(request.id);
                    answers.push(wait);
                }
                Sent::HostAway => asked.is_away = true,
                Sent::NoHost => asked.without_host.push(request.node_id),
            }
        }
        let answered = self.clock.timeout_at(deadline, self.look_until(join_all(answers))).await;
        asked.answers = answered.ok().and_then(|answers| answers.into_iter().collect::<Result<_, _>>().ok());
        self.count_requests(&all, &asked, self.clock.moment().since(begun));
        let mut waiting = lock(&self.elsewhere.waiting);
        all.iter().for_each(|request| drop(waiting.remove(&request.id)));
        asked
    }

    fn count_requests(&self, requests: &[NewRequest], asked: &Asked, took: Duration) {
        let answer = match asked {
            Asked { is_away: true, .. } => NodeAnswer::HostAway,
            Asked { request_ids, .. } if request_ids.is_empty() => NodeAnswer::HostAway,
            Asked { answers: None, .. } => NodeAnswer::TimedOut,
            Asked { .. } => NodeAnswer::Answered,
        };
        requests.iter().for_each(|request| self.fleet_metrics.asked(request.kind, answer, took));
    }

    /// Looks for answers until all are there.
    async fn look_until<T>(&self, all: impl Future<Output = T>) -> T {
        let looking = async {
            loop {
                self.clock.sleep(LOOK_EVERY).await;
                if self.elsewhere.looks(self.clock.moment())
                    && let Err(error) = self.take_answers().await
                {
                    tracing::warn!(error = %Chain(&error), "answers of other hosts could not be read");
                }
            }
        };
        tokio::select! {
            biased;
            all = all => all,
            never = looking => never,
        }
    }

    /// Reads the answers of other hosts.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn take_answers(&self) -> Result<()> {
        if lock(&self.elsewhere.waiting).is_empty() {
            return Ok(());
        }
        for (id, answer) in self.store.node_answers().await? {
            let Some(waiting) = lock(&self.elsewhere.waiting).remove(&id) else { continue };
            let answer = serde_json::from_str(&answer).unwrap_or_else(|error| {
                tracing::error!(%error, "an answer of another host cannot be read");
                Err(unavailable())
            });
            let _ = waiting.send(answer);
        }
        Ok(())
    }

    /// Forgets requests to other hosts. Those that stand are forgotten with old rows.
    pub(super) fn forget(&self, request_ids: Vec<Uuid>) -> impl Future<Output = ()> + use<> {
        let store = self.store.clone();
        async move {
            if !request_ids.is_empty()
                && let Err(error) = store.forget_requests(request_ids).await
            {
                tracing::warn!(error = %Chain(&error), "requests to other hosts could not be forgotten");
            }
        }
    }

    /// Answers what other hosts ask of the nodes here, each in a task of its own.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn take_requests(self: &Arc<Self>) -> Result<()> {
        for request in self.store.waiting_requests().await? {
            if lock(&self.elsewhere.under_way).insert(request.id) {
                let nodes = self.clone();
                tokio::spawn(async move {
                    nodes.answer(&request).await;
                    lock(&nodes.elsewhere.under_way).remove(&request.id);
                });
            }
        }
        Ok(())
    }

    async fn answer(&self, request: &NodeRequest) {
        let Some(link) = self.link(request.node_id) else {
            self.save_answer(request, &Err(not_started("The tunnel's node is not there."))).await;
            return;
        };
        match (request.kind, request.tunnel_id.zip(request.session_id)) {
            (RequestKind::Serve, Some((tunnel_id, session_id))) => {
                let served = self.serve_here(&link, tunnel_id, session_id).await;
                self.save_answer(request, &served.map(Some)).await;
            }
            (RequestKind::End, Some((tunnel_id, session_id))) => {
                self.end_for(request, link, tunnel_id, session_id).await;
            }
            (RequestKind::Apply, _) => {
                let applied = self.apply_and_confirm_moves(&link).await;
                let applied = applied.map(|()| None).map_err(|_| unavailable());
                self.save_answer(request, &applied).await;
            }
            (RequestKind::Serve | RequestKind::End, None) => {
                self.save_answer(request, &Err(unavailable())).await;
            }
        }
    }

    /// Ends a session for another host. It is not served again until that host has taken up the end, or cannot any longer:
    /// either the stop is recorded, or the service goes on, and never both.
    async fn end_for(&self, request: &NodeRequest, link: Arc<Link>, tunnel_id: Uuid, session_id: Uuid) {
        let answer = link.end(tunnel_id, session_id, request.epoch.unwrap_or_default()).await;
        let has_ended = self.clock.timeout(ANSWER_WITHIN, answer).await.is_ok_and(|answer| answer.is_ok());
        let answer = if has_ended {
            // Its last traffic counts for a session that is open.
            let stored = self.clock.timeout(ANSWER_WITHIN, link.wait_until_stored()).await;
            stored.map(|()| None).map_err(|_| unavailable())
        } else {
            Err(unavailable())
        };
        if self.save_answer(request, &answer).await && answer.is_ok() {
            self.clock.until(self.clock.moment_of(request.expires_at)).await;
            while let Err(error) = self.store.withdraw_request(request.id).await {
                tracing::warn!(error = %Chain(&error), %tunnel_id, "the end of a session could not be withdrawn");
                self.clock.sleep(RETRY).await;
            }
        }
        let sessions = vec![(link, tunnel_id, session_id)];
        self.release(EndedSessions { sessions, ..EndedSessions::default() }).await;
    }

    /// Returns whether somebody waited for it.
    async fn save_answer(&self, request: &NodeRequest, answer: &Answer) -> bool {
        let text = match serde_json::to_string(answer) {
            Ok(text) => text,
            Err(error) => {
                tracing::error!(%error, "an answer to another host cannot be written");
                return false;
            }
        };
        self.store.answer_request(request.id, text).await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "an answer to another host could not be stored");
            // It may have been.
            true
        })
    }
}
