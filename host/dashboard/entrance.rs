//! The pages for people who are not signed in yet: a table of paths.

use std::sync::Arc;

use culvert_domain::error::Result;
use culvert_domain::sign_in::SignIn;
use culvert_service::sign_ins::Client;
use salvo::Request;
use salvo::http::{Method, StatusCode};

use crate::answer::Answer;
use crate::form::Form;
use crate::path::{ENTER, SIGN_IN, own_page};
use crate::sign_in::{by_passkey, code, sign_in, sign_in_page, sign_out};
use crate::{Dashboard, ROOT, mail, oidc, welcome};

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
        ("enter", false) => Answer::page(StatusCode::OK, welcome::enter_page(dashboard, None)),
        ("sign-in", false) => {
            let next = req.query::<String>("next").unwrap_or_default();
            let next = own_page(&next).unwrap_or_default();
            match known {
                Some(_) => Answer::see_other(if next.is_empty() { ROOT } else { next }),
                None => Answer::page(StatusCode::OK, sign_in_page(dashboard, next, "", None)),
            }
        }
        ("enter", true) => welcome::enter(dashboard, Form::read(req).await?, known, client).await?,
        ("enter/account", true) => welcome::begin(dashboard, Form::read(req).await?, client).await?,
        ("enter/account", false) => Answer::see_other(ENTER),
        ("sign-in", true) => sign_in(dashboard, Form::read(req).await?, client).await?,
        ("sign-in/passkey", true) => by_passkey(dashboard, &Form::read(req).await?, client).await?,
        ("sign-in/code", true) => code(dashboard, Form::read(req).await?, client).await?,
        ("sign-in/link", false) => Answer::page(StatusCode::OK, mail::ask_page(dashboard, None)),
        ("sign-in/link", true) => mail::ask(dashboard, &Form::read(req).await?, client)?,
        ("sign-up", false) if dashboard.sign_ins.is_open() => {
            Answer::page(StatusCode::OK, mail::sign_up_page(dashboard, None))
        }
        ("sign-up", true) if dashboard.sign_ins.is_open() => mail::sign_up(dashboard, &Form::read(req).await?, client)?,
        ("sign-in/passkey" | "sign-in/code", false) => Answer::see_other(SIGN_IN),
        ("sign-out", true) => sign_out(dashboard, &Form::read(req).await?, known).await?,
        ("sign-out", false) => Answer::see_other(ROOT),
        (path, false) => return oidc::answer(dashboard, req, path, known, client).await,
        _ => return Ok(None),
    }))
}
