//! Failed sign-ins, for the audit log.

use std::net::IpAddr;

use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::Chain;
use serde_json::json;
use uuid::Uuid;

use super::SignIns;
use crate::Service;

impl SignIns {
    /// Has the audit log tell of a wrong password or code, once a minute for an account and an address. It is written beside the
    /// answer, whose time tells nothing of it.
    pub(super) fn note_failure(
        &self,
        service: &Service,
        account_id: Uuid,
        address: Option<IpAddr>,
        what: &'static str,
    ) {
        if !self.throttle.takes_note(account_id, address, self.clock.moment()) {
            return;
        }
        let actor = Actor::visitor(address);
        let entry = NewEntry::new(account_id, actor, AuditAction::SignInsFail).with(&json!({"wrong": what}));
        let store = service.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.audit(entry).await {
                tracing::warn!(error = %Chain(&error), "a failed sign-in could not be noted");
            }
        });
    }
}
