//! Plots, drawn on the server. Colours are the style sheet's; each plot has its numbers as a table beside it.

use chrono::{DateTime, NaiveDate, Utc};
use culvert_domain::usage::Traffic;
use maud::{Markup, html};

use super::bytes;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 120.0;
/// Part of a bar's room that is left free.
const GAP: f64 = 0.2;

/// Traffic by day.
pub(crate) fn days(days: &[(NaiveDate, Traffic)]) -> Markup {
    let rows: Vec<(String, Traffic)> = days.iter().map(|(day, traffic)| (day.to_string(), *traffic)).collect();
    figure("day", &rows, &table("Day", &rows))
}

/// Traffic by hour.
pub(crate) fn hours(hours: &[(DateTime<Utc>, Traffic)]) -> Markup {
    let rows: Vec<(String, Traffic)> =
        hours.iter().map(|(hour, traffic)| (hour.format("%m-%d %H:%M").to_string(), *traffic)).collect();
    figure("hour", &rows, &table("Hour from", &rows))
}

/// Traffic by minute; the table has five minutes in a row.
pub(crate) fn minutes(minutes: &[(DateTime<Utc>, Traffic)]) -> Markup {
    let rows: Vec<(String, Traffic)> =
        minutes.iter().map(|(minute, traffic)| (minute.format("%H:%M").to_string(), *traffic)).collect();
    let fives: Vec<(String, Traffic)> = rows.chunks(5).map(|five| (five[0].0.clone(), sum(five))).collect();
    figure("minute", &rows, &table("Five minutes from", &fives))
}

fn sum(rows: &[(String, Traffic)]) -> Traffic {
    rows.iter().fold(Traffic::default(), |sum, (_, traffic)| sum + *traffic)
}

/// Traffic by a unit of time: what visitors sent below, what they got above it.
fn figure(unit: &str, rows: &[(String, Traffic)], table: &Markup) -> Markup {
    let most = rows.iter().map(|(_, traffic)| traffic.total()).max().unwrap_or_default();
    let (sent, got) = bars(rows, most);
    html! {
        figure {
            svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(format!("Traffic by {unit}: {}", bytes::traffic(sum(rows)))) {
                path.in d=(sent) {}
                path.out d=(got) {}
                line.axis x1="0" x2=(WIDTH) y1=(HEIGHT) y2=(HEIGHT) {}
            }
            figcaption.muted {
                @if let (Some((first, _)), Some((last, _))) = (rows.first(), rows.last()) { (first) " to " (last) ", UTC. " }
                span.key.in {} " from visitors " span.key.out {} " to visitors. Most in " (if unit == "hour" { "an" } else { "a" }) " " (unit) ": " (bytes::amount(most)) "."
            }
            details {
                summary { "As a table" }
                (table)
            }
        }
    }
}

/// The bars of each direction, as one path each. Where nothing was carried, there is none.
fn bars(rows: &[(String, Traffic)], most: u64) -> (String, String) {
    let room = WIDTH / rows.len().max(1) as f64;
    let scale = |bytes: u64| bytes as f64 / most.max(1) as f64 * HEIGHT;
    let (mut sent, mut got) = (String::new(), String::new());
    for (index, (_, traffic)) in rows.iter().enumerate() {
        let bar = |path: &mut String, bottom: f64, height: f64| {
            if height > 0.0 {
                let (x, width) = (room * index as f64, room * (1.0 - GAP));
                path.push_str(&format!("M{x:.0} {bottom:.1}v-{height:.1}h{width:.1}v{height:.1}z"));
            }
        };
        let below = scale(traffic.bytes_in);
        bar(&mut sent, HEIGHT, below);
        bar(&mut got, HEIGHT - below, scale(traffic.bytes_out));
    }
    (sent, got)
}

/// The newest row comes first.
fn table(unit: &str, rows: &[(String, Traffic)]) -> Markup {
    html! {
        table {
            thead { tr { th { (unit) } th { "From visitors" } th { "To visitors" } } }
            tbody { @for (from, traffic) in rows.iter().rev() { tr {
                td { (from) }
                td { (bytes::amount(traffic.bytes_in)) }
                td { (bytes::amount(traffic.bytes_out)) }
            } } }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    /// The figures of a tunnel's page, when each minute and each day has carried something.
    #[test]
    fn plots_with_every_bar_are_small() {
        let traffic = Traffic { bytes_in: 123_456_789, bytes_out: 987_654_321 };
        let at = |minute| DateTime::UNIX_EPOCH + TimeDelta::minutes(minute);
        let hour: Vec<_> = (0..60).map(|minute| (at(minute), traffic)).collect();
        let month: Vec<_> = (0..30).map(|day| (at(day * 24 * 60).date_naive(), traffic)).collect();
        let size = minutes(&hour).0.len() + days(&month).0.len();
        assert!(size < 11_000, "{size} bytes");
    }

    #[test]
    fn bars_of_a_unit_stand_on_each_other_and_what_is_empty_has_none() {
        let row = |bytes_in, bytes_out| (String::new(), Traffic { bytes_in, bytes_out });
        let (sent, got) = bars(&[row(1, 3), row(0, 0), row(2, 0)], 4);
        assert_eq!(sent, "M0 120.0v-30.0h192.0v30.0zM480 120.0v-60.0h192.0v60.0z");
        assert_eq!(got, "M0 90.0v-90.0h192.0v90.0z");
    }
}
