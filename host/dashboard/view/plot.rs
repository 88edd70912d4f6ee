//! Plots, drawn on the server. Colours are the style sheet's; each plot has its numbers as a table beside it.

use chrono::{DateTime, NaiveDate, Utc};
use culvert_domain::usage::Traffic;
use maud::{Markup, html};

use super::bytes;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 120.0;
/// Part of a day's room that is left free.
const GAP: f64 = 0.2;

/// Traffic by day.
pub(crate) fn days(days: &[(NaiveDate, Traffic)]) -> Markup {
    let rows: Vec<(String, Traffic)> = days.iter().map(|(day, traffic)| (day.to_string(), *traffic)).collect();
    bars("day", &rows)
}

/// Traffic by minute.
pub(crate) fn minutes(minutes: &[(DateTime<Utc>, Traffic)]) -> Markup {
    let rows: Vec<(String, Traffic)> =
        minutes.iter().map(|(minute, traffic)| (minute.format("%H:%M").to_string(), *traffic)).collect();
    bars("minute", &rows)
}

/// Traffic by a unit of time: what visitors sent below, what they got above it.
fn bars(unit: &str, days: &[(String, Traffic)]) -> Markup {
    let most = days.iter().map(|(_, traffic)| traffic.total()).max().unwrap_or_default();
    let sum = days.iter().fold(Traffic::default(), |sum, (_, traffic)| sum + *traffic);
    let scale = |bytes: u64| if most == 0 { 0.0 } else { bytes as f64 / most as f64 * HEIGHT };
    let room = WIDTH / days.len().max(1) as f64;
    html! {
        figure {
            svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(format!("Traffic by {unit}: {}", bytes::traffic(sum))) {
                @for (index, (day, traffic)) in days.iter().enumerate() {
                    @let (sent, got) = (scale(traffic.bytes_in), scale(traffic.bytes_out));
                    @let (x, width) = (number(room * index as f64), number(room * (1.0 - GAP)));
                    g {
                        title { (day) ": " (bytes::traffic(*traffic)) }
                        rect.in x=(x) y=(number(HEIGHT - sent)) width=(width) height=(number(sent)) {}
                        rect.out x=(x) y=(number(HEIGHT - sent - got)) width=(width) height=(number(got)) {}
                    }
                }
                line.axis x1="0" x2=(WIDTH) y1=(HEIGHT) y2=(HEIGHT) {}
            }
            figcaption.muted {
                @if let (Some((first, _)), Some((last, _))) = (days.first(), days.last()) { (first) " to " (last) ", UTC. " }
                span.key.in {} " from visitors " span.key.out {} " to visitors. Most in a " (unit) ": " (bytes::amount(most)) "."
            }
            details {
                summary { "As a table" }
                table {
                    thead { tr { th { (unit) } th { "From visitors" } th { "To visitors" } } }
                    tbody { @for (day, traffic) in days.iter().rev() { tr {
                        td { (day) }
                        td { (bytes::amount(traffic.bytes_in)) }
                        td { (bytes::amount(traffic.bytes_out)) }
                    } } }
                }
            }
        }
    }
}

fn number(value: f64) -> String {
    format!("{value:.2}")
}
