//! Other providers on pages (OpenID Connect): the links to them, and the account's identities there. A sign-in begins with a
//! link and not with a form, because Chromium applies `form-action` to where a form is redirected.

use culvert_domain::error::Result;
use culvert_domain::sign_in::SignInMethod;
use culvert_oidc::Provider;
use culvert_service::sign_ins::StoredIdentity;
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::answer::Answer;
use crate::public_form::credentials_changed;
use crate::view::{field, time};
use crate::visit::{Posted, Visit};
use crate::{Dashboard, ROOT};

/// Where a sign-in at a provider begins, and where an account is linked: before the provider's number.
pub(crate) const BEGIN: &str = "sign-in/oidc/";
pub(crate) const LINK: &str = "account/oidc/";
const UNLINK: &str = "/dashboard/account/oidc/unlink";

/// A provider at which people sign in.
pub struct SignInProvider {
    pub name: String,
    /// Whether an account with an address that the provider has verified is theirs.
    pub trust_email: bool,
    pub provider: Provider,
}

/// Links to the providers, for the page of the sign-in.
pub(crate) fn links(dashboard: &Dashboard, next: &str) -> Markup {
    let next = utf8_percent_encode(next, NON_ALPHANUMERIC);
    html! { @for (number, provider) in dashboard.providers.iter().enumerate() {
        p { a.button href=(format!("{ROOT}/{BEGIN}{number}?next={next}")) { "Continue with " (provider.name) } }
    } }
}

/// For who came by a provider: it asks who they are once more.
pub(crate) fn confirmation(visit: &Visit, next: &str) -> Markup {
    let next = utf8_percent_encode(next, NON_ALPHANUMERIC);
    html! { @if visit.sign_in.method == SignInMethod::Oidc { @for (number, provider) in visit.dashboard.providers.iter().enumerate() {
        p { a.button href=(format!("{ROOT}/{BEGIN}{number}?fresh=1&next={next}")) { "Confirm with " (provider.name) } }
    } } }
}

/// What the account's page says of them. `ask` stands where nobody has lately said who they are.
pub(crate) async fn section(visit: &Visit, ask: Markup) -> Result<Markup> {
    let dashboard = &visit.dashboard;
    if dashboard.providers.is_empty() {
        return Ok(html! {});
    }
    let linked = dashboard.sign_ins.identities_of(visit.service(), &visit.sign_in).await?;
    Ok(html! {
        section {
            h2 { "Other providers" }
            ul { @for identity in &linked { li { (one(visit, identity)) } } }
            @if visit.is_elevated() { (link_buttons(visit, &linked)) }
            @else { (ask) }
        }
    })
}

fn one(visit: &Visit, identity: &StoredIdentity) -> Markup {
    let named = visit.dashboard.providers.iter().find(|one| one.provider.issuer() == identity.issuer);
    let fields = [("issuer", identity.issuer.as_str()), ("subject", identity.subject.as_str())];
    html! {
        (named.map_or(identity.issuer.as_str(), |one| one.name.as_str())) ": " (identity.email.as_deref().unwrap_or(&identity.subject))
        span.muted { ", last used " (time::maybe(identity.last_used_at, "never")) } " "
        @if visit.is_elevated() { (field::button_with(visit, UNLINK, "Unlink", &fields)) }
    }
}

fn link_buttons(visit: &Visit, linked: &[StoredIdentity]) -> Markup {
    let is_new = |one: &SignInProvider| !linked.iter().any(|identity| identity.issuer == one.provider.issuer());
    html! { @for (number, provider) in visit.dashboard.providers.iter().enumerate().filter(|(_, one)| is_new(one)) {
        @let path = format!("{ROOT}/{LINK}{number}");
        p { a.button href=(format!("{path}?key={}", visit.form_key(&path))) { "Link with " (provider.name) } }
    } }
}

pub(crate) async fn unlink(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (issuer, subject) = (posted.form.get("issuer"), posted.form.get("subject"));
    let unlinked = visit.dashboard.sign_ins.unlink_identity(visit.service(), &visit.sign_in, issuer, subject).await?;
    Ok(credentials_changed(&visit.dashboard, unlinked.as_ref()))
}
