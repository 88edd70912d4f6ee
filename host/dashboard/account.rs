//! The person's own account: its password, and where it is signed in.

use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_service::links::NewLink;
use culvert_service::sign_ins::WantedProfile;
use maud::{Markup, html};
use salvo::http::StatusCode;

use crate::answer::Answer;
use crate::form::KEY;
use crate::path::own_page;
use crate::public_form::signed_in;
use crate::view::{badge, field, page, time};
use crate::visit::{Posted, Visit};
use crate::{ROOT, held_form, mail, passkeys, providers, second_factor};

const PROFILE: &str = "/dashboard/account/profile";
const PASSWORD: &str = "/dashboard/account/password";
const CONFIRM: &str = "/dashboard/account/confirm";
const CONFIRM_BY_PASSKEY: &str = "/dashboard/account/confirm-by-passkey";
const END_OTHERS: &str = "/dashboard/account/sign-ins/end-others";

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let known = &visit.dashboard.sign_ins;
    let sign_ins = known.all_of(visit.service(), &visit.sign_in).await?;
    let content = html! {
        p.muted { (visit.sign_in.name) " · " (visit.sign_in.email) }
        section { h2 { "Name and e-mail" } (profile(visit)) }
        (password(visit))
        (passkeys::section(visit).await?)
        (second_factor::section(visit).await?)
        (providers::section(visit, asked_first(visit, &format!("{ROOT}/account"), "link or unlink one")).await?)
        section {
            h2 { "Where you are signed in" }
            div.scroll role="region" aria-label="Sign-ins" tabindex="0" { table {
                thead { tr { th { "Browser" } th { "Address" } th { "By" } th { "Last used" } th { "Ends" } th {} } }
                tbody {
                    @for one in &sign_ins {
                        @let path = format!("{ROOT}/account/sign-ins/{}/end", one.id);
                        tr {
                            td.long { @if one.client.agent.is_empty() { "unknown" } @else { (one.client.agent) } }
                            td { code { (one.client.address.as_deref().unwrap_or("unknown")) } }
                            td { (one.method) }
                            td { (time::at(one.last_seen_at)) }
                            td { (time::at(known.end_of(one))) }
                            td {
                                @if one.id == visit.sign_in.id { (badge::plain("this one")) }
                                @else if visit.is_elevated() { (field::button(visit, &path, "End")) }
                            }
                        }
                    }
                }
            } }
            @if sign_ins.len() > 1 {
                @if visit.is_elevated() { (field::button(visit, END_OTHERS, "End all others")) }
                @else { p.muted { "To end others, prove first who you are, as above." } }
            }
        }
    };
    Ok(page::signed_in(visit, "Account", &content))
}

fn profile(visit: &Visit) -> Markup {
    let hint = if visit.dashboard.mails.are_sent() {
        "A new address is used once you have opened the link that is mailed to it."
    } else {
        "You sign in with it."
    };
    html! {
        @if visit.is_elevated() {
            form method="post" action=(PROFILE) {
                (field::hidden(KEY, &visit.form_key(PROFILE)))
                (field::text(&field::Field { required: true, autocomplete: Some("name"), ..field::typed(visit, "display_name", "Your name", &visit.sign_in.name) }))
                (field::text(&field::Field { kind: "email", required: true, autocomplete: Some("email"), hint: Some(hint),
                    ..field::typed(visit, "email", "E-mail", &visit.sign_in.email) }))
                button type="submit" { "Save" }
            }
        } @else { (asked_first(visit, &format!("{ROOT}/account"), "change them")) }
    }
}

pub(crate) async fn change_profile(visit: &Visit, posted: Posted) -> Result<Answer> {
    let dashboard = &visit.dashboard;
    let wanted =
        WantedProfile { name: posted.form.get("display_name").to_owned(), email: posted.form.get("email").to_owned() };
    let letter =
        |email: &str, link: &NewLink| mail::new_address(&dashboard.site, visit.sign_in.account_id, email, link);
    let changed =
        dashboard.sign_ins.change_profile(visit.service(), &dashboard.mails, &visit.sign_in, &wanted, letter).await?;
    if !changed {
        return Ok(Answer::see_other(&format!("{ROOT}/account")));
    }
    let content = html! {
        p role="status" { "A link is on its way to " strong { (wanted.email.trim()) } ". Until it is opened, within 24 hours, you sign in with "
            strong { (visit.sign_in.email) } "." }
        p { a href=(format!("{ROOT}/account")) { "Your account" } }
    };
    Ok(Answer::page(StatusCode::OK, page::signed_in(visit, "Look into your mail", &content)))
}

