//! What is to be copied: commands, and secrets that are shown once.

use maud::{Markup, html};

pub(crate) fn shown_once(label: &str, value: &str, about: &str) -> Markup {
    html! {
        section.secret {
            h2 { (label) }
            (command(value))
            p.notice.warn { (about) }
        }
    }
}

pub(crate) fn command(text: &str) -> Markup {
    html! { div.command data-copy { pre { code { (text) } } } }
}
