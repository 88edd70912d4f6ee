//! What operators see and do in the dashboard: accounts, nodes and policies. No policy is asked: a broken one must not keep its
//! operator from mending it.

use std::sync::Arc;

use culvert_domain::account::{self, AccountRecord};
use culvert_domain::audit_log::{Actor, AuditAction, NewEntry};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::mail::SealedMail;
use culvert_domain::node::{Node, NodeStatus};
use culvert_domain::page::{Page, PageRows};
use culvert_domain::sign_in::SignIn;
use culvert_store::Write;
use serde_json::{Value, json};
use uuid::Uuid;

use culvert_policy::serve::differences::Difference;
pub use culvert_policy::serve::status::{ModuleStatus, Status as PolicyStatus};

use crate::Service;
use crate::call::Answered;
use crate::gate::{self, PinnedPolicies};
use crate::idempotency::IdempotencyKey;
use crate::links::{self, NewLink};
use crate::locked_accounts;

/// Somebody who is signed in and operates the installation.
#[derive(Clone)]
pub struct Operator {
    account_id: Uuid,
    actor: Actor,
}

impl Operator {
    /// # Errors
    ///
    /// `not_found` for anybody else.
    pub fn of(sign_in: &SignIn) -> Result<Self> {
        if !sign_in.is_operator {
            return Err(Error::not_found());
        }
        Ok(Self { account_id: sign_in.account_id, actor: Actor::signed_in(sign_in) })
    }
}

/// An account that is wanted, as typed.
#[derive(Clone, Default)]
pub struct WantedAccount {
    pub name: String,
    pub email: String,
    pub plan: String,
}

/// Writes the mail that brings somebody a link: to an address, with the link. None where no mail is sent.
pub type LinkMail<'m> = &'m (dyn Fn(&str, &NewLink) -> Option<SealedMail> + Sync);

/// A link to an account, and the mail that brings it.
struct MailedLink {
    link: NewLink,
    mail: Option<SealedMail>,
}

impl MailedLink {
    fn new(service: &Service, email: &str, mail: LinkMail<'_>) -> Self {
        let link = NewLink::of_account(service.clock());
        Self { mail: mail(email, &link), link }
    }

    /// Adds it for an account. The response is its secret, and whether it is mailed.
    async fn add(self, write: &mut Write, account_id: Uuid) -> Result<Value> {
        links::add(write, account_id, &self.link).await?;
        if let Some(mail) = &self.mail {
            write.insert_mail(mail).await?;
        }
        Ok(json!({"secret": self.link.secret, "mailed": self.mail.is_some()}))
    }
}

impl Service {
    /// The plan of accounts and Teams that nobody gives another one.
    pub fn default_plan(&self) -> String {
        self.policies.generations.current().default_plan.clone()
    }

    /// The policies that decide now, and what there is to know of them.
    pub fn policy_status(&self, _: &Operator) -> PolicyStatus {
        self.policies.generations.status()
    }

    /// The newest decisions in which a shadow module disagreed.
    pub fn shadow_differences(&self, _: &Operator) -> Vec<Difference> {
        self.policies.generations.shadow_differences()
    }

    /// Goes back to the policies before the last reload. Returns their generation.
    ///
    /// # Errors
    ///
    /// `policies_kept` if there are no earlier ones; if the database fails, after they were rolled back.
    pub async fn roll_back_policies(self: &Arc<Self>, operator: &Operator) -> Result<()> {
        let service = self.clone();
        // In a task of its own, so that it completes even if the browser disconnects.
        let rollback = tokio::spawn(async move { service.rollback_policies().await });
        let rolled_back = rollback.await.map_err(Error::internal)?;
        let generation = rolled_back.map_err(|problem| policies_kept(&problem))?;
        self.note_policies(operator, AuditAction::PoliciesRollback, generation).await
    }

