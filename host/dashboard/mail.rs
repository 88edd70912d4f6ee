//! What is mailed: links, in a few plain sentences.

use std::sync::Arc;

use culvert_domain::error::{Error, Result};
use culvert_domain::mail::SealedMail;
use culvert_domain::team::INVITATION_LIFETIME;
use culvert_service::links::NewLink;
use culvert_service::mails::{Letter, LetterKind};
use culvert_service::sign_ins::Client;
use maud::{Markup, html};
use salvo::http::StatusCode;
use uuid::Uuid;

use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::path::{SIGN_IN, SIGN_UP};
use crate::public_form::{check, form_key, refused};
use crate::view::{field, page, refusal, secret};
use crate::visit::Visit;
use crate::{Dashboard, Site, providers};

/// Where a link is asked for.
pub(crate) const ASK: &str = "/dashboard/sign-in/link";

/// The mail that invites somebody to the Team of a page.
pub(crate) fn invitation(visit: &Visit, email: &str, secret: &str) -> Option<SealedMail> {
    let (by, team, link) = (&visit.sign_in.name, &visit.caller.scope.name, visit.dashboard.site.entrance(secret));
    let letter = Letter {
        kind: LetterKind::Invitation,
        by: Some(visit.sign_in.account_id),
        to: email.to_owned(),
        subject: format!("{by} invites you to {team}"),
        text: format!(
            "{by} invites you to the Team {team} on Culvert, at {}.\n\nOpen this link to join; it can be used once, within 7 \
             days:\n\n{link}\n\nIf you know nothing of it, do nothing: nobody joins without the link.\n",
            visit.dashboard.site.origin
        ),
        expires_at: visit.service().clock().now() + INVITATION_LIFETIME,
    };
    visit.dashboard.mails.seal(visit.service(), letter)
}

/// The mail that brings somebody a link to their account.
pub(crate) fn link(site: &Site, kind: LetterKind, by: Option<Uuid>, email: &str, link: &NewLink) -> Letter {
    let text = text(site, link, "come into Culvert", "30 minutes", "");
    Letter { kind, by, to: email.to_owned(), subject: "Your link to Culvert".into(), text, expires_at: link.expires_at }
}

/// The mail that shows that a new address is its owner's.
pub(crate) fn new_address(site: &Site, by: Uuid, email: &str, link: &NewLink) -> Letter {
    Letter {
        kind: LetterKind::NewAddress,
        by: Some(by),
        to: email.to_owned(),
        subject: "Your new address for Culvert".into(),
        text: text(site, link, "use this address for your account of Culvert", "24 hours", ""),
        expires_at: link.expires_at,
    }
}

/// The mail that makes somebody an account.
fn new_account(site: &Site, email: &str, link: &NewLink) -> Letter {
    Letter {
        kind: LetterKind::SignUp,
        by: None,
        to: email.to_owned(),
        subject: "Your account for Culvert".into(),
        text: text(site, link, "make your account for Culvert", "24 hours", ": there is no account without the link"),
        expires_at: link.expires_at,
    }
}

/// What a link is for, how long it is good, and what follows for whoever did not ask for it.
fn text(site: &Site, link: &NewLink, purpose: &str, lifetime: &str, otherwise: &str) -> String {
    format!(
        "Open this link to {purpose}, at {}; it can be used once, within {lifetime}:\n\n{}\n\nIf you did not ask for it, do \
         nothing{otherwise}.\n",
        site.origin,
        site.entrance(&link.secret)
    )
}

/// The page of somebody who wants an account.
pub(crate) fn sign_up_page(dashboard: &Dashboard, error: Option<&Error>) -> Markup {
    let content = html! {
        @if let Some(error) = error { (refusal::error(error)) }
        p { "You get a link by mail, by which you make your account." }
        (ask_form(dashboard, SIGN_UP, error))
        (providers::links(dashboard, ""))
        p { a href=(SIGN_IN) { "Sign in" } }
    };
    page::narrow("Create an account", &dashboard.docs_url, &content)
}

/// Whether there is such an account is not said, and not shown by how long it takes.
pub(crate) fn sign_up(dashboard: &Arc<Dashboard>, form: &Form, client: &Client) -> Result<Answer> {
    let asked = check(dashboard, form, SIGN_UP).and_then(|()| {
        let (at, to) = (dashboard.clone(), dashboard.clone());
        let to_known = move |email: &str, new: &NewLink| link(&at.site, LetterKind::SignUp, None, email, new);
        let to_new = move |email: &str, new: &NewLink| new_account(&to.site, email, new);
        dashboard.mails.mail_sign_up(&dashboard.service, form.get("email"), client.address, to_known, to_new)
    });
    if let Err(error) = asked {
        return Ok(refused(dashboard, &error, sign_up_page(dashboard, Some(&error))));
    }
    Ok(mailed(
        dashboard,
        &html! { "A link is on its way to " strong { (form.get("email").trim()) } ". It can be used once." },
    ))
}

/// The page of somebody who cannot sign in.
pub(crate) fn ask_page(dashboard: &Dashboard, error: Option<&Error>) -> Markup {
    let content = html! {
        @if let Some(error) = error { (refusal::error(error)) }
        @if dashboard.mails.are_sent() {
            p { "You get a link by mail, by which you come in and set a new password." }
            (ask_form(dashboard, ASK, error))
        } @else {
            p { "This host sends no mail. Ask whoever runs it for a link:" }
            (secret::command("culvert account link --email you@example.com"))
        }
        p { a href=(SIGN_IN) { "Sign in" } }
    };
    page::narrow("Trouble signing in", &dashboard.docs_url, &content)
}

/// Whether there is such an account is not said, and not shown by how long it takes.
pub(crate) fn ask(dashboard: &Arc<Dashboard>, form: &Form, client: &Client) -> Result<Answer> {
    let email = form.get("email").trim().to_owned();
    let asked = check(dashboard, form, ASK).and_then(|()| {
        let at = dashboard.clone();
        let letter = move |to: &str, new: &NewLink| link(&at.site, LetterKind::AskedLink, None, to, new);
        dashboard.mails.mail_link(&dashboard.service, email.clone(), client.address, letter)
    });
    if let Err(error) = asked {
        return Ok(refused(dashboard, &error, ask_page(dashboard, Some(&error))));
    }
    Ok(mailed(
        dashboard,
        &html! { "If there is an account with the address " strong { (email) } ", a link is on its way to it. It can be used once, within 30 minutes." },
    ))
}

/// Asks for the address that a link is mailed to.
fn ask_form(dashboard: &Dashboard, path: &str, error: Option<&Error>) -> Markup {
    html! { form method="post" action=(path) {
        (field::hidden(KEY, &form_key(dashboard, path)))
        (field::text(&field::Field { name: "email", label: "E-mail", kind: "email", autocomplete: Some("username"), required: true,
            fault: error.and_then(|error| error.fault("email")), ..field::Field::default() }))
        button type="submit" { "Mail me a link" }
    } }
}

fn mailed(dashboard: &Dashboard, what: &Markup) -> Answer {
    let content = html! {
        p role="status" { (what) }
        p { a href=(SIGN_IN) { "Sign in" } }
    };
    Answer::page(StatusCode::OK, page::narrow("Look into your mail", &dashboard.docs_url, &content))
}
