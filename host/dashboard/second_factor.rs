//! The second factor of the person's own account: an authenticator app, and recovery codes.

use culvert_domain::error::{Error, Result};
use culvert_service::sign_ins::NewTotp;
use maud::{Markup, html};
use qrcode::{Color, QrCode};
use salvo::http::StatusCode;
use serde_json::Value;

use crate::ROOT;
use crate::answer::Answer;
use crate::form::KEY;
use crate::public_form::credentials_changed;
use crate::view::{field, page, secret};
use crate::visit::{Posted, Visit};

const BEGIN: &str = "/dashboard/account/second-factor";
const CONFIRM: &str = "/dashboard/account/second-factor/confirm";
const NEW_CODES: &str = "/dashboard/account/second-factor/recovery-codes";
const OFF: &str = "/dashboard/account/second-factor/off";

/// Modules of white around a QR code (ISO/IEC 18004, section 9.1).
const QUIET: usize = 4;

/// What the account's page says of it.
pub(crate) async fn section(visit: &Visit) -> Result<Markup> {
    let (dashboard, sign_in) = (&visit.dashboard, &visit.sign_in);
    let left = if sign_in.has_second_factor {
        Some(dashboard.sign_ins.recovery_codes_left(&dashboard.service, sign_in).await?)
    } else {
        None
    };
    Ok(html! {
        section {
            h2 { "Second factor" }
            @if let Some(left) = left {
                p { "An authenticator app is asked for its code beside the password. " (left) " recovery codes are left." }
            } @else {
                p { "With an authenticator app, a code is asked for beside the password." }
            }
            @if !sign_in.has_password { p.muted { "Set a password first." } }
            @else if !visit.is_elevated() { p.muted { "To change it, show above who you are first." } }
            @else if left.is_some() {
                div.row {
                    (field::button(visit, NEW_CODES, "New recovery codes"))
                    (field::button(visit, OFF, "Switch off"))
                }
            } @else {
                // The app has the secret, and its code was mistyped.
                @if visit.fault("code").is_some() { (confirmation(visit)) }
                (field::button(visit, BEGIN, "Set up an authenticator app"))
            }
        }
    })
}

/// Where the code is typed.
pub(crate) fn code_field(visit: &Visit) -> Markup {
    field::text(&field::Field {
        name: "code",
        label: "Code",
        autocomplete: Some("one-time-code"),
        required: true,
        fault: visit.fault("code"),
        hint: Some("Of your authenticator app, or a recovery code."),
        ..field::Field::default()
    })
}

pub(crate) async fn begin(visit: &Visit, _: Posted) -> Result<Answer> {
    let dashboard = &visit.dashboard;
    let issuer = format!("Culvert {}", dashboard.site.authority);
    let made = dashboard.sign_ins.begin_second_factor(&dashboard.service, &visit.sign_in, &issuer).await?;
    Ok(Answer::page(StatusCode::OK, page::signed_in(visit, "Set up an authenticator app", &set_up(visit, &made)?)))
}

fn set_up(visit: &Visit, made: &NewTotp) -> Result<Markup> {
    Ok(html! {
        section {
            p { "Scan this with the app, or type the secret into it. Then type the code that it shows." }
            (qr(&made.url)?)
            (secret::command(&made.secret))
            (confirmation(visit))
        }
    })
}

fn confirmation(visit: &Visit) -> Markup {
    html! {
        form method="post" action=(CONFIRM) {
            (field::hidden(KEY, &visit.form_key(CONFIRM)))
            (code_field(visit))
            button type="submit" { "Switch on" }
        }
    }
}

/// A QR code as one path of squares.
fn qr(text: &str) -> Result<Markup> {
    let code = QrCode::new(text).map_err(|error| Error::internal(error.to_string()))?;
    let (width, colors) = (code.width(), code.to_colors());
    let dark = colors.iter().enumerate().filter(|(_, color)| **color == Color::Dark);
    let squares = dark.map(|(at, _)| format!("M{} {}h1v1h-1z", at % width + QUIET, at / width + QUIET));
    let path = squares.collect::<Vec<_>>().concat();
    let size = width + 2 * QUIET;
    Ok(html! {
        svg.qr viewBox=(format!("0 0 {size} {size}")) role="img" aria-label="The secret as a QR code" {
            rect width=(size) height=(size) fill="#ffffff" {}
            path d=(path) fill="#000000" {}
        }
    })
}

pub(crate) async fn confirm(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (dashboard, code) = (&visit.dashboard, posted.form.get("code"));
    let run = dashboard.sign_ins.confirm_second_factor(&dashboard.service, &visit.sign_in, code, &posted.key);
    Ok(shown(visit, &visit.carry_out(&posted, run).await?))
}

pub(crate) async fn new_recovery_codes(visit: &Visit, posted: Posted) -> Result<Answer> {
    let dashboard = &visit.dashboard;
    let run = dashboard.sign_ins.new_recovery_codes(&dashboard.service, &visit.sign_in, &posted.key);
    Ok(shown(visit, &visit.carry_out(&posted, run).await?))
}

/// A reload shows the same codes and makes no others.
fn shown(visit: &Visit, codes: &Value) -> Answer {
    let codes: Vec<&str> = codes.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let content = html! {
        (secret::shown_once("Your recovery codes", &codes.join("\n"),
            "Keep them where the app is not. Each is good once in place of a code. They are shown this once."))
        p { a href=(format!("{ROOT}/account")) { "Your account" } }
    };
    Answer::page(StatusCode::OK, page::signed_in(visit, "Recovery codes", &content))
}

pub(crate) async fn switch_off(visit: &Visit, _: Posted) -> Result<Answer> {
    let dashboard = &visit.dashboard;
    let removed = dashboard.sign_ins.remove_second_factor(&dashboard.service, &visit.sign_in).await?;
    Ok(credentials_changed(dashboard, Some(&removed)))
}
