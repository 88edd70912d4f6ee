//! The documentation in `docs/`, embedded and served below `/docs`.
//!
//! Links between pages are rewritten to what the host serves; a link to another file of the repository becomes
//! plain text.

use std::collections::HashMap;

use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

/// A page: its path in the repository, and its text.
pub struct Page {
    source: &'static str,
    text: &'static str,
}

macro_rules! pages {
    ($($source:literal)*) => {
        &[$(Page { source: $source, text: include_str!(concat!("../../", $source)) }),*]
    };
}

pub const PAGES: &[Page] = pages! {
    "CHANGELOG.md"
    "CONTRIBUTING.md"
    "SECURITY.md"
    "docs/README.md"
    "docs/api/events.md"
    "docs/api/idempotency.md"
    "docs/api/overview.md"
    "docs/api/pagination.md"
    "docs/api/rate-limits.md"
    "docs/api/versioning.md"
    "docs/develop/add-a-column.md"
    "docs/develop/add-a-policy-rule.md"
    "docs/develop/add-an-endpoint.md"
    "docs/develop/add-an-event.md"
    "docs/develop/architecture.md"
    "docs/develop/glossary.md"
    "docs/develop/releasing.md"
    "docs/develop/testing.md"
    "docs/getting-started.md"
    "docs/operate/audit-log.md"
    "docs/operate/backup.md"
    "docs/operate/bounds.md"
    "docs/operate/cli.md"
    "docs/operate/dashboard.md"
    "docs/operate/http-tunnels.md"
    "docs/operate/install.md"
    "docs/operate/metrics.md"
    "docs/operate/one-command.md"
    "docs/operate/postgresql.md"
    "docs/operate/remote-control.md"
    "docs/operate/reverse-proxy.md"
    "docs/operate/settings.md"
    "docs/operate/upgrade.md"
    "docs/develop/decisions/0001-order-of-checks.md"
    "docs/develop/decisions/0002-records-and-units.md"
    "docs/develop/decisions/0003-operations.md"
    "docs/develop/decisions/0004-consent-and-remote-control.md"
    "docs/develop/decisions/0005-teams-and-roles.md"
    "docs/develop/decisions/0006-plans-and-entitlements.md"
    "docs/develop/decisions/0007-validation.md"
    "docs/develop/decisions/0008-idempotency.md"
    "docs/develop/decisions/0009-pages.md"
    "docs/develop/decisions/0010-keys-and-rate-limits.md"
    "docs/develop/decisions/0011-events-and-webhooks.md"
    "docs/develop/decisions/0012-error-codes.md"
    "docs/develop/decisions/0013-api-versioning.md"
    "docs/develop/decisions/0014-visitors-access.md"
    "docs/develop/decisions/0015-one-sql-text-on-two-engines.md"
    "docs/develop/decisions/0016-policies-as-webassembly-components.md"
    "docs/develop/decisions/0017-leases-epochs-and-fencing.md"
    "docs/develop/decisions/0018-time-and-randomness.md"
    "docs/develop/decisions/0019-crates-and-dependencies.md"
    "docs/develop/decisions/0020-node-frames.md"
    "docs/develop/decisions/0021-permits-and-the-second-check.md"
    "docs/develop/decisions/0022-data-connections.md"
    "docs/develop/decisions/0023-http-tunnels.md"
    "docs/develop/decisions/0024-certificates.md"
    "docs/develop/decisions/0025-commands-at-a-device.md"
    "docs/develop/decisions/0026-quic.md"
    "docs/develop/decisions/0027-udp.md"
    "docs/develop/decisions/0028-local-services.md"
    "docs/develop/decisions/0029-cost.md"
    "docs/develop/decisions/0030-sign-ins.md"
    "docs/develop/decisions/0031-teams-operators-and-refusals.md"
    "docs/develop/decisions/0032-audit-log-and-live-pages.md"
};

/// The guide of policies, which has been served before there were other pages.
const POLICIES: &str = "policies/README.md";
/// Served by the host from its own codes and those of the loaded policies.
const ERRORS: &str = "docs/api/errors.md";

impl Page {
    /// Where the host serves it.
    pub fn path(&self) -> String {
        let source = self.source.strip_suffix(".md").unwrap_or(self.source);
        match source {
            "docs/README" => "docs/book".into(),
            inside if inside.starts_with("docs/") => inside.into(),
            root => format!("docs/{}", root.to_lowercase()),
        }
    }

