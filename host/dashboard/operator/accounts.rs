//! The accounts of the installation.

use culvert_domain::account::AccountRecord;
use culvert_domain::error::Result;
use culvert_domain::mail::SealedMail;
use culvert_service::links::NewLink;
use culvert_service::mails::LetterKind;
use culvert_service::operators::WantedAccount;
use maud::{Markup, html};
use salvo::http::StatusCode;
use serde_json::Value;

use super::{PLAN, operator, plan};
use crate::account::asked_first;
use crate::answer::Answer;
use crate::form::{KEY, at_row, row_field};
use crate::mail;
use crate::view::{badge, field, list, page, secret, time};
use crate::visit::{Posted, Visit};

const PATH: &str = "/dashboard/operator/accounts";

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let sought = visit.sought();
    let accounts = visit.service().accounts(operator(visit)?, sought, visit.page()).await?;
    let may_change = visit.is_elevated();
    let content = html! {
        form method="get" action=(PATH) role="search" {
            (field::text(&field::Field { name: "find", label: "Find by e-mail address", value: sought, ..field::Field::default() }))
            button type="submit" { "Find" }
        }
        @if accounts.rows.is_empty() { p.empty { "There is no such account. " a href=(PATH) { "All accounts" } } }
        @else { (table(visit, &accounts.rows, may_change)) }
        (list::more(visit.next(accounts.next).as_deref()))
        section {
            h2 { "New account" }
            @if may_change { (new_account(visit)) } @else { (asked_first(visit, PATH, "change accounts")) }
        }
    };
    Ok(page::signed_in(visit, "Accounts", &content))
}

fn table(visit: &Visit, accounts: &[AccountRecord], may_change: bool) -> Markup {
    html! {
        div.scroll role="region" aria-label="Accounts" tabindex="0" { table {
            thead { tr { th { "E-mail" } th { "Plan" } th { "Since" } th { "Sign-in" } th { "Operator" } th {} } }
            tbody { @for account in accounts {
                @let path = |action: &str| format!("{PATH}/{}/{action}", account.id);
                tr {
                    td.long { (account.email) div.muted { (account.name) } }
                    td { @if may_change { (plan(visit, &path("plan"), account.id, &account.plan, &account.email)) } @else { (account.plan) } }
                    td { (time::at(account.created_at)) }
                    td { @if account.has_password { "password" } @else { "by link alone" } }
                    td {
                        @if account.is_operator { (badge::plain("operator")) }
                        @if may_change {
                            @let (label, value) = if account.is_operator { ("Make no operator", "no") } else { ("Make operator", "yes") };
                            (field::button_with(visit, &path("operator"), label, &[("operator", value)]))
                        }
                    }
                    td {
                        @if account.is_locked { (badge::warning("locked")) }
                        @if may_change {
                            @if !account.is_locked { (field::button(visit, &path("link"), "Make link")) }
                            @let (label, value) = if account.is_locked { ("Unlock", "no") } else { ("Lock", "yes") };
                            (field::button_with(visit, &path("lock"), label, &[("locked", value)]))
                        }
                    }
                }
            } }
        } }
    }
}

fn new_account(visit: &Visit) -> Markup {
    let default_plan = visit.service().default_plan();
    html! {
        form method="post" action=(PATH) {
            (field::hidden(KEY, &visit.form_key(PATH)))
            (field::text(&field::Field { kind: "email", required: true, ..field::typed(visit, "email", "E-mail", "") }))
            (field::text(&field::Field { required: true, ..field::typed(visit, "name", "Name", "") }))
            (field::text(&field::Field { required: true, ..field::typed(visit, "plan", "Plan", &default_plan) }))
            button type="submit" { "Make account" }
        }
    }
}

pub(crate) async fn create(visit: &Visit, posted: Posted) -> Result<Answer> {
    let field = |name| posted.form.get(name).to_owned();
    let (email, operator) = (field("email"), operator(visit)?);
    let wanted = WantedAccount { name: field("name"), email: email.clone(), plan: field("plan") };
    let mail = mail_to(visit);
    let run = visit.service().create_account(operator, &visit.policies, wanted, &posted.key, &mail);
    let made = visit.carry_out(&posted, run).await?;
    Ok(shown(visit, &format!("The link for {}", email.trim()), &made))
}

pub(crate) async fn link(visit: &Visit, posted: Posted) -> Result<Answer> {
    let mail = mail_to(visit);
    let run = visit.service().link_to(operator(visit)?, visit.id()?, &posted.key, &mail);
    let made = visit.carry_out(&posted, run).await?;
    Ok(shown(visit, "The link", &made))
}

/// Writes the mail that brings somebody a link.
fn mail_to(visit: &Visit) -> impl Fn(&str, &NewLink) -> Option<SealedMail> + Sync + '_ {
    |email, link| {
        let by = Some(visit.sign_in.account_id);
        let letter = mail::link(&visit.dashboard.site, LetterKind::Link, by, email, link);
        visit.dashboard.mails.seal(visit.service(), letter)
    }
}

/// A reload shows the same link and makes no other.
fn shown(visit: &Visit, label: &str, made: &Value) -> Answer {
    let link = visit.dashboard.site.entrance(made["secret"].as_str().unwrap_or_default());
    let content = html! {
        @if made["mailed"] == true { p.notice.ok { "It is on its way to them by mail. If that does not arrive, send them the link." } }
        (secret::shown_once(label, &link, "Whoever has it comes in as this account. It is shown this once, can be used once, and ends in 30 minutes."))
        p { a href=(PATH) { "All accounts" } }
    };
    Answer::page(StatusCode::OK, page::signed_in(visit, "Link made", &content))
}

pub(crate) async fn set_plan(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (operator, id) = (operator(visit)?, visit.id()?);
    let plan = row_field(PLAN, id);
    let set = visit.service().set_plan_of(operator, &visit.policies, id, posted.form.get(&plan)).await;
    set.map_err(|error| at_row(error, PLAN, id))?;
    Ok(Answer::see_other(PATH))
}

pub(crate) async fn set_locked(visit: &Visit, posted: Posted) -> Result<Answer> {
    let is_locked = posted.form.flag("locked")?;
    visit.service().set_locked(operator(visit)?, visit.id()?, is_locked).await?;
    Ok(Answer::see_other(PATH))
}

pub(crate) async fn set_operator(visit: &Visit, posted: Posted) -> Result<Answer> {
    let is_operator = posted.form.flag("operator")?;
    visit.service().set_operator(operator(visit)?, visit.id()?, is_operator).await?;
    Ok(Answer::see_other(PATH))
}
