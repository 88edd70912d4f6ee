//! Passkeys: signing in with one, and those of the person's own account. They take the script.

use culvert_domain::error::{Chain, Error, Result};
use culvert_service::sign_ins::{Challenge, StoredPasskey};
use maud::{Markup, html};

use crate::Dashboard;
use crate::answer::Answer;
use crate::form::KEY;
use crate::public_form::{credentials_changed, form_key};
use crate::view::{field, time};
use crate::visit::{Posted, Visit};

/// Where a passkey signs in.
pub(crate) const SIGN_IN: &str = "/dashboard/sign-in/passkey";
const ADD: &str = "/dashboard/account/passkeys";

/// The form that the script fills in. Without script it is not shown.
pub(crate) fn sign_in_form(dashboard: &Dashboard, next: &str) -> Markup {
    let challenge = dashboard.sign_ins.passkey_challenge(&dashboard.service).unwrap_or_else(|error| failed(&error));
    html! {
        @if let Some(challenge) = challenge {
            form #passkey method="post" action=(SIGN_IN) data-passkey="offer" data-options=(challenge.options) hidden {
                (field::hidden(KEY, &form_key(dashboard, SIGN_IN)))
                (field::hidden("next", next))
                (answer_fields(&challenge))
                button type="submit" { "Sign in with a passkey" }
            }
        }
    }
}

/// A challenge for whoever is to prove once more who it is. None without a passkey.
pub(crate) fn confirmation_challenge(visit: &Visit) -> Option<Challenge> {
    let made = visit.dashboard.sign_ins.confirmation_challenge(visit.service(), &visit.sign_in);
    made.unwrap_or_else(|error| failed(&error))
}

fn failed(error: &Error) -> Option<Challenge> {
    tracing::error!(error = %Chain(error), "a challenge for passkeys could not be made");
    None
}

pub(crate) fn answer_fields(challenge: &Challenge) -> Markup {
    html! {
        (field::hidden("challenge", &challenge.token))
        (field::hidden("answer", ""))
    }
}

/// What the account's page says of them.
pub(crate) async fn section(visit: &Visit) -> Result<Markup> {
    let (dashboard, sign_in) = (&visit.dashboard, &visit.sign_in);
    let passkeys = dashboard.sign_ins.passkeys_of(&dashboard.service, sign_in).await?;
    let is_elevated = visit.is_elevated();
    let challenge =
        if is_elevated { dashboard.sign_ins.new_passkey_challenge(&dashboard.service, sign_in).await? } else { None };
    Ok(html! {
        section {
            h2 { "Passkeys" }
            p { "With a passkey you sign in by your device's lock, without a password and without a code." }
            @if !passkeys.is_empty() { (table(visit, &passkeys, is_elevated)) }
            @if !is_elevated { p.muted { "To change them, show above who you are first." } }
            noscript { p.muted { "Passkeys take a browser with script." } }
            @if let Some(challenge) = challenge {
                form #new-passkey method="post" action=(ADD) data-passkey="create" data-options=(challenge.options) hidden {
                    (field::hidden(KEY, &visit.form_key(ADD)))
                    (answer_fields(&challenge))
                    (field::text(&field::Field { required: true, hint: Some("Such as the device that keeps it. All other sign-ins of yours end."),
                        ..field::typed(visit, "name", "Name", "") }))
                    @if let Some(fault) = visit.fault("passkey") { p.fault role="alert" { "The passkey " (fault) "." } }
                    button type="submit" { "Add a passkey" }
                }
            }
        }
    })
}

fn table(visit: &Visit, passkeys: &[StoredPasskey], is_elevated: bool) -> Markup {
    html! {
        div.scroll role="region" aria-label="Passkeys" tabindex="0" { table {
            thead { tr { th { "Name" } th { "Added" } th { "Last used" } th {} } }
            tbody { @for passkey in passkeys { tr {
                td.long { (passkey.name) }
                td { (time::at(passkey.created_at)) }
                td { (time::maybe(passkey.last_used_at, "never")) }
                td { @if is_elevated { (field::button(visit, &format!("{ADD}/{}/remove", passkey.id), "Remove")) } }
            } } }
        } }
    }
}

pub(crate) async fn add(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (dashboard, form) = (&visit.dashboard, &posted.form);
    let (name, token, answer) = (form.get("name"), form.get("challenge"), form.get("answer"));
    let added = dashboard.sign_ins.add_passkey(&dashboard.service, &visit.sign_in, name, token, answer);
    Ok(credentials_changed(dashboard, added.await?.as_ref()))
}

pub(crate) async fn remove(visit: &Visit, _: Posted) -> Result<Answer> {
    let dashboard = &visit.dashboard;
    let removed = dashboard.sign_ins.remove_passkey(&dashboard.service, &visit.sign_in, visit.id()?);
    Ok(credentials_changed(dashboard, removed.await?.as_ref()))
}
