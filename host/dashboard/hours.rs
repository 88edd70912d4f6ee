//! What a scope or a tunnel has carried in each hour of a day.

use chrono::NaiveDate;
use culvert_domain::error::Result;
use culvert_service::usage::HourlyUsage;
use maud::{Markup, html};
use uuid::Uuid;

use crate::view::{field, plot};
use crate::visit::Visit;

/// The hours of the day that the page's address names, or the last 24.
pub(crate) async fn section(visit: &Visit, tunnel_id: Option<Uuid>) -> Result<Markup> {
    let sought = visit.sought();
    let asked = sought.parse::<NaiveDate>().ok();
    let HourlyUsage { day, first_day, hours } = visit.service().hourly_usage(&visit.caller, tunnel_id, asked).await?;
    let fault = format!("must be a date from {first_day} to today (UTC), such as {first_day}");
    let fault = (!sought.is_empty() && day.is_none()).then_some(fault.as_str());
    Ok(html! {
        section {
            h2 { @match day { Some(day) => { "By the hour on " (day) } None => "The last 24 hours" } }
            (plot::hours(&hours))
            form method="get" action=(visit.path) {
                (field::text(&field::Field { name: "find", label: "Another day", kind: "date", value: sought, fault, required: true,
                    ..field::Field::default() }))
                button type="submit" { "Show" }
            }
        }
    })
}
