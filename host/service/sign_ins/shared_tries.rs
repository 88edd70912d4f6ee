//! Tries at passwords and codes of accounts at all hosts together. A host that is alone counts in memory only.

use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_domain::error::Result;
use culvert_store::sign_in_tries::CountedTries;

use super::throttle::{Account, CODES_OF_STRANGERS, REMEMBERED_FOR, wait_after};
use super::wait_for;
use crate::Service;

/// Counts a wrong password, until it turns out to be right.
///
/// # Errors
///
/// `rate_limited` if others have been tried just now.
pub(super) async fn take_password(service: &Service, account: Account) -> Result<()> {
    take(service, account, |now, known| {
        let since = known.map(|known| (now - known.last_at).to_std().unwrap_or_default());
        let wait = known.zip(since).and_then(|(known, since)| wait_after(known.count, since));
        wait.map_or(Ok(now + REMEMBERED_FOR), Err)
    })
    .await
}

/// Counts a code of a stranger.
///
/// # Errors
///
/// `rate_limited` after too many.
pub(super) async fn take_code(service: &Service, account: Account) -> Result<()> {
    let (most, within) = CODES_OF_STRANGERS;
    take(service, account, move |now, known| match known {
        Some(known) if known.count >= most => Err((known.expires_at - now).to_std().unwrap_or_default()),
        Some(known) => Ok(known.expires_at),
        None => Ok(now + within),
    })
    .await
}

/// Counts a try until the time that the rule says, or says how long to wait.
async fn take(
    service: &Service,
    what: Account,
    rule: impl FnOnce(DateTime<Utc>, Option<CountedTries>) -> std::result::Result<DateTime<Utc>, Duration> + Send + 'static,
) -> Result<()> {
    if !service.fleet.has_others() {
        return Ok(());
    }
    let take = service.store.write(None, move |write| {
        Box::pin(async move {
            let known = write.sign_in_tries(&what).await?;
            let until = rule(write.now, known).map_err(wait_for)?;
            write.count_sign_in_try(&what, until).await
        })
    });
    take.await
}

/// Gives a try back that was not looked at.
pub(super) async fn give_back(service: &Service, what: Account) -> Result<()> {
    if !service.fleet.has_others() {
        return Ok(());
    }
    service.store.write(None, move |write| Box::pin(async move { write.give_sign_in_try_back(&what).await })).await
}

/// A password was right.
pub(super) async fn forget(service: &Service, what: Account) -> Result<()> {
    if !service.fleet.has_others() {
        return Ok(());
    }
    service.store.write(None, move |write| Box::pin(async move { write.forget_sign_in_tries(&what).await })).await
}
