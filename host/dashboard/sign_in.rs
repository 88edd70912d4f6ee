//! Coming in and going out: one-time links, passwords, and the end of a sign-in.

use std::sync::Arc;

use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::SignIn;
use culvert_service::forms::FormId;
use culvert_service::sign_ins::{Client, SignInValue};
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use salvo::Request;
use salvo::http::header::HeaderName;
use salvo::http::{Method, StatusCode};
use uuid::Uuid;

use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::path::{SIGN_OUT, own_page};
use crate::view::{field, page, refusal};
use crate::{Dashboard, ROOT, cookie};

const ENTER: &str = "/dashboard/enter";
const SIGN_IN: &str = "/dashboard/sign-in";
const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");

/// The address of the sign-in, which leads to a page afterwards.
pub(crate) fn address(next: &str) -> String {
    match next {
        "" => SIGN_IN.into(),
        next => format!("{SIGN_IN}?next={}", utf8_percent_encode(next, NON_ALPHANUMERIC)),
    }
}

/// The answer to a request for one of these pages; `None` for any other.
pub(crate) async fn answer(
    dashboard: &Arc<Dashboard>,
    req: &mut Request,
    path: &str,
    known: Option<&SignIn>,
    client: &Client,
) -> Result<Option<Answer>> {
    let posts = *req.method() == Method::POST;
    Ok(Some(match (path, posts) {
        ("enter", false) => Answer::page(StatusCode::OK, enter_page(dashboard, None)),
        ("sign-in", false) => {
            let next = req.query::<String>("next").unwrap_or_default();
            let next = own_page(&next).unwrap_or_default();
            match known {
                Some(_) => Answer::see_other(if next.is_empty() { ROOT } else { next }),
                None => Answer::page(StatusCode::OK, sign_in_page(dashboard, next, "", None)),
            }
        }
        ("enter", true) => enter(dashboard, Form::read(req).await?, client).await?,
        ("sign-in", true) => sign_in(dashboard, Form::read(req).await?, client).await?,
        ("sign-out", true) => sign_out(dashboard, &Form::read(req).await?, known).await?,
        ("sign-out", false) => Answer::see_other(ROOT),
        _ => return Ok(None),
    }))
}

/// The answer to a sign-in that has begun, or has another value.
pub(crate) fn signed_in(dashboard: &Dashboard, value: &SignInValue, next: &str) -> Answer {
    let now = dashboard.service.clock().now();
    let cookie = cookie::set(&dashboard.site, &value.value, value.expires_at, now);
    Answer::see_other(next).with_cookie(&cookie)
}

/// A form that nobody has to be signed in for, by its path. Its key says that it is ours.
fn check(dashboard: &Dashboard, form: &Form, path: &str) -> Result<()> {
    let id = FormId { sign_in: Uuid::nil(), path };
    dashboard.service.open_form_key(id, form.get(KEY)).map(drop).ok_or_else(|| Error::of(Code::FormExpired))
}

async fn enter(dashboard: &Dashboard, form: Form, client: &Client) -> Result<Answer> {
    let entered = async {
        check(dashboard, &form, ENTER)?;
        dashboard.sign_ins.enter(&dashboard.service, form.get("link"), client).await
    };
    match entered.await {
        // Whoever came by a link is asked for a password first, if there is none.
        Ok(value) => Ok(signed_in(dashboard, &value, &format!("{ROOT}/account"))),
        Err(error) if error.source.is_some() => Err(error),
        Err(error) => Ok(refused(dashboard, &error, enter_page(dashboard, Some(&error)))),
    }
}

async fn sign_in(dashboard: &Dashboard, form: Form, client: &Client) -> Result<Answer> {
    let (email, next) = (form.get("email").trim(), form.get("next"));
    let signed = async {
        check(dashboard, &form, SIGN_IN)?;
        dashboard.sign_ins.sign_in(&dashboard.service, email, form.get("password"), client).await
    };
    let next = own_page(next).unwrap_or_default();
    match signed.await {
        Ok(Some(value)) => Ok(signed_in(dashboard, &value, if next.is_empty() { ROOT } else { next })),
        Ok(None) => {
            let error = Error::new(Code::SignInRequired, "The e-mail address or the password is wrong.");
            Ok(refused(dashboard, &error, sign_in_page(dashboard, next, email, Some(&error))))
        }
        Err(error) if error.source.is_some() => Err(error),
        Err(error) => Ok(refused(dashboard, &error, sign_in_page(dashboard, next, email, Some(&error)))),
    }
}

async fn sign_out(dashboard: &Dashboard, form: &Form, known: Option<&SignIn>) -> Result<Answer> {
    if let Some(sign_in) = known {
        let id = FormId { sign_in: sign_in.id, path: SIGN_OUT };
        dashboard.service.open_form_key(id, form.get(KEY)).ok_or_else(|| Error::of(Code::FormExpired))?;
        dashboard.sign_ins.end(&dashboard.service, sign_in, Some(sign_in.id)).await?;
    }
    Ok(Answer::see_other(SIGN_IN)
        .with_cookie(&cookie::clear(&dashboard.site))
        .with(CLEAR_SITE_DATA, "\"cache\", \"storage\""))
}

fn refused(dashboard: &Dashboard, error: &Error, page: Markup) -> Answer {
    Answer::page((dashboard.status_of)(&error.code), page).retry_after(error.retry_after)
}

fn form_key(dashboard: &Dashboard, path: &str) -> String {
    dashboard.service.form_key(FormId { sign_in: Uuid::nil(), path })
}

fn enter_page(dashboard: &Dashboard, error: Option<&Error>) -> Markup {
    page::narrow(
        "Come in with a link",
        &dashboard.docs_url,
        &html! {
            @if let Some(error) = error { (refusal::error(error)) }
            form method="post" action=(ENTER) data-takes-fragment {
                (field::hidden(KEY, &form_key(dashboard, ENTER)))
                (field::text(&field::Field { name: "link", label: "Link", hint: Some("As it was printed; it can be used once."),
                    autocomplete: Some("off"), required: true, ..field::Field::default() }))
                button type="submit" { "Come in" }
            }
            p.muted { "There is no link? Whoever runs the server makes one: " code { "culvert account link --email …" } }
            p { a href=(SIGN_IN) { "Sign in with a password" } }
        },
    )
}

fn sign_in_page(dashboard: &Dashboard, next: &str, email: &str, error: Option<&Error>) -> Markup {
    page::narrow(
        "Sign in",
        &dashboard.docs_url,
        &html! {
            @if let Some(error) = error { (refusal::error(error)) }
            form method="post" action=(SIGN_IN) {
                (field::hidden(KEY, &form_key(dashboard, SIGN_IN)))
                (field::hidden("next", next))
                (field::text(&field::Field { name: "email", label: "E-mail", kind: "email", value: email,
                    autocomplete: Some("username"), required: true, ..field::Field::default() }))
                (field::text(&field::Field { name: "password", label: "Password", kind: "password",
                    autocomplete: Some("current-password"), required: true, ..field::Field::default() }))
                button type="submit" { "Sign in" }
            }
            p { a href=(ENTER) { "Come in with a link" } }
            @if dashboard.site.is_loopback && !dashboard.site.is_https {
                p.muted {
                    "This page is for whoever uses this machine alone: a tunnel that is opened as "
                    code { "http://localhost:…" } " would be given its cookie."
                }
            }
        },
    )
}
