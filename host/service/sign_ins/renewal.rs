//! What every change of credentials leads to: all other sign-ins of the account end with the links that were not used, and
//! this one gets another value, so that a copy of its cookie is of no use.

use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::{ELEVATION, SignIn};
use culvert_store::Write;
use uuid::Uuid;

use super::{SignInValue, SignIns, new_value};
use crate::links::hash;

/// The next value of a sign-in.
pub(super) struct Renewal {
    account_id: Uuid,
    value: SignInValue,
}

/// The part of it that a transaction writes.
#[derive(Clone, Copy)]
pub(super) struct RenewedSignIn {
    account_id: Uuid,
    id: Uuid,
    hash: [u8; 32],
}

impl SignIns {
    pub(super) fn renewal(&self, sign_in: &SignIn) -> (Renewal, RenewedSignIn) {
        let SignIn { id, account_id, expires_at, .. } = *sign_in;
        let value = new_value(&self.clock);
        let hash = hash(&value);
        let renewal = Renewal { account_id, value: SignInValue { value, expires_at } };
        (renewal, RenewedSignIn { account_id, id, hash })
    }

    /// The value that the sign-in has from now on, after the transaction.
    pub(super) fn renewed(&self, renewal: Renewal) -> SignInValue {
        self.read_again(renewal.account_id);
        self.expect(&renewal.value);
        renewal.value
    }
}

impl RenewedSignIn {
    /// Ends all others and what else leads into the account, and gives this one its next value.
    pub(super) async fn write(&self, write: &mut Write) -> Result<()> {
        end_others(write, self.account_id, self.id).await?;
        write.renew_sign_in(self.id, &self.hash).await
    }

    /// Gives this one its next value, and notes that the person has just proved who they are.
    pub(super) async fn elevate(&self, write: &mut Write) -> Result<()> {
        let until = write.now + ELEVATION;
        let goes_on = write.elevate_sign_in(self.id, &self.hash, until).await?;
        if goes_on { Ok(()) } else { Err(Error::of(Code::SignInRequired)) }
    }
}

/// Ends all other sign-ins of an account, and the links that were not used: those into it, and the one that would change its
/// address.
pub(super) async fn end_others(write: &mut Write, account_id: Uuid, id: Uuid) -> Result<()> {
    write.end_other_sign_ins(account_id, id).await?;
    write.delete_links_of(account_id).await?;
    write.delete_email_change(account_id).await
}