    /// The text of the first heading.
    pub fn title(&self) -> &'static str {
        self.text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("Culvert")
    }

    pub fn render(&self) -> String {
        render(self.source, self.text)
    }
}

/// Markdown of a file of the repository as HTML.
pub fn render(source: &str, text: &str) -> String {
    let mut open_links = Vec::new();
    let mut anchors = HashMap::new();
    let mut events: Vec<Event<'_>> = Vec::new();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                let target = link(source, &dest_url);
                open_links.push(target.is_some());
                if let Some(target) = target {
                    events.push(Event::Start(Tag::Link { link_type, dest_url: target.into(), title, id }));
                }
            }
            Event::End(TagEnd::Link) => {
                if open_links.pop() == Some(true) {
                    events.push(Event::End(TagEnd::Link));
                }
            }
            Event::End(TagEnd::Heading(level)) => {
                name_heading(&mut events, level, &mut anchors);
                events.push(Event::End(TagEnd::Heading(level)));
            }
            other => events.push(other),
        }
    }
    let mut page = String::new();
    html::push_html(&mut page, events.into_iter());
    page
}

/// Gives the heading that ends here an id, so that links can lead to it. A repeated heading gets a number, as
/// repository hosts give it.
fn name_heading(events: &mut [Event<'_>], level: HeadingLevel, anchors: &mut HashMap<String, usize>) {
    let begins = |event: &Event<'_>| matches!(event, Event::Start(Tag::Heading { level: own, .. }) if *own == level);
    let Some(start) = events.iter().rposition(begins) else { return };
    let words = events[start..].iter().filter_map(|event| match event {
        Event::Text(text) | Event::Code(text) => Some(text.as_ref()),
        _ => None,
    });
    let mut slug = slug(&words.collect::<String>());
    let earlier = anchors.entry(slug.clone()).or_default();
    if *earlier > 0 {
        slug = format!("{slug}-{earlier}");
    }
    *earlier += 1;
    if let Event::Start(Tag::Heading { id, .. }) = &mut events[start] {
        *id = Some(CowStr::from(slug));
    }
}

/// A heading's anchor, as repository hosts make it: lower case, spaces as hyphens, no other punctuation.
fn slug(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .collect::<String>();
    kept.replace(' ', "-")
}

/// What a link of a page leads to; none, where the host does not serve it.
fn link(source: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with('#') || target.starts_with("mailto:") {
        return Some(target.into());
    }
    let (file, fragment) = match target.split_once('#') {
        Some((file, fragment)) => (file, format!("#{fragment}")),
        None => (target, String::new()),
    };
    if file.starts_with('/') {
        return Some(target.into());
    }
    let file = resolve(source, file);
    let path = match file.as_str() {
        POLICIES => "docs/policies".into(),
        ERRORS => "docs/errors".into(),
        other => PAGES.iter().find(|page| page.source == other)?.path(),
    };
    Some(format!("/{path}{fragment}"))
}

/// A relative path of a link, from the root of the repository.
fn resolve(source: &str, link: &str) -> String {
    let mut parts: Vec<&str> = source.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_links_lead_to_served_pages() {
        let page = |target: &str| link("docs/operate/install.md", target);
        assert_eq!(page("backup.md#keys").as_deref(), Some("/docs/operate/backup#keys"));
        assert_eq!(page("../README.md").as_deref(), Some("/docs/book"));
        assert_eq!(page("../../policies/README.md").as_deref(), Some("/docs/policies"));
        assert_eq!(page("../api/errors.md").as_deref(), Some("/docs/errors"));
        assert_eq!(page("../../CHANGELOG.md").as_deref(), Some("/docs/changelog"));
        assert_eq!(page("../../LICENSE"), None);
        assert_eq!(page("https://example.com/").as_deref(), Some("https://example.com/"));
    }

    #[test]
    fn heading_anchor_is_lower_case_with_hyphens() {
        assert_eq!(
            render("docs/README.md", "## Keys & `reseal`"),
            "<h2 id=\"keys--reseal\">Keys &amp; <code>reseal</code></h2>\n"
        );
        assert!(render("docs/README.md", "# A\n# A\n").contains("<h1 id=\"a-1\">"));
    }
}
