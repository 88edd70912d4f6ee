//! Times, in UTC; the script shows them in the reader's own time.

use chrono::{DateTime, SecondsFormat, Utc};
use maud::{Markup, html};

pub(crate) fn at(at: DateTime<Utc>) -> Markup {
    let exact = at.to_rfc3339_opts(SecondsFormat::Millis, true);
    html! { time datetime=(exact) { (at.format("%Y-%m-%d %H:%M UTC")) } }
}

pub(crate) fn maybe(time: Option<DateTime<Utc>>, otherwise: &str) -> Markup {
    time.map_or_else(|| html! { (otherwise) }, at)
}
