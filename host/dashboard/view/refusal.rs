//! What went wrong, and what to do.

use culvert_domain::error::{Code, Error};
use maud::{Markup, html};

use crate::ROOT;
use crate::answer::seconds;

/// A refusal at the top of a page, where whoever uses the keyboard is then.
pub(crate) fn error(error: &Error) -> Markup {
    html! {
        div.notice.bad role="alert" tabindex="-1" autofocus {
            @if error.faults.is_empty() {
                p { (error.detail) }
            } @else {
                p { "Nothing was changed, because something is not as it must be:" }
                ul { @for fault in &error.faults { li { a href=(format!("#{}", fault.field)) { (fault.field) } " " (fault.message) } } }
            }
            @if let Some(rule) = error.rule() { p { "The rule of a policy that refuses it: " code { (rule) } } }
            @if error.code == Code::ElevationRequired {
                p { "Prove once more who you are, as asked below or on the page of " a href=(format!("{ROOT}/account")) { "your account" } "." }
            }
            @if let Some(wait) = error.retry_after { p { "Try again in " (seconds(wait)) " seconds." } }
            p.muted { code { (error.code.as_str()) } }
        }
    }
}

/// A button, or where it is known beforehand to be refused, why.
pub(crate) fn unless(refused: Option<&Error>, label: &str, button: Markup) -> Markup {
    let Some(error) = refused else { return button };
    html! {
        span.refused {
            button type="button" aria-disabled="true" { (label) }
            span.muted { (error.detail) " " code { (error.code.as_str()) } }
        }
    }
}

/// A form, or where it is known beforehand to be refused, the same without use, and why.
pub(crate) fn form_unless(refused: Option<&Error>, form: Markup) -> Markup {
    let Some(error) = refused else { return form };
    html! {
        p.notice { (error.detail) " " code { (error.code.as_str()) } @if let Some(rule) = error.rule() { ", by the rule " code { (rule) } } }
        fieldset disabled { (form) }
    }
}
