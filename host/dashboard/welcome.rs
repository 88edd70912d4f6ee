//! Coming in by a link: to an account that is there, as the first operator, as somebody who is invited to a Team, or as
//! whoever has asked for an account.

use std::sync::Arc;

use culvert_domain::error::{Error, Result};
use culvert_domain::sign_in::SignIn;
use culvert_domain::team::Invitation;
use culvert_service::forms::FormId;
use culvert_service::sign_ins::{Client, Entered, NewPerson, Welcome};
use maud::{Markup, html};
use salvo::http::StatusCode;

use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::path::{ENTER, SIGN_IN, SIGN_UP};
use crate::public_form::{check, form_key, refused, signed_in};
use crate::sign_in::proved_page;
use crate::view::{field, page, refusal};
use crate::visit::{Posted, Visit};
use crate::{Dashboard, ROOT};

/// Where the form for a new account leads.
const BEGIN: &str = "/dashboard/enter/account";
/// Where somebody who is signed in joins a Team.
const JOIN: &str = "/dashboard/account/join";

/// Takes a link.
pub(crate) async fn enter(
    dashboard: &Arc<Dashboard>,
    form: Form,
    known: Option<&SignIn>,
    client: &Client,
) -> Result<Answer> {
    let entered = async {
        check(dashboard, &form, ENTER)?;
        dashboard.sign_ins.enter(&dashboard.service, form.get("link"), client).await
    };
    let welcome = match entered.await {
        // Whoever came by a link is asked for a password first, if there is none.
        Ok(Entered::Proved(proved)) => return Ok(proved_page(dashboard, proved, &format!("{ROOT}/account"))),
        Ok(Entered::EmailChanged(email)) => return Ok(email_changed(dashboard, &email)),
        Ok(Entered::Welcome(welcome)) => welcome,
        Err(error) if error.source.is_some() => return Err(error),
        Err(error) => return Ok(refused(dashboard, &error, enter_page(dashboard, Some(&error)))),
    };
    let page = match (&welcome, known) {
        (Welcome::Member(invitation), Some(sign_in)) => join_page(dashboard, invitation, sign_in, &form),
        _ => account_page(dashboard, &welcome, &form, None),
    };
    Ok(Answer::page(StatusCode::OK, page))
}

fn email_changed(dashboard: &Dashboard, email: &str) -> Answer {
    let content = html! {
        p role="status" { "Your account has the address " strong { (email) } " now. You sign in with it." }
        p { a href=(ROOT) { "To the dashboard" } }
    };
    Answer::page(StatusCode::OK, page::narrow("E-mail address changed", &dashboard.docs_url, &content))
}

/// Makes the account of somebody who has a link for one.
pub(crate) async fn begin(dashboard: &Arc<Dashboard>, form: Form, client: &Client) -> Result<Answer> {
    let field = |name| form.get(name).to_owned();
    let person = NewPerson { name: field("name"), email: field("email"), password: field("password") };
    let begun = async {
        check(dashboard, &form, BEGIN)?;
        dashboard.sign_ins.begin(&dashboard.service, form.get("link"), person, client).await
    };
    let error = match begun.await {
        Ok(value) => return Ok(signed_in(dashboard, &value, ROOT)),
        Err(error) if error.source.is_some() => return Err(error),
        Err(error) => error,
    };
    let page = match dashboard.sign_ins.welcome_of(&dashboard.service, form.get("link"), client).await {
        Ok(welcome) => account_page(dashboard, &welcome, &form, Some(&error)),
        Err(_) => enter_page(dashboard, Some(&error)),
    };
    Ok(refused(dashboard, &error, page))
}

/// Has somebody who is signed in join a Team.
pub(crate) async fn join(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (dashboard, link) = (&visit.dashboard, posted.form.get("link"));
    let run = dashboard.sign_ins.accept(&dashboard.service, &visit.sign_in, link, &posted.key, &visit.client);
    let team = visit.carry_out(&posted, run).await?;
    Ok(Answer::see_other(&format!("{ROOT}/{}", team.as_str().unwrap_or_default())))
}

