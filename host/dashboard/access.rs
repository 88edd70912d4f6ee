//! Who may visit a tunnel: addresses and countries, each as two lists.

use std::net::IpAddr;

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::read;
use culvert_api_types::requests::{ReplaceFirewall as FirewallBody, ReplaceGeoip};
use culvert_domain::access::{AccessRules, CountryAction, CountryRule, FirewallRule, RuleType, Verdict};
use culvert_domain::action::Action;
use culvert_domain::error::{Error, Result};
use culvert_domain::facts::Resource;
use culvert_domain::string_enum::StringEnum;
use culvert_service::access::{CountryRules, ReplaceCountryRules, ReplaceFirewall};
use maud::{Markup, html};

use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::view::{field, page, refusal};
use crate::visit::{Posted, Visit};

/// The lists of addresses in the order of their rules, each with its field.
const ADDRESSES: [(&str, RuleType); 2] = [("refuse", RuleType::Blacklist), ("let_in", RuleType::Whitelist)];
const COUNTRIES: [(&str, CountryAction); 2] =
    [("refuse_countries", CountryAction::Block), ("let_in_countries", CountryAction::Allow)];

const PAGE: &str = "{s}/tunnels/{id}/access";
/// What the page has forms for.
const ACTIONS: [Action; 2] = [Action::TunnelsReplaceFirewall, Action::TunnelsReplaceGeoip];

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let tunnel = visit.service().tunnel(&visit.caller, visit.id()?).await?;
    let firewall = visit.service().firewall(&visit.caller, tunnel.id).await?.rules;
    let CountryRules { rules, .. } = visit.service().country_rules(&visit.caller, tunnel.id).await?;
    let path = |rest: &str| visit.in_scope(&format!("/tunnels/{}{rest}", tunnel.id));
    let addresses = |of: RuleType| {
        firewall.iter().filter(move |rule| rule.rule_type == of).map(line).collect::<Vec<_>>().join("\n")
    };
    let countries = |of: CountryAction| {
        rules
            .iter()
            .filter(move |rule| rule.action == of)
            .map(|rule| rule.country.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let may = visit.preview(Resource::Tunnel(tunnel.id), &ACTIONS).await?;
    let content = html! {
        p { a href=(path("")) { (tunnel.spec.name) } ": " (sentence(&firewall, &rules)) }
        @if !tunnel.node.is_online() {
            p.notice.warn { "The host of the node is not heard of, so the node may go by earlier rules." }
        }
        section {
            h2 { "Addresses" }
            (refusal::form_unless(may.refusal(Action::TunnelsReplaceFirewall), html! { form method="post" action=(path("/access/addresses")) {
                (field::hidden(KEY, &visit.form_key(&path("/access/addresses"))))
                (lines(visit, "refuse", "Refuse", &addresses(RuleType::Blacklist)))
                (lines(visit, "let_in", "Let in", &addresses(RuleType::Whitelist)))
                p.hint { "One address or range a line, such as 203.0.113.0/24, and what it is, if you like. Whoever is refused \
                    is refused; if anybody is let in, nobody else is." }
                button type="submit" { "Save addresses" }
            } }))
        }
        section {
            h2 { "Countries" }
            @if !tunnel.node.knows_countries { p.notice.warn { "The node knows no countries, so these rules are kept and not enforced." } }
            (refusal::form_unless(may.refusal(Action::TunnelsReplaceGeoip), html! { form method="post" action=(path("/access/countries")) {
                (field::hidden(KEY, &visit.form_key(&path("/access/countries"))))
                (codes(visit, "refuse_countries", "Refuse", &countries(CountryAction::Block)))
                (codes(visit, "let_in_countries", "Let in", &countries(CountryAction::Allow)))
                button type="submit" { "Save countries" }
            } }))
        }
        section { h2 { "Try an address" } (try_address(visit, &path("/access"), firewall, rules)) }
    };
    Ok(page::signed_in(visit, "Who may visit", &content))
}

/// The rules in one sentence.
fn sentence(firewall: &[FirewallRule], countries: &[CountryRule]) -> String {
    let some = |of: RuleType| firewall.iter().any(|rule| rule.rule_type == of);
    let country = |of: CountryAction| countries.iter().any(|rule| rule.action == of);
    let mut text = String::from(match (some(RuleType::Whitelist), country(CountryAction::Allow)) {
        (false, false) => "everybody may visit",
        (true, false) => "the addresses that are let in may visit",
        (false, true) => "the countries that are let in may visit",
        (true, true) => "the addresses that are let in may visit, from the countries that are let in",
    });
    if some(RuleType::Blacklist) || country(CountryAction::Block) {
        text += ", but for those who are refused";
    }
    text + "."
}

/// What the node would do with a visitor from an address.
fn try_address(visit: &Visit, path: &str, firewall: Vec<FirewallRule>, countries: Vec<CountryRule>) -> Markup {
    let typed = visit.sought();
    let firewall = firewall.into_iter().map(|rule| (rule.rule_type, rule.range)).collect();
    let rules = AccessRules { firewall, countries };
    let tried =
        typed.parse::<IpAddr>().map(|address| rules.verdict(address, |address| visit.dashboard.countries.of(address)));
    let fault = (!typed.is_empty() && tried.is_err()).then_some("must be an IP address, such as 203.0.113.7");
    html! {
        form method="get" action=(path) {
            (field::text(&field::Field { name: "find", label: "Address of a visitor", value: typed, fault, required: true,
                ..field::Field::default() }))
            button type="submit" { "Try" }
        }
        @if let Ok(verdict) = tried { (outcome(typed, verdict)) }
    }
}

fn outcome(address: &str, verdict: Verdict) -> Markup {
    let because = match verdict {
        Verdict::Blacklisted(range) => format!("because {range} is refused"),
        Verdict::Whitelisted(range) => format!("because {range} is let in"),
        Verdict::NotWhitelisted => "because addresses are let in, and this is none of them".into(),
        Verdict::CountryBlocked(country) => format!("because it is in {country}, which is refused"),
        Verdict::CountryAllowed(country) => format!("because it is in {country}, which is let in"),
        Verdict::CountryNotAllowed(Some(country)) => format!("because it is in {country}, which is not let in"),
        Verdict::CountryNotAllowed(None) => "because countries are let in, and its country is not known".into(),
        Verdict::NoRule => "because no rule is about it".into(),
    };
    let (class, may) = if verdict.admits() { ("ok", "may visit") } else { ("bad", "may not visit") };
    html! { p.notice.(class) role="status" { code { (address) } " " strong { (may) } ", " (because) "." } }
}

/// A rule as a line: the range, and what it is.
fn line(rule: &FirewallRule) -> String {
    let range = rule.range.to_string();
    rule.description.as_ref().map_or_else(|| range.clone(), |about| format!("{range} {about}"))
}

/// The lines of a form's lists, in the order of their rules.
fn typed<'f, T: Copy>(
    form: &'f Form,
    lists: &'f [(&'static str, T)],
    separator: fn(char) -> bool,
) -> Vec<(&'static str, T, &'f str)> {
    let of = |(name, kind): &'f (&'static str, T)| {
        form.get(name).split(separator).map(str::trim).filter(|text| !text.is_empty()).map(|text| (*name, *kind, text))
    };
    lists.iter().flat_map(of).collect()
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r')
}

