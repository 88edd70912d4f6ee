//! Streams that tell an open page that its scope has changed (server-sent events, HTML Living Standard, section 9.2). The page
//! is then fetched anew, so it shows what a reload would show.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::SignIn;
use culvert_service::scope_changes::{Heard, INSTALLATION, Watch};
use futures_util::Stream;
use futures_util::stream::unfold;
use uuid::Uuid;

use crate::Dashboard;

/// Streams of a host, and of one sign-in, at the same time.
const PER_HOST: usize = 500;
const PER_SIGN_IN: usize = 8;
/// How long a stream is silent at most: proxies take a silent connection for a dead one.
const SILENCE: Duration = Duration::from_secs(15);
/// How long a page that was refused a stream waits until it tries again.
const RETRY: Duration = Duration::from_secs(10);

/// The streams that are open.
#[derive(Default)]
pub struct Streams(Mutex<HashMap<Uuid, usize>>);

/// One of them, until it is dropped.
struct Open {
    streams: Arc<Streams>,
    sign_in: Uuid,
}

impl Streams {
    /// How many are open.
    pub fn count(&self) -> usize {
        self.counts().values().sum()
    }

    fn open(self: &Arc<Self>, sign_in: Uuid) -> Result<Open> {
        let mut open = self.counts();
        let own = open.get(&sign_in).copied().unwrap_or_default();
        let all: usize = open.values().sum();
        if own >= PER_SIGN_IN || all >= PER_HOST {
            return Err(Error::of(Code::RateLimited).after(RETRY));
        }
        open.insert(sign_in, own + 1);
        Ok(Open { streams: self.clone(), sign_in })
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Uuid, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = self.streams.counts();
        match open.get_mut(&self.sign_in) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(open.remove(&self.sign_in)),
        }
    }
}

/// A stream of somebody who looks at a scope.
struct Live {
    dashboard: Arc<Dashboard>,
    sign_in: SignIn,
    /// `INSTALLATION` for the pages of operators.
    scope_id: Uuid,
    watch: Watch,
    _open: Open,
}

/// The events of a scope, or of the installation. The stream ends with the sign-in, when the account leaves the scope or is no
/// operator any more, and when the host stops.
///
/// # Errors
///
/// `rate_limited` if too many are open.
pub(crate) fn events(
    dashboard: &Arc<Dashboard>,
    sign_in: SignIn,
    scope_id: Uuid,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + Send + use<>> {
    let open = dashboard.streams.open(sign_in.id)?;
    let watch = dashboard.changes.watch(scope_id, sign_in.account_id, dashboard.service.clock());
    let live = Live { dashboard: dashboard.clone(), sign_in, scope_id, watch, _open: open };
    Ok(unfold((live, true), |(mut live, is_first)| async move {
        let event = if is_first { ": open\n\n" } else { live.next().await? };
        Some((Ok(Bytes::from_static(event.as_bytes())), (live, false)))
    }))
}

impl Live {
    async fn next(&mut self) -> Option<&'static str> {
        let heard = self.watch.next(SILENCE).await?;
        self.may_see().await.then_some(match heard {
            Heard::Change => "event: change\ndata: 1\n\n",
            Heard::Nothing => ": nothing\n\n",
        })
    }

    /// Whether the sign-in goes on and the account is in the scope. Where that cannot be told, the browser asks again.
    async fn may_see(&self) -> bool {
        let Self { dashboard, sign_in, scope_id, .. } = self;
        let present = dashboard.sign_ins.present(&dashboard.service, sign_in).await.unwrap_or(None);
        match present {
            None => false,
            Some(present) if *scope_id == INSTALLATION => present.is_operator,
            Some(_) => dashboard.service.caller_of_sign_in(sign_in, *scope_id).await.is_ok(),
        }
    }
}
