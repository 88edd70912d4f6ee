//! The end of a list.

use maud::{Markup, html};

pub(crate) fn more(next: Option<&str>) -> Markup {
    html! { @if let Some(next) = next { p { a href=(next) rel="next" { "Older" } } } }
}
