//! Signing in at another provider (OpenID Connect), and linking one's account with it: from the link that begins it to what
//! the provider sends the browser back with.

use std::sync::Arc;

use culvert_domain::error::{Code, Error, Result};
use culvert_domain::sign_in::SignIn;
use culvert_oidc::{Callback, OidcError, Pending};
use culvert_service::forms::FormId;
use culvert_service::sign_ins::{Client, ProvedIdentity};
use salvo::Request;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::answer::Answer;
use crate::path::own_page;
use crate::providers::{BEGIN, LINK, SignInProvider};
use crate::public_form::{credentials_changed, refused, signed_in};
use crate::sign_in::{proved_page, sign_in_page};
use crate::{Dashboard, ROOT, cookie};

/// Where providers lead browsers back to, below the dashboard.
pub const CALLBACK: &str = "sign-in/oidc/callback";

/// What a browser keeps while it is at the provider.
#[derive(Serialize, Deserialize)]
struct Login {
    provider: usize,
    pending: Pending,
    next: String,
    /// The sign-in whose account is to be linked.
    link: Option<Uuid>,
}

/// The answer to a request for one of these paths; `None` for any other.
pub(crate) async fn answer(
    dashboard: &Arc<Dashboard>,
    req: &mut Request,
    path: &str,
    known: Option<&SignIn>,
    client: &Client,
) -> Result<Option<Answer>> {
    if path == CALLBACK {
        return callback(dashboard, req, known, client).await.map(Some);
    }
    if let Some(number) = path.strip_prefix(BEGIN) {
        let next: String = req.query("next").unwrap_or_default();
        let login = (own_page(&next).unwrap_or_default().to_owned(), None);
        let is_fresh = req.query::<String>("fresh").is_some();
        return begin(dashboard, number, login, is_fresh, client).await.map(Some);
    }
    let (Some(number), Some(sign_in)) = (path.strip_prefix(LINK), known) else { return Ok(None) };
    if number.parse::<usize>().is_err() {
        return Ok(None);
    }
    let (whole, key) = (format!("{ROOT}/{path}"), req.query::<String>("key").unwrap_or_default());
    let id = FormId { sign_in: sign_in.id, path: &whole };
    dashboard.service.open_form_key(id, &key).ok_or_else(|| Error::of(Code::FormExpired))?;
    if !sign_in.is_elevated(dashboard.service.clock().now()) {
        return Err(Error::of(Code::ElevationRequired));
    }
    begin(dashboard, number, (String::new(), Some(sign_in.id)), false, client).await.map(Some)
}

async fn begin(
    dashboard: &Dashboard,
    number: &str,
    (next, link): (String, Option<Uuid>),
    is_fresh: bool,
    client: &Client,
) -> Result<Answer> {
    let number: usize = number.parse().map_err(|_| Error::not_found())?;
    let provider = dashboard.providers.get(number).ok_or_else(Error::not_found)?;
    dashboard.sign_ins.count_login(client)?;
    let begun = provider.provider.begin(is_fresh).await;
    let (url, pending) = match begun {
        Ok(begun) => begun,
        Err(error) => return Ok(failed(dashboard, provider, &error)),
    };
    let login = Login { provider: number, pending, next, link };
    let token = dashboard.sign_ins.seal_login(&dashboard.service, &login)?;
    Ok(Answer::see_other(&url).with_cookie(&cookie::set_login(&dashboard.site, &token)))
}

/// Takes what a provider sends a browser back with.
async fn callback(
    dashboard: &Arc<Dashboard>,
    req: &mut Request,
    known: Option<&SignIn>,
    client: &Client,
) -> Result<Answer> {
    let answer = finish(dashboard, req, known, client).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if error.source.is_some() => return Err(error),
        Err(error) => refused(dashboard, &error, sign_in_page(dashboard, "", "", Some(&error))),
    };
    // It is good once.
    Ok(answer.with_cookie(&cookie::clear_login(&dashboard.site)))
}

async fn finish(
    dashboard: &Arc<Dashboard>,
    req: &mut Request,
    known: Option<&SignIn>,
    client: &Client,
) -> Result<Answer> {
    let begun_anew = || Error::new(Code::FormExpired, "It took too long, or another sign-in has begun. Try again.");
    let token = cookie::login(req, &dashboard.site).ok_or_else(begun_anew)?;
    let login: Login = dashboard.sign_ins.open_login(&dashboard.service, &token, client)?;
    let provider = dashboard.providers.get(login.provider).ok_or_else(begun_anew)?;
    let callback = Callback {
        state: req.query("state").unwrap_or_default(),
        code: req.query("code"),
        error: req.query("error"),
        issuer: req.query("iss"),
    };
    let identity = match provider.provider.finish(&login.pending, &callback).await {
        Ok(identity) => identity,
        Err(error) => return Ok(failed(dashboard, provider, &error)),
    };
    let proved = ProvedIdentity {
        issuer: provider.provider.issuer().to_owned(),
        subject: identity.subject,
        is_email_trusted: provider.trust_email && identity.email_verified,
        email: identity.email,
        authenticated_at: identity.authenticated_at,
    };
    if let Some(link) = login.link {
        let sign_in = known.filter(|known| known.id == link).ok_or_else(begun_anew)?;
        let linked = dashboard.sign_ins.link_identity(&dashboard.service, sign_in, &proved).await?;
        return Ok(credentials_changed(dashboard, Some(&linked)));
    }
    let next = if login.next.is_empty() { ROOT } else { &login.next };
    if let Some(known) = dashboard.sign_ins.sign_in_by_identity(&dashboard.service, &proved, client).await? {
        return Ok(proved_page(dashboard, known, next));
    }
    if let Some(value) = dashboard.sign_ins.begin_by_identity(&dashboard.service, &proved, client).await? {
        return Ok(signed_in(dashboard, &value, next));
    }
    Err(Error::new(
        Code::SignInRequired,
        format!(
            "No account here is linked with {} at {}. Sign in in another way, and link it on the page of your account.",
            proved.email.as_deref().unwrap_or("you"),
            provider.name
        ),
    ))
}

/// The other ways to sign in stay.
fn failed(dashboard: &Dashboard, provider: &SignInProvider, error: &OidcError) -> Answer {
    tracing::warn!(provider = provider.name, %error, "a sign-in at a provider failed");
    let told = match error {
        OidcError::Unreachable(_) => {
            let detail = format!("{} cannot be reached now. Sign in in another way, or try again.", provider.name);
            Error::new(Code::ServiceUnavailable, detail)
        }
        OidcError::Refused(_) => {
            Error::new(Code::SignInRequired, format!("What {} has answered was not accepted: {error}.", provider.name))
        }
    };
    refused(dashboard, &told, sign_in_page(dashboard, "", "", Some(&told)))
}
