//! Every component in every state, to be looked at while one works on them: in builds for development alone.

use chrono::{DateTime, TimeDelta, Utc};
use culvert_domain::custom_domain::CustomDomainStatus;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::operation::OperationStatus;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::tunnel::TunnelStatus;
use culvert_domain::usage::Traffic;
use culvert_domain::webhook::{AttemptStatus, WebhookStatus};
use maud::{Markup, html};

use crate::ROOT;
use crate::view::{advice, badge, bytes, field, list, page, plot, refusal, secret, time};
use crate::visit::Visit;

/// A name of the greatest length without a place to break.
const LONG: &str =
    "WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW";

pub(crate) fn show(visit: &Visit) -> Result<Markup> {
    let content = html! {
        section { h2 { "Badges" } (badges()) }
        section { h2 { "Notices" } (notices(visit)) }
        section { h2 { "Fields" } (fields()) }
        section { h2 { "Buttons" } (buttons(visit)) }
        section { h2 { "Plots" } (plots(visit.service().clock().now())) }
        section { h2 { "Lists" } (table(visit)) }
        (secret::shown_once("A secret", "whsec_0000000000000000000000000000000000000000000", "It is shown this once."))
    };
    Ok(page::signed_in(visit, "Gallery", &content))
}

fn badges() -> Markup {
    html! {
        p { (badge::plain("plain")) " " (badge::good("good")) " " (badge::warning("warning")) " " (badge::bad("bad")) " "
            (badge::online(true)) " " (badge::online(false)) }
        p { @for status in TunnelStatus::ALL { (badge::tunnel(*status)) " " } }
        p { @for status in OperationStatus::ALL { (badge::operation(*status)) " " } }
        p { @for status in WebhookStatus::ALL { (badge::webhook(*status)) " " } }
        p { @for status in AttemptStatus::ALL { (badge::attempt(*status)) " " } }
        p { @for status in CustomDomainStatus::ALL { (badge::custom_domain(*status)) " " } }
    }
}

fn notices(visit: &Visit) -> Markup {
    let faults = vec![Fault::new("gallery-fault", "must be between 1 and 65535"), Fault::new("gallery-long", LONG)];
    html! {
        p.notice { "Something is under way." }
        p.notice.ok { "Something is as it should be." }
        p.notice.warn { "Something should be looked at." }
        (refusal::error(&Error::of(Code::DeviceOffline)))
        (refusal::error(&Error::invalid(faults)))
        (refusal::error(&Error::of(Code::RateLimited).after(std::time::Duration::from_secs(7))))
        (advice::about(&Code::DeviceOffline, &visit.dashboard.docs_url))
        p.empty { "There is nothing here yet." }
    }
}

fn fields() -> Markup {
    let text = |name, label, fault| field::Field { name, label, fault, ..field::Field::default() };
    let options = || [("eu", "eu".to_owned()), ("us", LONG.to_owned())].into_iter();
    let boxes = || [("one".to_owned(), "one", true), ("two".to_owned(), LONG, false)].into_iter();
    html! { form method="get" action=(format!("{ROOT}/gallery")) {
        (field::text(&field::Field { hint: Some("What is allowed."), value: "typed", ..text("gallery-text", "A line", None) }))
        (field::text(&field::Field { value: LONG, ..text("gallery-fault", "A line that is wrong", Some("must be between 1 and 65535")) }))
        (field::text(&field::Field { kind: "password", ..text("gallery-password", "A password", None) }))
        (field::text(&field::Field { kind: "date", ..text("gallery-date", "A day", None) }))
        (field::lines("gallery-lines", "Lines", "203.0.113.0/24\n2001:db8::/32", None))
        (field::lines("gallery-wrong-lines", "Lines that are wrong", LONG, Some("the first line is no address")))
        (field::select("gallery-choice", "A choice", "us", None, options()))
        (field::select("gallery-long", "A choice that is wrong", "eu", Some("must be another"), options()))
        (field::boxes("gallery-boxes", "Several", None, boxes()))
        (field::boxes("gallery-wrong-boxes", "Several that are wrong", Some("must be at least two"), boxes()))
        button type="submit" { "Send" }
    } }
}

fn buttons(visit: &Visit) -> Markup {
    let path = format!("{ROOT}/account/sign-ins/end-others");
    let refused = Error::of(Code::DeviceOffline);
    html! {
        div.row {
            a.button href=(format!("{ROOT}/gallery")) { "A link" }
            (field::button(visit, &path, "A form"))
            (refusal::unless(Some(&refused), "Start", html! {}))
        }
        (refusal::form_unless(Some(&refused), html! { button type="button" { "A form without use" } }))
        ul.parts { li { a href="#content" { "A part" } } li { a href="#content" { "Another part" } } }
    }
}

fn plots(now: DateTime<Utc>) -> Markup {
    let of = |size: u64| Traffic { bytes_in: size * size, bytes_out: size * size * size };
    let hours: Vec<_> = (0..24).map(|hour| (now - TimeDelta::hours(24 - hour), of(hour.unsigned_abs()))).collect();
    let days: Vec<_> = hours.iter().map(|(at, _)| (at.date_naive(), Traffic::default())).collect();
    html! {
        (plot::hours(&hours))
        (plot::days(&days))
        p { (bytes::traffic(of(1000))) " " meter min="0" max="10" value="7" aria-label="A meter" {} }
    }
}

fn table(visit: &Visit) -> Markup {
    html! {
        div.scroll role="region" aria-label="Rows" tabindex="0" { table {
            thead { tr { th { "Name" } th { "State" } th { "When" } th { "Text" } th {} } }
            tbody { @for name in ["web", LONG, "\u{202e}turned round"] { tr {
                td.long { a href=(format!("{ROOT}/gallery")) { (name) } }
                td { (badge::good("running")) }
                td { (time::at(visit.service().clock().now())) }
                td.long { (name) div.muted { "a second line" } }
                td { button type="button" { "Stop" } }
            } } }
        } }
        (list::more(Some("?after=x")))
        dl { dt { "A term" } dd { (LONG) } dt { "Another" } dd { code { "127.0.0.1:3000" } } }
        (secret::command("culvert-agent enroll --code ABCD-EFGH --server https://tunnels.example.org/v2"))
    }
}