pub(crate) fn enter_page(dashboard: &Dashboard, error: Option<&Error>) -> Markup {
    page::narrow(
        "Come in with a link",
        &dashboard.docs_url,
        &html! {
            @if let Some(error) = error { (refusal::error(error)) }
            form method="post" action=(ENTER) data-takes-fragment {
                (field::hidden(KEY, &form_key(dashboard, ENTER)))
                (field::text(&field::Field { name: "link", label: "Link", hint: Some("The whole link. It can be used once."),
                    autocomplete: Some("off"), required: true, ..field::Field::default() }))
                button type="submit" { "Come in" }
            }
            p.muted { "There is no link? Whoever runs the server makes one: " code { "culvert account link --email …" } }
            p { a href=(SIGN_IN) { "Sign in with a password" } }
        },
    )
}

/// The form for a new account, with what was typed if it is shown again.
fn account_page(dashboard: &Dashboard, welcome: &Welcome, form: &Form, error: Option<&Error>) -> Markup {
    let may_sign_up = dashboard.sign_ins.may_sign_up(welcome);
    let fault = |name: &str| error?.fault(name);
    let field =
        |name, label| field::Field { name, label, required: true, fault: fault(name), ..field::Field::default() };
    let title = match welcome {
        Welcome::Operator => "Set up Culvert",
        Welcome::Member(invitation) => &format!("Join {}", invitation.team_name),
        Welcome::Newcomer(_) => "Create your account",
    };
    let known_email = match welcome {
        Welcome::Operator => None,
        Welcome::Member(Invitation { email, .. }) | Welcome::Newcomer(email) => Some(email),
    };
    let content = html! {
        @if let Some(error) = error { (refusal::error(error)) }
        @match welcome {
            Welcome::Operator => p { "You are the first here. Your account will operate this installation." },
            Welcome::Member(invitation) => {
                p { (invitation.invited_by) " invites " (invitation.email) " to be " (invitation.role.with_article()) " of the Team “"
                    (invitation.team_name) "”." }
                p { @if may_sign_up { "You have an account already? " } a href=(SIGN_IN) { "Sign in" } ", and open the link once more." }
                @if dashboard.sign_ins.is_open() {
                    p { "You have none? " a href=(SIGN_UP) { "Create an account" } ", and open the link then." }
                } @else if !may_sign_up { p.notice { "Operators make accounts here. Ask one for an account, if you have none." } }
            }
            Welcome::Newcomer(email) => p { "You sign in with " strong { (email) } "." }
        }
        @if may_sign_up { form method="post" action=(BEGIN) {
            (field::hidden(KEY, &form_key(dashboard, BEGIN)))
            (field::hidden("link", form.get("link")))
            (field::text(&field::Field { value: form.get("name"), autocomplete: Some("name"), ..field("name", "Your name") }))
            @match known_email {
                None => (field::text(&field::Field { kind: "email", value: form.get("email"),
                    autocomplete: Some("username"), ..field("email", "E-mail") })),
                Some(email) => {
                    input type="hidden" name="username" autocomplete="username" value=(email);
                    @if let Some(fault) = fault("email") { p.fault { (email) " " (fault) } }
                }
            }
            (field::text(&field::Field { kind: "password", autocomplete: Some("new-password"),
                hint: Some("12 to 256 characters that are not easy to guess."), ..field("password", "Password") }))
            button type="submit" { "Create account" }
        } }
    };
    page::narrow(title, &dashboard.docs_url, &content)
}

/// Asks somebody who is signed in whether to join.
fn join_page(dashboard: &Dashboard, invitation: &Invitation, sign_in: &SignIn, form: &Form) -> Markup {
    let key = dashboard.service.form_key(FormId { sign_in: sign_in.id, path: JOIN });
    let content = html! {
        p { (invitation.invited_by) " invites you to be " (invitation.role.with_article()) " of the Team “" (invitation.team_name) "”." }
        @if invitation.email != sign_in.email {
            p.notice { "The invitation was made for " strong { (invitation.email) } ", and you are signed in as "
                strong { (sign_in.email) } "." }
        }
        form method="post" action=(JOIN) {
            (field::hidden(KEY, &key))
            (field::hidden("link", form.get("link")))
            button type="submit" { "Join as " (sign_in.email) }
        }
        p { a href=(ROOT) { "Not now" } }
    };
    page::narrow(&format!("Join {}", invitation.team_name), &dashboard.docs_url, &content)
}
