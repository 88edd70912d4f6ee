//! The audit log: who has changed what, and whether the log is whole.

use std::net::IpAddr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use culvert_domain::audit_log::{Actor, AuditAction, Entry, KEPT, NewEntry};
use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
use culvert_domain::page::{Page, PageRows};
use culvert_store::Store;
use culvert_store::audit_heads::AuditKey;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Service;
use crate::secrets::{Purpose, Secrets};

/// Entries of one query.
const BATCH: u32 = 500;

/// Has the entries of a store be authenticated with the host's key.
pub fn sign_with(store: &Store, secrets: &Secrets) {
    store.set_audit_key(Arc::new(secrets.clone()));
}

impl AuditKey for Secrets {
    fn mac(&self, entry: &[u8]) -> Vec<u8> {
        self.mac(Purpose::Audit, entry)
    }

    fn vouches_for(&self, entry: &[u8], mac: &[u8]) -> bool {
        self.verify_mac(Purpose::Audit, entry, mac)
    }
}

impl Service {
    /// A page of the log of the caller's scope, with the names of accounts: a member's own entries, and for everybody else all.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn audit_entries(&self, caller: &Caller, page: Page) -> Result<PageRows<(Entry, Option<String>)>> {
        self.store.audit_entries(caller.scope.id, caller.own_alone(), page).await
    }

    /// Has the log of the caller's scope tell that it was exported.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn note_audit_export(
        &self,
        caller: &Caller,
        request_id: Option<Uuid>,
        address: Option<IpAddr>,
    ) -> Result<()> {
        let actor = Actor::of(caller, request_id, address);
        self.store.audit(NewEntry::new(caller.scope.id, actor, AuditAction::AuditExport)).await
    }
}

/// An entry as a line of an export.
pub fn record(entry: &Entry) -> Value {
    let Entry { scope_id, number, at, actor, action, subject_id, details, previous_at, previous, digest } = entry;
    let Actor { origin, account_id, credential_id, request_id, address } = actor;
    json!({
        "scope_id": scope_id,
        "number": number,
        "at": at,
        "origin": origin,
        "account_id": account_id,
        "credential_id": credential_id,
        "action": action,
        "subject_id": subject_id,
        "details": serde_json::from_str::<Value>(details).ok(),
        "request_id": request_id,
        "address": address,
        "previous_at": previous_at,
        "previous": hex::encode(previous),
        "digest": hex::encode(digest),
    })
}

/// What is wrong with a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub scope_id: Uuid,
    /// The first entry that it shows at.
    pub number: u64,
    pub problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("was changed, or was never written by a host")]
    Altered,
    #[error("was authenticated with key v{0}, which secret_key_file does not have")]
    KeyMissing(u8),
    #[error("does not follow the one before it: entries were deleted")]
    Gap,
    #[error("is the first, and the one before it was deleted before its time")]
    CutOff,
}

/// What a log has.
#[derive(Debug, Default)]
pub struct Verified {
    pub scopes: u64,
    pub entries: u64,
    pub faults: Vec<Fault>,
}

/// Looks at every entry of every scope in the order of their chains, and calls `each` with it. Of each chain, the first fault
/// is told: what follows depends on it.
///
/// # Errors
///
/// If the database fails.
pub async fn verify(store: &Store, secrets: &Secrets, mut each: impl FnMut(&Entry)) -> Result<Verified> {
    let mut verified = Verified::default();
    let mut after = Uuid::nil();
    while let Some(scope_id) = store.audited_scope_after(after).await? {
        verified.scopes += 1;
        verify_chain(store, secrets, scope_id, &mut verified, &mut each).await?;
        after = scope_id;
    }
    Ok(verified)
}

async fn verify_chain(
    store: &Store,
    secrets: &Secrets,
    scope_id: Uuid,
    verified: &mut Verified,
    each: &mut impl FnMut(&Entry),
) -> Result<()> {
    let kept_since = store.clock().now() - KEPT;
    let (mut before, mut is_whole): (Option<Entry>, bool) = (None, true);
    if store.has_impossible_audit_entries(scope_id).await? {
        is_whole = false;
        verified.faults.push(Fault { scope_id, number: 0, problem: Problem::Altered });
    }
    loop {
        let number = before.as_ref().map_or(0, |entry| entry.number);
        let entries = store.audit_entries_after(scope_id, number, BATCH).await?;
        let is_last = entries.len() < BATCH as usize;
        for entry in entries {
            verified.entries += 1;
            each(&entry);
            if let Some(problem) = problem(&entry, before.as_ref(), secrets, kept_since).filter(|_| is_whole) {
                is_whole = false;
                verified.faults.push(Fault { scope_id, number: entry.number, problem });
            }
            before = Some(entry);
        }
        if is_last {
            return Ok(());
        }
    }
}

fn problem(entry: &Entry, before: Option<&Entry>, secrets: &Secrets, kept_since: DateTime<Utc>) -> Option<Problem> {
    if !secrets.verify_mac(Purpose::Audit, &entry.authenticated(), &entry.digest) {
        let version = entry.digest.first().copied().unwrap_or_default();
        return Some(if secrets.has_key(version) { Problem::Altered } else { Problem::KeyMissing(version) });
    }
    match before {
        Some(before) => {
            let follows = entry.number == before.number + 1 && entry.previous == before.digest;
            (!follows || entry.previous_at != Some(before.at)).then_some(Problem::Gap)
        }
        None if entry.number == 1 => None,
        None => entry.previous_at.is_none_or(|at| at > kept_since).then_some(Problem::CutOff),
    }
}
