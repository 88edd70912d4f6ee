//! The pages of `docs/`, embedded and served below `/docs`.
//!
//! Links between pages are rewritten to what the host serves; a link to another file of the repository becomes
//! plain text.

use std::collections::HashMap;

use maud::{Markup, PreEscaped};
use pulldown_cmark::{CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

/// A page: its path in the repository, and its text.
pub struct Page {
    source: &'static str,
    text: &'static str,
}

macro_rules! pages {
    ($($source:literal)*) => {
        &[$(Page { source: $source, text: include_str!(concat!("../../../", $source)) }),*]
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
    "docs/operate/alerts.md"
    "docs/operate/audit-log.md"
    "docs/operate/backup.md"
    "docs/operate/bounds.md"
    "docs/operate/cli.md"
    "docs/operate/dashboard.md"
    "docs/operate/fleet.md"
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
    "docs/develop/decisions/0033-mail-previews-and-documentation.md"
    "docs/develop/decisions/0034-other-providers.md"
    "docs/develop/decisions/0035-hosts-on-one-database.md"
    "docs/develop/decisions/0036-nodes-of-other-hosts.md"
    "docs/develop/decisions/0037-authority-of-nodes.md"
    "docs/develop/decisions/0038-policies-of-several-hosts.md"
    "docs/develop/decisions/0039-rolling-upgrades-and-roots-in-the-database.md"
    "docs/develop/decisions/0040-keys-of-several-hosts.md"
};

/// The pictures of the pages, by their names in `docs/pictures`. `tests/browser/pictures` makes them.
pub const PICTURES: &[(&str, &[u8])] = &[
    ("overview.webp", include_bytes!("../../../docs/pictures/overview.webp")),
    ("telephone.webp", include_bytes!("../../../docs/pictures/telephone.webp")),
    ("tunnel.webp", include_bytes!("../../../docs/pictures/tunnel.webp")),
    ("why-refused.webp", include_bytes!("../../../docs/pictures/why-refused.webp")),
];
/// Where they are, in the repository and on a host.
const PICTURE_FOLDER: &str = "docs/pictures/";

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

    /// What stands below each heading, as text.
    pub(crate) fn sections(&self) -> Vec<Section> {
        sections(self.text)
    }
}

/// A part of a page.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub heading: String,
    /// The heading's id.
    pub anchor: String,
    pub text: String,
}

pub(crate) fn sections(text: &str) -> Vec<Section> {
    let (mut sections, mut is_heading) = (Vec::<Section>::new(), false);
    let mut anchors = HashMap::new();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => {
                sections.push(Section::default());
                is_heading = true;
            }
            Event::End(TagEnd::Heading(_)) => {
                is_heading = false;
                if let Some(section) = sections.last_mut() {
                    section.anchor = unique(slug(&section.heading), &mut anchors);
                }
            }
            Event::Text(words) | Event::Code(words) => match sections.last_mut() {
                Some(section) if is_heading => section.heading += &words,
                Some(section) => section.text += &words,
                None => {}
            },
            Event::SoftBreak | Event::HardBreak | Event::End(_) => {
                if let Some(section) = sections.last_mut().filter(|_| !is_heading) {
                    section.text += " ";
                }
            }
            _ => {}
        }
    }
    sections
}

/// One sentence or a few of Markdown: text, code and emphasis. All else that stands in it becomes text.
pub(crate) fn inline(text: &str) -> Markup {
    let kept = |event: Event<'_>| match event {
        Event::Text(_) | Event::Code(_) | Event::SoftBreak => true,
        Event::Start(tag) => matches!(tag, Tag::Strong | Tag::Emphasis),
        Event::End(tag) => matches!(tag, TagEnd::Strong | TagEnd::Emphasis),
        _ => false,
    };
    let mut line = String::new();
    html::push_html(&mut line, Parser::new(text).filter(|event| kept(event.clone())));
    PreEscaped(line)
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
            Event::Start(Tag::Image { link_type, dest_url, title, id }) => {
                let dest_url = link(source, &dest_url).map_or(dest_url, CowStr::from);
                events.push(Event::Start(Tag::Image { link_type, dest_url, title, id }));
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
    // What can be scrolled must be reached by the keyboard (WCAG 2.2, 2.1.1).
    page.replace("<pre>", "<pre tabindex=\"0\">")
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
    let slug = unique(slug(&words.collect::<String>()), anchors);
    if let Event::Start(Tag::Heading { id, .. }) = &mut events[start] {
        *id = Some(CowStr::from(slug));
    }
}

/// A repeated anchor with its number.
fn unique(slug: String, anchors: &mut HashMap<String, usize>) -> String {
    let earlier = anchors.entry(slug.clone()).or_default();
    *earlier += 1;
    if *earlier == 1 { slug } else { format!("{slug}-{}", *earlier - 1) }
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
        picture if picture.starts_with(PICTURE_FOLDER) => picture.to_owned(),
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
    fn section_has_the_anchor_of_its_heading_and_the_text_below_it() {
        let found = sections("# A `b`\none *two*\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n# A b\nthree\n");
        let found: Vec<_> =
            found.iter().map(|one| (one.anchor.as_str(), one.text.split_whitespace().collect::<Vec<_>>())).collect();
        assert_eq!(found, [("a-b", vec!["one", "two", "x", "y", "1", "2"]), ("a-b-1", vec!["three"])]);
    }

    #[test]
    fn inline_text_keeps_code_and_no_markup_of_its_own() {
        assert_eq!(inline("Set `a` <b>now</b> & [so](javascript:x).").0, "Set <code>a</code> now &amp; so.");
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
