//! How people come in by a link: with an account that is there, or with a new one, as the first operator, as somebody who was
//! invited to a Team, or as whoever has asked for one.

use culvert_domain::account;
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry, Origin};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::sign_in::{ELEVATION, SignIn, SignInMethod, SignUp};
use culvert_domain::team::Invitation;
use serde_json::json;
use uuid::Uuid;

use super::strength::check_strength;
use super::throttle::BEGINS;
use super::{Client, Proved, SignInValue, SignIns, create, wait_for};
use crate::Service;
use crate::call::Answered;
use crate::idempotency::IdempotencyKey;
use crate::invitations::join;
use crate::links;

/// What a link leads to.
pub enum Entered {
    /// Its account, which is signed in now or has a code to give.
    Proved(Proved),
    /// Its account has another e-mail address now.
    EmailChanged(String),
    /// Something that takes more than the link, which is not used up.
    Welcome(Welcome),
}

/// Whom a link is for.
pub enum Welcome {
    /// The first operator, who has no account yet.
    Operator,
    /// Somebody who is invited to a Team, and may have an account.
    Member(Invitation),
    /// Somebody with this e-mail address who has asked for an account.
    Newcomer(String),
}

/// Somebody who wants an account, as typed.
#[derive(Clone, Default)]
pub struct NewPerson {
    pub name: String,
    /// Asked of the first operator alone: the others' is known by their link.
    pub email: String,
    pub password: String,
}

