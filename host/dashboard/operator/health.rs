//! How the installation is: what waits, what fails, and the setting that mends it.

use std::time::Duration;

use culvert_domain::error::Result;
use culvert_service::installation::Health;
use maud::{Markup, html};

use super::operator;
use crate::view::{badge, page, time};
use crate::visit::Visit;

/// How long the database may take to answer.
const SLOW: Duration = Duration::from_millis(100);
/// A country database is made anew every week or month.
const OLD_DAYS: i64 = 90;

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let operator = operator(visit)?;
    let health = visit.service().health(&operator).await?;
    let records = visit.service().policy_status(&operator).records;
    let (dashboard, refusals) = (&visit.dashboard, visit.dashboard.refusals.lost());
    let lost = records.map_or(0, |records| records.lost);
    let content = html! {
        p { "As this host sees it, now. " a href=(format!("{}/operate/metrics", dashboard.docs_url)) { "Metrics" } " tell the same over time." }
        @for warning in &dashboard.warnings { p.notice.warn { (warning) } }
        div.scroll role="region" aria-label="Health" tabindex="0" { table {
            thead { tr { th { "What" } th { "State" } th { "Now" } th { "What to do" } } }
            tbody {
                (row("Database", health.database < SLOW, &format!("answers in {} ms", health.database.as_micros() as f64 / 1000.0),
                    "Look at the load of its machine, and at database_url."))
                (row("Agents", true, &format!("{} connected", dashboard.agents.count()), ""))
                (row("Pages that are open", true, &format!("{} live", dashboard.streams.count()), ""))
                (deliveries(&health))
                (mails(visit, &health))
                (row("Notes of refusals", refusals == 0, &format!("{refusals} lost since the start"), "They came faster than 240 a minute of one scope, or than the database takes them."))
                (row("Records of decisions", lost == 0, &format!("{lost} lost since the start"), "The disk of policies.decisions is too slow, or full."))
                (countries(visit))
            }
        } }
        (certificates(&health))
    };
    Ok(page::signed_in(visit, "Health", &content))
}

fn row(what: &str, is_well: bool, now: &str, advice: &str) -> Markup {
    html! {
        tr {
            td { (what) }
            td { @if is_well { (badge::good("well")) } @else { (badge::warning("look at it")) } }
            td.long { (now) }
            td.long { @if !is_well { (advice) } }
        }
    }
}

fn deliveries(health: &Health) -> Markup {
    let (endpoints, since) = health.overdue_endpoints;
    html! {
        tr {
            td { "Webhook endpoints" }
            td { @if endpoints < 100 { (badge::good("well")) } @else { (badge::warning("look at it")) } }
            td.long { (endpoints) " have something due" @if let Some(since) = since { ", since " (time::at(since)) } }
            td.long { @if endpoints >= 100 { "Their receivers are slow, or the host cannot reach the network." } }
        }
    }
}

fn mails(visit: &Visit, health: &Health) -> Markup {
    if !visit.dashboard.mails.are_sent() {
        return row("Mail", true, "none is sent: mail.smtp_url is not set, so links are copied and sent by hand", "");
    }
    let is = format!("{} wait to be sent", health.overdue_mails);
    row("Mail", health.overdue_mails < 10, &is, "The server of mail.smtp_url does not take them; the log says why.")
}

fn countries(visit: &Visit) -> Markup {
    let database = &visit.dashboard.countries;
    let now = visit.service().clock().now();
    match database.built_at() {
        Some(built) if (now - built).num_days() > OLD_DAYS => {
            let is = format!("of {}", built.format("%Y-%m-%d"));
            row("Country database", false, &is, "Put a newer file in the place of geoip.database; it is read at once.")
        }
        Some(built) => row("Country database", true, &format!("of {}", built.format("%Y-%m-%d")), ""),
        None => row(
            "Country database",
            true,
            "none: geoip.database is not set, so rules by country are kept and not enforced",
            "",
        ),
    }
}

fn certificates(health: &Health) -> Markup {
    html! {
        @if !health.failing_certificates.is_empty() {
            section {
                h2 { "Names without a certificate" }
                ul { @for (name, error) in &health.failing_certificates { li { code { (name) } ": " (error) } } }
                p { "They are tried again by themselves. See " code { "certificates" } " and " code { "acme" } " in the settings." }
            }
        }
    }
}
