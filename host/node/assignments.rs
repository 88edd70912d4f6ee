//! What the node serves: brings listeners and rules in line with the host's assignments.

use std::collections::{HashMap, HashSet};
use std::io;

use culvert_domain::access::{AccessRules, Country, CountryAction, CountryRule, Range, RuleType};
use culvert_domain::protocol::Protocol;
use culvert_domain::string_enum::StringEnum;
use culvert_wire::node::{Assignment, FailureCode, Route, TlsIdentity, ToHost, UnopenedPort};
use uuid::Uuid;

use super::admission::Admission;
use super::public_listener::{self, EpochChange, PortSpec, Tunnel};
use super::{Node, lock};

/// The state of the channel's changes.
#[derive(Default)]
pub(crate) struct Assignments {
    /// Everything up to this revision is in force.
    revision: u64,
    /// Whether the node is stopping, and serves nothing any longer.
    is_closed: bool,
    /// Whether no whole state has come since the channel was opened.
    is_reconnected: bool,
    /// Assignments whose own port cannot be served, with what the host was told.
    failed: HashMap<Uuid, (Assignment, Failure)>,
    /// Tunnels with extra ports that could not be opened.
    incomplete: HashSet<Uuid>,
    /// The generation of the country database by which the visitors were last evaluated.
    countries: u64,
}

impl Assignments {
    /// Begins a new channel. Returns the revision that the node holds.
    pub(crate) fn reconnected(&mut self) -> u64 {
        self.is_reconnected = true;
        // The host has to be told again of what fails.
        self.failed.clear();
        self.revision
    }

    /// Waits for a whole state, as at the beginning. Returns whether it had one.
    pub(crate) fn forget_all(&mut self) -> bool {
        let had_state = !self.is_reconnected || self.revision > 0;
        let Self { is_closed, countries, .. } = *self;
        *self = Self { is_closed, countries, is_reconnected: true, ..Self::default() };
        had_state
    }

    /// Whether visitors were evaluated by an older generation of the country database.
    pub(crate) fn evaluated(&mut self, generation: u64) -> bool {
        std::mem::replace(&mut self.countries, generation) != generation
    }

    fn forget(&mut self, tunnel_id: Uuid) {
        self.failed.remove(&tunnel_id);
        self.incomplete.remove(&tunnel_id);
    }
}

/// What has changed of the names of http tunnels, and of what proves them.
pub(crate) struct WebChange {
    pub put_routes: Vec<Route>,
    /// The tunnels that have no names here any longer.
    pub drop_routes: Vec<Uuid>,
    pub put_identities: Vec<TlsIdentity>,
    pub drop_identities: Vec<Uuid>,
}

/// Why a tunnel cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Failure {
    code: FailureCode,
    detail: String,
}

impl Failure {
    fn of_port(port: u16, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::AddrInUse => FailureCode::PortInUse,
            io::ErrorKind::PermissionDenied => FailureCode::PermissionDenied,
            io::ErrorKind::OutOfMemory => FailureCode::Exhausted,
            // No file descriptors are left: ENFILE and EMFILE have no kind of their own.
            _ if matches!(error.raw_os_error(), Some(23 | 24)) => FailureCode::Exhausted,
            _ => FailureCode::Other,
        };
        Self { code, detail: format!("The node cannot open port {port}: {error}.") }
    }

    fn stopping() -> Self {
        Self { code: FailureCode::Other, detail: "The node is stopping.".into() }
    }
}

impl Node {
    pub(super) async fn apply_desired(
        &self,
        revision: u64,
        assignments: Vec<Assignment>,
        routes: Vec<Route>,
        identities: Vec<TlsIdentity>,
    ) {
        let mut state = self.assignments.lock().await;
        // A repeated frame may be older than what is in force.
        if self.authority.is_over() || (revision < state.revision && !state.is_reconnected) {
            return;
        }
        state.is_reconnected = false;
        self.shared.certificates.replace(identities);
        self.shared.routes.replace(routes);
        let wanted: HashSet<Uuid> = assignments.iter().map(|assignment| assignment.tunnel_id).collect();
        let surplus: Vec<Uuid> =
            lock(&self.shared.tunnels).keys().filter(|tunnel_id| !wanted.contains(tunnel_id)).copied().collect();
        self.end_tunnels(surplus).await;
        state.failed.retain(|tunnel_id, _| wanted.contains(tunnel_id));
        state.incomplete.retain(|tunnel_id| wanted.contains(tunnel_id));
        for assignment in assignments {
            self.put(&mut state, assignment).await;
        }
        state.revision = revision;
        self.authority.set_lapsed(false);
        self.send(ToHost::Applied { revision }).await;
        self.start_accepting();
    }