    /// Has the audit log tell that an operator has loaded the policies anew.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn note_reload(&self, operator: &Operator, generation: u64) -> Result<()> {
        self.note_policies(operator, AuditAction::PoliciesReload, generation).await
    }

    async fn note_policies(&self, operator: &Operator, action: AuditAction, generation: u64) -> Result<()> {
        let Operator { account_id, actor } = operator.clone();
        let entry = NewEntry::new(account_id, actor, action).with(&json!({"generation": generation}));
        self.store.audit(entry).await
    }

    /// A page of all accounts; with an e-mail address, its account alone.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn accounts(&self, _: Operator, email: &str, page: Page) -> Result<PageRows<AccountRecord>> {
        if email.is_empty() {
            return self.store.accounts(page).await;
        }
        if email.contains(char::is_control) {
            return Ok(PageRows { rows: Vec::new(), next: None });
        }
        Ok(PageRows { rows: self.store.account_record(email).await?.into_iter().collect(), next: None })
    }

    /// Makes an account and a link to it, whose secret is the response.
    ///
    /// # Errors
    ///
    /// `validation_failed` with what is wrong; if a policy or the database fails.
    pub async fn create_account(
        &self,
        operator: Operator,
        policies: &PinnedPolicies,
        wanted: WantedAccount,
        key: &IdempotencyKey,
        mail: LinkMail<'_>,
    ) -> Result<Answered> {
        let name = account::name(&wanted.name).map_err(|problem| Fault::new("name", problem));
        let email = account::email(&wanted.email).map_err(|problem| Fault::new("email", problem));
        let plan = known_plan(policies, &wanted.plan).await?;
        let (name, email, plan) = match (name, email, plan) {
            (Ok(name), Ok(email), Ok(plan)) => (name, email, plan),
            (name, email, plan) => {
                let faults = [name.err(), email.err(), plan.err()].into_iter().flatten().collect();
                return Err(Error::invalid(faults));
            }
        };
        let link = MailedLink::new(self, &email, mail);
        let create = self.store_once(operator.account_id, key, move |write| {
            Box::pin(async move {
                let account = write.create_account(&email, &name, &plan).await?;
                let account = account.ok_or_else(|| Error::invalid(vec![Fault::new("email", "has an account")]))?;
                let entry = NewEntry::new(account.id, operator.actor, AuditAction::AccountsCreate);
                write.audit(entry.with(&json!({"email": email, "plan": plan})));
                link.add(write, account.id).await
            })
        });
        create.await
    }

    /// Makes a link to an account, whose secret is the response.
    ///
    /// # Errors
    ///
    /// `not_found` if there is no such account; if the database fails.
    pub async fn link_to(
        &self,
        operator: Operator,
        account_id: Uuid,
        key: &IdempotencyKey,
        mail: LinkMail<'_>,
    ) -> Result<Answered> {
        let account = self.store.account(account_id).await?.ok_or_else(Error::not_found)?;
        let link = MailedLink::new(self, &account.email, mail);
        let entry = NewEntry::new(account_id, operator.actor, AuditAction::AccountsLink);
        let create = self.store_once(account_id, key, move |write| {
            Box::pin(async move {
                write.audit(entry);
                link.add(write, account_id).await
            })
        });
        create.await
    }

    /// Gives an account's personal scope another plan.
    ///
    /// # Errors
    ///
    /// `not_found` if there is no such account; `validation_failed` if no policy knows the plan; if a policy or the
    /// database fails.
    pub async fn set_plan_of(
        &self,
        operator: Operator,
        policies: &PinnedPolicies,
        account_id: Uuid,
        plan: &str,
    ) -> Result<()> {
        self.store.account(account_id).await?.ok_or_else(Error::not_found)?;
        self.give_plan(operator, policies, account_id, plan).await
    }

    /// Gives a scope another plan.
    pub(crate) async fn give_plan(
        &self,
        operator: Operator,
        policies: &PinnedPolicies,
        scope_id: Uuid,
        plan: &str,
    ) -> Result<()> {
        let plan = known_plan(policies, plan).await?.map_err(|fault| Error::invalid(vec![fault]))?;
        crate::accounts::set_plan(&self.store, scope_id, plan, operator.actor).await
    }

    /// Says whether a node takes new tunnels.
    ///
    /// # Errors
    ///
    /// `not_found` if there is no such node; if the database fails.
    pub async fn set_node_status(&self, operator: Operator, node_id: Uuid, status: NodeStatus) -> Result<()> {
        let Operator { account_id, actor } = operator;
        let entry = NewEntry::new(account_id, actor, AuditAction::NodesSetStatus);
        let entry = entry.about(node_id).with(&json!({"status": status}));
        let set = self.store.write(Some(account_id), move |write| {
            Box::pin(async move {
                let node = write.node(node_id).await?.ok_or_else(Error::not_found)?;
                write.audit(entry);
                write.update_node(&Node { status, ..node }).await
            })
        });
        set.await
    }

    /// Locks an account, or unlocks it.
    ///
    /// # Errors
    ///
    /// `not_found` if there is no such account; `last_operator` if it is the only operator; if the database fails.
    pub async fn set_locked(&self, operator: Operator, account_id: Uuid, is_locked: bool) -> Result<()> {
        self.store.account(account_id).await?.ok_or_else(Error::not_found)?;
        if is_locked {
            locked_accounts::lock(&self.store, account_id, operator.actor).await
        } else {
            locked_accounts::unlock(&self.store, account_id, operator.actor).await
        }
    }

    /// Makes an account an operator, or no operator any more.
    ///
    /// # Errors
    ///
    /// `not_found` if there is no such account; `last_operator` if there would be none; if the database fails.
    pub async fn set_operator(&self, operator: Operator, account_id: Uuid, is_operator: bool) -> Result<()> {
        self.store.account(account_id).await?.ok_or_else(Error::not_found)?;
        crate::accounts::set_operator(&self.store, account_id, is_operator, operator.actor).await
    }
}

/// The error where the policies that are in use stay in use.
pub fn policies_kept(problem: &dyn std::fmt::Display) -> Error {
    Error::new(Code::PoliciesKept, format!("Nothing was changed: {problem}"))
}

/// A plan, if a policy knows it.
async fn known_plan(policies: &PinnedPolicies, plan: &str) -> Result<Result<String, Fault>> {
    let plan = plan.trim();
    let known = gate::known_entitlement(policies, plan).await?;
    Ok(known.map(|_| plan.to_owned()).ok_or_else(|| Fault::new("plan", "must be a plan that a policy knows")))
}
