//! Signing in with a password, and signing out.

use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::SignIn;
use culvert_service::forms::FormId;
use culvert_service::sign_ins::{Client, Proved};
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use salvo::http::StatusCode;
use salvo::http::header::HeaderName;

use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::path::{ENTER, SIGN_IN, SIGN_OUT, SIGN_UP, own_page};
use crate::public_form::{check, form_key, refused, signed_in};
use crate::view::{field, page, refusal};
use crate::{Dashboard, ROOT, cookie, mail, passkeys, providers};

const CODE: &str = "/dashboard/sign-in/code";
const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");

/// The address of the sign-in, which leads to a page afterwards.
pub(crate) fn address(next: &str) -> String {
    match next {
        "" => SIGN_IN.into(),
        next => format!("{SIGN_IN}?next={}", utf8_percent_encode(next, NON_ALPHANUMERIC)),
    }
}

pub(crate) async fn sign_in(dashboard: &Dashboard, form: Form, client: &Client) -> Result<Answer> {
    let (email, next) = (form.get("email").trim(), form.get("next"));
    let signed = async {
        check(dashboard, &form, SIGN_IN)?;
        dashboard.sign_ins.sign_in(&dashboard.service, email, form.get("password"), client).await
    };
    let wrong = || Error::new(Code::SignInRequired, "The e-mail address or the password is wrong.");
    let proved = signed.await.and_then(|proved| proved.ok_or_else(wrong));
    answer(dashboard, proved, own_page(next).unwrap_or_default(), email)
}

/// Takes a passkey.
pub(crate) async fn by_passkey(dashboard: &Dashboard, form: &Form, client: &Client) -> Result<Answer> {
    let signed = async {
        check(dashboard, form, passkeys::SIGN_IN)?;
        let (token, answer) = (form.get("challenge"), form.get("answer"));
        dashboard.sign_ins.sign_in_by_passkey(&dashboard.service, token, answer, client).await
    };
    let proved = signed.await.map(Proved::SignedIn);
    answer(dashboard, proved, own_page(form.get("next")).unwrap_or_default(), "")
}

/// The answer to somebody who has tried to sign in: onwards, or the page once more with what is wrong.
fn answer(dashboard: &Dashboard, proved: Result<Proved>, next: &str, email: &str) -> Result<Answer> {
    match proved {
        Ok(proved) => Ok(proved_page(dashboard, proved, if next.is_empty() { ROOT } else { next })),
        Err(error) if error.source.is_some() => Err(error),
        Err(error) => Ok(refused(dashboard, &error, sign_in_page(dashboard, next, email, Some(&error)))),
    }
}

/// The answer to a password or a link that was right: signed in, or asked for the code.
pub(crate) fn proved_page(dashboard: &Dashboard, proved: Proved, next: &str) -> Answer {
    match proved {
        Proved::SignedIn(value) => signed_in(dashboard, &value, next),
        Proved::NeedsCode(ticket) => Answer::page(StatusCode::OK, code_page(dashboard, &ticket, next, None)),
    }
}

/// Takes the code of the second factor.
pub(crate) async fn code(dashboard: &Dashboard, form: Form, client: &Client) -> Result<Answer> {
    let (ticket, next) = (form.get("ticket"), own_page(form.get("next")).unwrap_or(ROOT));
    let finished = async {
        check(dashboard, &form, CODE)?;
        dashboard.sign_ins.finish(&dashboard.service, ticket, form.get("code"), client).await
    };
    let error = match finished.await {
        Ok(Some(value)) => return Ok(signed_in(dashboard, &value, next)),
        Ok(None) => Error::new(Code::SignInRequired, "The code is wrong, or was used before."),
        Err(error) if error.source.is_some() => return Err(error),
        Err(error) => error,
    };
    Ok(refused(dashboard, &error, code_page(dashboard, ticket, next, Some(&error))))
}

fn code_page(dashboard: &Dashboard, ticket: &str, next: &str, error: Option<&Error>) -> Markup {
    page::narrow(
        "Type the code",
        &dashboard.docs_url,
        &html! {
            @if let Some(error) = error { (refusal::error(error)) }
            form method="post" action=(CODE) {
                (field::hidden(KEY, &form_key(dashboard, CODE)))
                (field::hidden("ticket", ticket))
                (field::hidden("next", next))
                (field::text(&field::Field { name: "code", label: "Code", autocomplete: Some("one-time-code"), required: true,
                    hint: Some("Of your authenticator app, or a recovery code."), ..field::Field::default() }))
                button type="submit" { "Sign in" }
            }
            p { a href=(SIGN_IN) { "Begin again" } }
        },
    )
}

pub(crate) async fn sign_out(dashboard: &Dashboard, form: &Form, known: Option<&SignIn>) -> Result<Answer> {
    if let Some(sign_in) = known {
        let id = FormId { sign_in: sign_in.id, path: SIGN_OUT };
        dashboard.service.open_form_key(id, form.get(KEY)).ok_or_else(|| Error::of(Code::FormExpired))?;
        dashboard.sign_ins.end(&dashboard.service, sign_in, Some(sign_in.id)).await?;
    }
    Ok(Answer::see_other(SIGN_IN)
        .with_cookie(&cookie::clear(&dashboard.site))
        .with(CLEAR_SITE_DATA, "\"cache\", \"storage\""))
}

pub(crate) fn sign_in_page(dashboard: &Dashboard, next: &str, email: &str, error: Option<&Error>) -> Markup {
    page::narrow(
        "Sign in",
        &dashboard.docs_url,
        &html! {
            @if let Some(error) = error { (refusal::error(error)) }
            form method="post" action=(SIGN_IN) {
                (field::hidden(KEY, &form_key(dashboard, SIGN_IN)))
                (field::hidden("next", next))
                (field::text(&field::Field { name: "email", label: "E-mail", kind: "email", value: email,
                    autocomplete: Some("username webauthn"), required: true, ..field::Field::default() }))
                (field::text(&field::Field { name: "password", label: "Password", kind: "password",
                    autocomplete: Some("current-password"), required: true, ..field::Field::default() }))
                button type="submit" { "Sign in" }
            }
            (passkeys::sign_in_form(dashboard, next))
            (providers::links(dashboard, next))
            p { a href=(ENTER) { "Come in with a link" } }
            p { a href=(mail::ASK) { "Trouble signing in?" } }
            @if dashboard.sign_ins.is_open() { p { a href=(SIGN_UP) { "Create an account" } } }
            @if dashboard.site.is_loopback && !dashboard.site.is_https {
                p.muted {
                    "This page is for whoever uses this machine alone: a tunnel that is opened as "
                    code { "http://localhost:…" } " would be given its cookie."
                }
            }
        },
    )
}