fn password(visit: &Visit) -> Markup {
    let may_set = visit.sign_in.may_set_password(visit.service().clock().now());
    html! {
        section {
            h2 { "Password" }
            @if may_set {
                @if !visit.sign_in.has_password {
                    p { "Set a password, with which you sign in from now on. A link is for one time." }
                }
                form method="post" action=(PASSWORD) {
                    (field::hidden(KEY, &visit.form_key(PASSWORD)))
                    input type="hidden" name="username" autocomplete="username" value=(visit.sign_in.email);
                    (field::text(&field::Field { name: "password", label: "New password", kind: "password",
                        autocomplete: Some("new-password"), required: true, fault: visit.fault("password"),
                        hint: Some("12 to 256 characters. All other sign-ins of yours end."),
                        ..field::Field::default() }))
                    button type="submit" { "Set password" }
                }
            } @else if visit.sign_in.has_password && !visit.sign_in.takes_passkey_alone() {
                (confirmation_by_passkey(visit, &format!("{ROOT}/account")))
                (confirmation(visit, &format!("{ROOT}/account"), "To change it, type the present one first."))
            } @else if visit.sign_in.has_passkey {
                p { "To set one, show first who you are." }
                (confirmation_by_passkey(visit, &format!("{ROOT}/account")))
            } @else {
                p { "You have none, and you came by a link more than 10 minutes ago. Come in with another one." }
            }
        }
    }
}

/// What somebody does first who has not just proved who it is; then it leads to a page.
pub(crate) fn asked_first(visit: &Visit, next: &str, what: &str) -> Markup {
    html! {
        (confirmation_by_passkey(visit, next))
        (providers::confirmation(visit, next))
        @if visit.sign_in.takes_passkey_alone() { p { "Before you " (what) ", confirm with your passkey." } }
        @else if visit.sign_in.has_password { (confirmation(visit, next, &format!("Before you {what}, type your password once more."))) }
        @else { p { a href="/dashboard/account" { "Set a password" } " before you " (what) ": you must be able to prove who you are." } }
    }
}

/// Asks for the password once more; then it leads to a page.
fn confirmation(visit: &Visit, next: &str, why: &str) -> Markup {
    html! {
        form method="post" action=(CONFIRM) {
            p { (why) }
            (field::hidden(KEY, &visit.form_key(CONFIRM)))
            (field::hidden("next", visit.typed("next").unwrap_or(next)))
            (held_form::field(visit))
            (field::text(&field::Field { name: "current_password", label: "Password", kind: "password",
                autocomplete: Some("current-password"), required: true, fault: visit.fault("current_password"),
                ..field::Field::default() }))
            @if visit.sign_in.has_second_factor { (second_factor::code_field(visit)) }
            button type="submit" { "Confirm" }
        }
    }
}

/// Asks for the passkey; then it leads to a page.
fn confirmation_by_passkey(visit: &Visit, next: &str) -> Markup {
    let challenge = passkeys::confirmation_challenge(visit);
    html! {
        @if let Some(challenge) = challenge {
            form method="post" action=(CONFIRM_BY_PASSKEY) data-passkey="get" data-options=(challenge.options) hidden {
                (field::hidden(KEY, &visit.form_key(CONFIRM_BY_PASSKEY)))
                (field::hidden("next", visit.typed("next").unwrap_or(next)))
                (held_form::field(visit))
                (passkeys::answer_fields(&challenge))
                button type="submit" { "Confirm with a passkey" }
            }
        }
    }
}

pub(crate) async fn set_password(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (dashboard, new) = (&visit.dashboard, posted.form.get("password").to_owned());
    let value = dashboard.sign_ins.set_password(&dashboard.service, &visit.sign_in, new).await?;
    Ok(signed_in(dashboard, &value, ROOT))
}

pub(crate) async fn confirm(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (dashboard, form) = (&visit.dashboard, &posted.form);
    let (password, code) = (form.get("current_password"), form.get("code"));
    let value = dashboard.sign_ins.elevate(&dashboard.service, &visit.sign_in, password, code, &visit.client).await?;
    let wrong = || Error::invalid(vec![Fault::new("current_password", "is wrong")]);
    let next = own_page(form.get("next")).unwrap_or(ROOT);
    Ok(signed_in(dashboard, &value.ok_or_else(wrong)?, next))
}

pub(crate) async fn confirm_by_passkey(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (dashboard, form) = (&visit.dashboard, &posted.form);
    let (token, answer) = (form.get("challenge"), form.get("answer"));
    let elevated = dashboard.sign_ins.elevate_by_passkey(&dashboard.service, &visit.sign_in, token, answer).await;
    let refused = |error: Error| match error.code {
        Code::SignInRequired => {
            Error::invalid(vec![Fault::new("current_password", "is missing: the passkey was not accepted")])
        }
        _ => error,
    };
    let next = own_page(form.get("next")).unwrap_or(ROOT);
    Ok(signed_in(dashboard, &elevated.map_err(refused)?, next))
}

pub(crate) async fn end_sign_in(visit: &Visit, _: Posted) -> Result<Answer> {
    let dashboard = &visit.dashboard;
    dashboard.sign_ins.end(&dashboard.service, &visit.sign_in, Some(visit.id()?)).await?;
    Ok(Answer::see_other(&format!("{ROOT}/account")))
}

pub(crate) async fn end_others(visit: &Visit, _: Posted) -> Result<Answer> {
    let dashboard = &visit.dashboard;
    dashboard.sign_ins.end(&dashboard.service, &visit.sign_in, None).await?;
    Ok(Answer::see_other(&format!("{ROOT}/account")))
}