    pub(super) async fn apply_change(
        &self,
        from: u64,
        revision: u64,
        put: Vec<Assignment>,
        drop: Vec<Uuid>,
        web: WebChange,
    ) {
        let mut state = self.assignments.lock().await;
        if self.authority.is_over() || revision <= state.revision {
            return;
        }
        if from > state.revision || state.is_reconnected && state.revision == 0 {
            return self.send(ToHost::Resync { revision: state.revision }).await;
        }
        self.shared.certificates.change(web.put_identities, &web.drop_identities);
        self.shared.routes.change(web.put_routes, &web.drop_routes);
        drop.iter().for_each(|tunnel_id| state.forget(*tunnel_id));
        self.end_tunnels(drop).await;
        for assignment in put {
            self.put(&mut state, assignment).await;
        }
        state.revision = revision;
        self.send(ToHost::Applied { revision }).await;
        // A change from the held revision stands for the whole state.
        state.is_reconnected = false;
        self.start_accepting();
    }

    /// Ends a session. When the host is told so, its ports are closed, its visitors are cut off, and its
    /// traffic was sent.
    pub(super) async fn end(&self, tunnel_id: Uuid, session_id: Uuid, epoch: i64) {
        let mut state = self.assignments.lock().await;
        if state.failed.get(&tunnel_id).is_some_and(|(failed, _)| failed.session_id == session_id) {
            state.forget(tunnel_id);
        }
        let is_served = |tunnel: &Tunnel| tunnel.run().session_id() == session_id;
        if lock(&self.shared.tunnels).get(&tunnel_id).is_some_and(is_served) {
            state.incomplete.remove(&tunnel_id);
            self.end_tunnels(vec![tunnel_id]).await;
        }
        self.send(ToHost::Ended { tunnel_id, session_id, epoch }).await;
    }

    /// Ends all tunnels for good, and reports their traffic.
    pub async fn close(&self) {
        let mut state = self.assignments.lock().await;
        state.is_closed = true;
        self.end_all().await;
    }

    /// Ends all tunnels. The caller has locked the state.
    pub(super) async fn end_all(&self) {
        let all = lock(&self.shared.tunnels).keys().copied().collect();
        self.end_tunnels(all).await;
    }

    /// Tries again what could not be served, and tells the host of what has changed.
    pub(super) async fn retry(&self) {
        let mut state = self.assignments.lock().await;
        let failed: Vec<Assignment> = state.failed.values().map(|(assignment, _)| assignment.clone()).collect();
        for assignment in failed {
            self.put(&mut state, assignment).await;
        }
        for tunnel_id in state.incomplete.clone() {
            let Some(assignment) = self.with(tunnel_id, |tunnel| tunnel.run().assignment()) else { continue };
            if self.open_ports(&assignment).await.is_empty() {
                state.incomplete.remove(&tunnel_id);
                self.report_serving(&assignment, Vec::new()).await;
            }
        }
    }

    async fn put(&self, state: &mut Assignments, assignment: Assignment) {
        let tunnel_id = assignment.tunnel_id;
        let served = if state.is_closed { Err(Failure::stopping()) } else { self.serve_tunnel(&assignment).await };
        match served {
            Ok(Served::Outdated) => {}
            Ok(Served::Now) => {
                state.failed.remove(&tunnel_id);
                let unopened = self.open_ports(&assignment).await;
                if unopened.is_empty() {
                    state.incomplete.remove(&tunnel_id)
                } else {
                    state.incomplete.insert(tunnel_id)
                };
                self.report_serving(&assignment, unopened).await;
            }
            Err(failure) => {
                // A tunnel under rules that are no longer its own must not be served.
                self.end_tunnels(vec![tunnel_id]).await;
                self.fail(state, assignment, failure).await;
            }
        }
    }

    async fn report_serving(&self, assignment: &Assignment, unopened: Vec<UnopenedPort>) {
        let Assignment { tunnel_id, session_id, epoch, .. } = *assignment;
        self.send(ToHost::Serving { tunnel_id, session_id, epoch, unopened }).await;
    }

    /// Keeps an assignment that cannot be served, and tells the host why. A repeated attempt that fails in the
    /// same way is not reported again.
    async fn fail(&self, state: &mut Assignments, assignment: Assignment, failure: Failure) {
        let Assignment { tunnel_id, session_id, epoch, .. } = assignment;
        let known = state.failed.get(&tunnel_id);
        let is_known = known.is_some_and(|(former, told)| former.session_id == session_id && *told == failure);
        if !is_known && !state.is_closed {
            tracing::warn!(problem = failure.detail, tunnel = assignment.name, "a tunnel cannot be served");
        }
        state.failed.insert(tunnel_id, (assignment, failure.clone()));
        if !is_known {
            let Failure { code, detail } = failure;
            self.send(ToHost::Failed { tunnel_id, session_id, epoch, code, detail }).await;
        }
    }

    /// Serves a tunnel's own port under its rules.
    async fn serve_tunnel(&self, assignment: &Assignment) -> Result<Served, Failure> {
        if Protocol::parse(&assignment.protocol).is_none() {
            let detail = format!("The node does not know tunnels of the protocol `{}`.", assignment.protocol);
            return Err(Failure { code: FailureCode::UnsupportedProtocol, detail });
        }
        match self.with(assignment.tunnel_id, |tunnel| tunnel.switch_to(assignment, &self.shared)) {
            Some(EpochChange::Outdated) => return Ok(Served::Outdated),
            Some(EpochChange::Serving { former }) => {
                if let Some(former) = former {
                    former.finish().await;
                    self.record(vec![(former.scope_id(), former.take_traffic())]).await;
                }
                self.update_rules(assignment)?;
            }
            None => self.open_tunnel(assignment).await?,
        }
        Ok(Served::Now)
    }