impl SignIns {
    /// Signs somebody in who has a link to an account, which is used up; otherwise says what the link is for.
    ///
    /// # Errors
    ///
    /// `link_not_valid` if it is used up, too old or none; `rate_limited` after too many of those from one address.
    pub async fn enter(&self, service: &Service, typed: &str, client: &Client) -> Result<Entered> {
        let hash = self.hash_of_link(typed, client)?;
        // Checked first without a write transaction, so that wrong links do not delay other writers.
        let Some(account_id) = service.store.account_of_link(&hash).await? else {
            if let Some(email) = self.take_email(service, hash, client).await? {
                return Ok(Entered::EmailChanged(email));
            }
            return Ok(Entered::Welcome(self.welcome(service, hash, client).await?));
        };
        let (value, new) = self.new_sign_in(account_id, SignInMethod::Link, client);
        let entered = service.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                if write.take_link(&hash).await?.is_none() {
                    return Ok(None);
                }
                let has_second_factor = write.has_second_factor(account_id).await?;
                if !has_second_factor {
                    create(write, &new).await?;
                }
                Ok(Some(has_second_factor))
            })
        });
        if entered.await?.ok_or_else(|| self.not_valid(client))? {
            return Ok(Entered::Proved(Proved::NeedsCode(self.ticket(service, account_id, SignInMethod::Link))));
        }
        self.expect(&value);
        Ok(Entered::Proved(Proved::SignedIn(value)))
    }

    /// Makes the account of somebody who has a link for a new one, and signs it in.
    ///
    /// # Errors
    ///
    /// As [`SignIns::enter`]; `validation_failed` with what is wrong with name, e-mail address and password.
    pub async fn begin(
        &self,
        service: &Service,
        typed: &str,
        person: NewPerson,
        client: &Client,
    ) -> Result<SignInValue> {
        let hash = self.hash_of_link(typed, client)?;
        let welcome = self.welcome(service, hash, client).await?;
        if !self.may_sign_up(&welcome) {
            return Err(self.has_none());
        }
        let now = self.clock.moment();
        self.throttle.tries.take(hash, BEGINS, now).map_err(wait_for)?;
        self.throttle.begins.count(client.address, now).map_or(Ok(()), |wait| Err(wait_for(wait)))?;
        let (name, email) = check(service, &person, &welcome).await?;
        if service.store.account_by_email(&email).await?.is_some() {
            return Err(has_account());
        }
        let password = service.passwords.hash(Some(person.password)).await?;
        let plan = service.default_plan();
        let (value, mut new) = self.new_sign_in(Uuid::nil(), SignInMethod::Password, client);
        new.elevated_until = Some(self.clock.now() + ELEVATION);
        let team_id = match &welcome {
            Welcome::Operator | Welcome::Newcomer(_) => None,
            Welcome::Member(invitation) => Some(invitation.team_id),
        };
        let is_operator = matches!(welcome, Welcome::Operator);
        let address = client.address;
        let begun = service.store.write(team_id, move |write| {
            Box::pin(async move {
                let invitation = match welcome {
                    Welcome::Operator if write.take_setup_link(&hash).await? => None,
                    Welcome::Newcomer(_) if write.take_sign_up(&hash).await? => None,
                    Welcome::Operator | Welcome::Newcomer(_) => return Ok(false),
                    Welcome::Member(_) => match write.take_invitation(&hash).await? {
                        Some(invitation) => Some(invitation),
                        None => return Ok(false),
                    },
                };
                // An error undoes everything, so that the link can be used again.
                let account = write.create_account(&email, &name, &plan).await?.ok_or_else(has_account)?;
                if let Some(password) = password {
                    write.set_password(account.id, &password).await?;
                }
                let actor = || Actor::account(Origin::Dashboard, account.id, address);
                match invitation {
                    Some(invitation) => {
                        // It is the address that whoever invites has typed.
                        write.set_email_proved(account.id, false).await?;
                        join(write, &invitation, account.id, actor()).await?;
                    }
                    None if is_operator => write.set_operator(account.id, true).await?,
                    None => {}
                }
                new.account_id = account.id;
                let entry = NewEntry::new(account.id, actor(), AuditAction::AccountsCreate);
                write.audit(entry.with(&json!({"email": email, "operator": is_operator})));
                create(write, &new).await.map(|()| true)
            })
        });
        if !begun.await? {
            return Err(self.not_valid(client));
        }
        self.expect(&value);
        Ok(value)
    }

    /// Whether somebody may make an account by a link for this.
    pub fn may_sign_up(&self, welcome: &Welcome) -> bool {
        match welcome {
            Welcome::Operator => true,
            // Whoever invites sees the link, which proves no address. Where everybody may invite, everybody makes an account by a
            // link that was mailed.
            Welcome::Member(_) => self.sign_up == SignUp::Invited,
            Welcome::Newcomer(_) => self.is_open(),
        }
    }

    /// Why an invitation makes no account.
    fn has_none(&self) -> Error {
        let problem = if self.is_open() {
            "has no account; create one first, and open the link once more"
        } else {
            "has no account, and operators make accounts here; sign in with another one"
        };
        Error::invalid(vec![Fault::new("email", problem)])
    }

    /// Whether whoever wants an account makes one.
    pub fn is_open(&self) -> bool {
        self.sign_up == SignUp::Open
    }

    /// Has somebody who is signed in join the Team that a link invites to.
    ///
    /// # Errors
    ///
    /// As [`SignIns::enter`].
    pub async fn accept(
        &self,
        service: &Service,
        sign_in: &SignIn,
        typed: &str,
        key: &IdempotencyKey,
        client: &Client,
    ) -> Result<Answered> {
        let hash = self.hash_of_link(typed, client)?;
        service.accept(sign_in.account_id, hash, key).await.map_err(|error| match error.code {
            Code::LinkNotValid => self.not_valid(client),
            _ => error,
        })
    }

    /// What a link is for that leads to no account.
    ///
    /// # Errors
    ///
    /// As [`SignIns::enter`].
    pub async fn welcome_of(&self, service: &Service, typed: &str, client: &Client) -> Result<Welcome> {
        let hash = self.hash_of_link(typed, client)?;
        self.welcome(service, hash, client).await
    }

    async fn welcome(&self, service: &Service, hash: [u8; 32], client: &Client) -> Result<Welcome> {
        if let Some(invitation) = service.store.invitation(&hash).await? {
            return Ok(Welcome::Member(invitation));
        }
        if let Some(email) = service.store.sign_up(&hash).await?.filter(|_| self.is_open()) {
            return Ok(Welcome::Newcomer(email));
        }
        let is_first = service.store.has_setup_link(&hash).await?;
        is_first.then_some(Welcome::Operator).ok_or_else(|| self.not_valid(client))
    }

    fn hash_of_link(&self, typed: &str, client: &Client) -> Result<[u8; 32]> {
        let now = self.clock.moment();
        self.throttle.links.wait(client.address, now).map_or(Ok(()), |wait| Err(wait_for(wait)))?;
        links::hash_of(typed).ok_or_else(|| self.not_valid(client))
    }

    /// Counts a link that is not valid.
    fn not_valid(&self, client: &Client) -> Error {
        self.throttle.links.count(client.address, self.clock.moment());
        Error::of(Code::LinkNotValid)
    }
}

/// The name and the e-mail address of a new account, if they and the password will do.
async fn check(service: &Service, person: &NewPerson, welcome: &Welcome) -> Result<(String, String)> {
    let name = account::name(&person.name).map_err(|problem| Fault::new("name", problem));
    let email = match welcome {
        Welcome::Member(Invitation { email, .. }) | Welcome::Newcomer(email) => Ok(email.clone()),
        Welcome::Operator => account::email(&person.email).map_err(|problem| Fault::new("email", problem)),
    };
    let hints = [email.as_deref().unwrap_or_default(), person.name.as_str()];
    let weak = match check_strength(&service.passwords, &person.password, hints).await {
        Err(error) if error.code != Code::ValidationFailed => return Err(error),
        checked => checked.err(),
    };
    match (name, email, weak) {
        (Ok(name), Ok(email), None) => Ok((name, email)),
        (name, email, weak) => {
            let weak = weak.into_iter().flat_map(|error| error.faults);
            Err(Error::invalid(name.err().into_iter().chain(email.err()).chain(weak).collect()))
        }
    }
}

fn has_account() -> Error {
    Error::invalid(vec![Fault::new("email", "has an account; sign in with it first")])
}