fn is_between_codes(c: char) -> bool {
    c.is_whitespace() || c == ','
}

/// An error of which the faults name the lists of a form, and the text that is wrong, in place of the rules of a body. What is
/// about all rules is told at the first list.
fn at_lists<T>(mut error: Error, lists: &[(&'static str, T)], typed: &[(&'static str, T, &str)]) -> Error {
    for fault in &mut error.faults {
        let number = fault.field.strip_prefix("rules[").and_then(|rest| rest.split_once(']'));
        let rule = number.and_then(|(number, _)| typed.get(number.parse::<usize>().ok()?));
        if let Some((list, _, text)) = rule {
            (fault.field, fault.message) = (String::from(*list), format!("“{text}” {}", fault.message));
        } else if let Some((list, _)) = lists.first() {
            fault.field = String::from(*list);
        }
    }
    error
}

/// What is wrong with a list.
fn faults(visit: &Visit, list: &str) -> Option<String> {
    let faults = &visit.refused.as_ref()?.error.faults;
    let of_list: Vec<&str> =
        faults.iter().filter(|fault| fault.field == list).map(|fault| fault.message.as_str()).collect();
    (!of_list.is_empty()).then(|| of_list.join("; "))
}

fn lines(visit: &Visit, name: &str, label: &str, value: &str) -> Markup {
    let fault = faults(visit, name);
    field::lines(name, label, visit.typed(name).unwrap_or(value), fault.as_deref())
}

fn codes(visit: &Visit, name: &str, label: &str, value: &str) -> Markup {
    let fault = faults(visit, name);
    field::text(&field::Field {
        name,
        label,
        value: visit.typed(name).unwrap_or(value),
        fault: fault.as_deref(),
        hint: Some("Codes of two letters (ISO 3166-1), such as DE AT CH."),
        ..field::Field::default()
    })
}

pub(crate) async fn save_addresses(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let rule = |(_, kind, text): (&str, RuleType, &str)| {
        let (range, about) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let mut fields = vec![text_field("rule_type", kind.as_str()), text_field("ip_cidr", range)];
        if !about.trim().is_empty() {
            fields.push(text_field("description", about.trim()));
        }
        JsonTree::Object(fields)
    };
    let typed = typed(&posted.form, &ADDRESSES, is_line_end);
    let body = rules(typed.iter().copied().map(rule).collect());
    let change = |rules| ReplaceFirewall { tunnel_id, rules };
    let (action, subject) = (Action::TunnelsReplaceFirewall, Resource::Tunnel(tunnel_id));
    let saved = visit.change_with(&posted, action, subject, read::<FirewallBody>(Some(&body)), change).await;
    saved.map_err(|error| at_lists(error, &ADDRESSES, &typed))?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn save_countries(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let rule = |(_, action, code): (&str, CountryAction, &str)| {
        JsonTree::Object(vec![text_field("country_code", code), text_field("action", action.as_str())])
    };
    let typed = typed(&posted.form, &COUNTRIES, is_between_codes);
    let body = rules(typed.iter().copied().map(rule).collect());
    let change = |rules| ReplaceCountryRules { tunnel_id, rules };
    let (action, subject) = (Action::TunnelsReplaceGeoip, Resource::Tunnel(tunnel_id));
    let saved = visit.change_with(&posted, action, subject, read::<ReplaceGeoip>(Some(&body)), change).await;
    saved.map_err(|error| at_lists(error, &COUNTRIES, &typed))?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

fn rules(rules: Vec<JsonTree>) -> JsonTree {
    JsonTree::Object(vec![("rules".into(), JsonTree::List(rules))])
}

fn text_field(name: &str, value: &str) -> (String, JsonTree) {
    (name.into(), JsonTree::Text(value.into()))
}