    fn update_rules(&self, assignment: &Assignment) -> Result<(), Failure> {
        let found = self.with(assignment.tunnel_id, |tunnel| (tunnel.access.clone(), tunnel.flows.clone()));
        if let Some((access, flows)) = found.filter(|(access, _)| access.version() != assignment.access_version) {
            access.replace(assignment.access_version, rules(assignment)?);
            flows.iter().for_each(|flows| flows.reevaluate());
        }
        Ok(())
    }

    /// Opens the tunnel's own port. The rules are read first, so that no visitor is admitted without them.
    async fn open_tunnel(&self, assignment: &Assignment) -> Result<(), Failure> {
        let rules = rules(assignment)?;
        let (countries, bounds) = (self.shared.countries.clone(), self.shared.bounds.clone());
        let access = Admission::new(countries, bounds, assignment.access_version, rules);
        let own: Vec<_> = PortSpec::of(assignment).into_iter().filter(|port| port.id.is_none()).collect();
        // An http tunnel has a name instead.
        if own.is_empty() && assignment.protocol != Protocol::Http.as_str() {
            return Err(Failure { code: FailureCode::Other, detail: "The tunnel has no port.".into() });
        }
        let mut bound = Vec::new();
        for port in own {
            let opened = public_listener::open(port, &self.shared).await;
            bound.push((port, opened.map_err(|error| Failure::of_port(port.port, &error))?));
        }
        let mut tunnel = Tunnel::new(assignment, access, &self.shared);
        let port = bound.first().map(|(port, _)| port.port);
        for (port, bound) in bound {
            tunnel.listen(port, bound, self.shared.clone());
        }
        lock(&self.shared.tunnels).insert(assignment.tunnel_id, tunnel);
        tracing::info!(tunnel = assignment.name, port, epoch = assignment.epoch, "serving");
        Ok(())
    }

    /// Opens missing ports and closes surplus ones, so that the open ports match the assignment. Returns those
    /// that cannot be opened.
    async fn open_ports(&self, assignment: &Assignment) -> Vec<UnopenedPort> {
        let wanted = PortSpec::of(assignment);
        let closing = self.with(assignment.tunnel_id, |tunnel| tunnel.ports_to_close(&wanted));
        if let Some(closing) = closing {
            closing.close().await;
        }
        let mut unopened = Vec::new();
        for port in self.with(assignment.tunnel_id, |tunnel| tunnel.ports_to_open(&wanted)).unwrap_or_default() {
            match public_listener::open(port, &self.shared).await {
                Ok(listener) => {
                    self.with(assignment.tunnel_id, |tunnel| tunnel.listen(port, listener, self.shared.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, port = port.port, tunnel = assignment.name, "a port cannot be opened");
                    unopened.push(UnopenedPort { port: port.port, detail: error.to_string() });
                }
            }
        }
        unopened
    }

    /// Closes the ports of tunnels and cuts off their visitors, then reports their last traffic.
    async fn end_tunnels(&self, tunnel_ids: Vec<Uuid>) {
        let tunnels: Vec<Tunnel> = {
            let mut served = lock(&self.shared.tunnels);
            tunnel_ids.iter().filter_map(|tunnel_id| served.remove(tunnel_id)).collect()
        };
        let mut traffic = Vec::new();
        for tunnel in tunnels {
            let run = tunnel.close().await;
            run.finish().await;
            traffic.push((run.scope_id(), run.take_traffic()));
        }
        self.record(traffic).await;
    }

    fn with<T>(&self, tunnel_id: Uuid, look: impl FnOnce(&mut Tunnel) -> T) -> Option<T> {
        lock(&self.shared.tunnels).get_mut(&tunnel_id).map(look)
    }
}

/// Whether a put took effect.
enum Served {
    Now,
    /// A newer epoch is served.
    Outdated,
}

/// The access rules of an assignment. A rule that this version does not know refuses the tunnel: without it,
/// visitors might be admitted who must not be.
fn rules(assignment: &Assignment) -> Result<AccessRules, Failure> {
    let unknown = |rule: &dyn std::fmt::Debug| Failure {
        code: FailureCode::Other,
        detail: format!("The node does not know the access rule {rule:?}."),
    };
    let firewall = assignment.firewall.iter().map(|rule| {
        let known = RuleType::parse(&rule.rule).zip(Range::network(&rule.network));
        known.ok_or_else(|| unknown(rule))
    });
    let countries = assignment.countries.iter().map(|rule| {
        let known = Country::parse(&rule.country).zip(CountryAction::parse(&rule.action));
        known.map(|(country, action)| CountryRule { country, action }).ok_or_else(|| unknown(rule))
    });
    Ok(AccessRules { firewall: firewall.collect::<Result<_, _>>()?, countries: countries.collect::<Result<_, _>>()? })
}
