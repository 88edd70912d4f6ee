//! One-time links, by which people come into the dashboard. The secret stands in the fragment of the URL, which no
//! server and no proxy sees.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Code, Error, Result};
use culvert_store::{Store, Write};
use culvert_wire::clock::Clock;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// How long a link can be used.
const LINK_LIFETIME: TimeDelta = TimeDelta::minutes(30);

/// Characters of a secret: 32 bytes in base64url without padding (RFC 4648, section 5).
pub const SECRET_CHARACTERS: usize = 43;

/// A link's secret, and when it ends.
#[derive(Clone)]
pub struct NewLink {
    pub secret: String,
    pub expires_at: DateTime<Utc>,
}

impl NewLink {
    /// A link to an account.
    pub fn of_account(clock: &Clock) -> Self {
        Self::within(clock, LINK_LIFETIME)
    }

    pub(crate) fn within(clock: &Clock, lifetime: TimeDelta) -> Self {
        Self { secret: new_secret(clock), expires_at: clock.now() + lifetime }
    }
}

/// A secret for a link.
pub fn new_secret(clock: &Clock) -> String {
    URL_SAFE_NO_PAD.encode(clock.random::<32>())
}

/// Creates a link for an account.
///
/// # Errors
///
/// If the database fails.
pub async fn create(store: &Store, account_id: Uuid) -> Result<NewLink> {
    let create = store.write(Some(account_id), move |write| {
        write.audit(NewEntry::new(account_id, Actor::CLI, AuditAction::AccountsLink));
        Box::pin(add_new(write, account_id))
    });
    create.await
}

async fn add_new(write: &mut Write, account_id: Uuid) -> Result<NewLink> {
    let link = NewLink::of_account(&write.clock);
    add(write, account_id, &link).await?;
    Ok(link)
}

/// Adds a link for an account, unless it is locked.
pub(crate) async fn add(write: &mut Write, account_id: Uuid, link: &NewLink) -> Result<()> {
    if write.is_locked(account_id).await? {
        return Err(Error::new(Code::ValidationFailed, "The account is locked; unlock it first."));
    }
    write.create_link(&hash(&link.secret), account_id, link.expires_at).await
}

/// Has an account begin anew by a link: its second factor, its passkeys, its links with other providers, its password, its sign-ins
/// and former links end.
///
/// # Errors
///
/// If the database fails.
pub async fn recover(store: &Store, account_id: Uuid) -> Result<NewLink> {
    let recover = store.write(Some(account_id), move |write| {
        Box::pin(async move {
            write.remove_second_factor(account_id).await?;
            write.remove_password(account_id).await?;
            write.remove_passkeys_of(account_id).await?;
            write.remove_identities_of(account_id).await?;
            write.end_sign_ins_of(account_id).await?;
            write.delete_links_of(account_id).await?;
            write.delete_email_change(account_id).await?;
            write.audit(NewEntry::new(account_id, Actor::CLI, AuditAction::AccountsRecover));
            add_new(write, account_id).await
        })
    });
    recover.await
}

/// Makes the link by which the first operator comes in, while no account can sign in; ends a former one.
///
/// # Errors
///
/// If the database fails.
pub async fn offer_setup(store: &Store) -> Result<Option<String>> {
    let secret = if store.somebody_can_sign_in().await? { None } else { Some(new_secret(store.clock())) };
    let hash = secret.as_deref().map(hash);
    let replace = store.write(None, move |write| {
        Box::pin(async move { write.replace_setup_link(hash.as_ref().map(<[u8; 32]>::as_slice)).await })
    });
    replace.await?;
    Ok(secret)
}

/// The hash by which a secret is found.
pub(crate) fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// The same, for what has the form of a secret at all. People may paste the whole link.
pub(crate) fn hash_of(typed: &str) -> Option<[u8; 32]> {
    let typed = typed.trim();
    let secret = typed.rsplit_once('#').map_or(typed, |(_, secret)| secret);
    let fits = secret.len() == SECRET_CHARACTERS
        && secret.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    fits.then(|| hash(secret))
}
