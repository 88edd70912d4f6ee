//! Search through the documentation. The index is made once, in memory; a library such as tantivy was weighed, and is far
//! more than these few hundred sections need.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use culvert_domain::error::Code;
use maud::{Markup, html};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, async_trait};
use serde_json::Value;

use super::book::{self, PAGES};
use super::reference::operations;
use super::rendered::Rendered;
use super::{errors, frame, schema};

/// Characters of a question, and words of it that count.
const QUESTION: usize = 100;
const WORDS: usize = 6;
/// Letters of a word, at least: what begins with one letter is nearly everything.
const SHORTEST: usize = 2;
const FOUND: usize = 20;
/// Characters that are shown of a section.
const EXCERPT: usize = 160;

/// A part of a page that can be found.
struct Section {
    page: String,
    heading: String,
    href: String,
    text: String,
}

/// How much a word says of a section: in its heading, or in its text.
const IN_HEADING: u32 = 8;
const IN_TEXT: u32 = 1;
/// A word that is the one asked for counts more than one that begins with it.
const WHOLE: u32 = 2;

/// Sections by the words that stand in them, each with how much the word says of the section.
pub(crate) struct Index {
    sections: Vec<Section>,
    words: BTreeMap<String, BTreeMap<usize, u32>>,
}

impl Index {
    pub(crate) fn of(openapi: &Value) -> Self {
        let sections: Vec<Section> = of_book().chain(of_reference(openapi)).chain(of_errors()).collect();
        let mut words = BTreeMap::<String, BTreeMap<usize, u32>>::new();
        for (place, section) in sections.iter().enumerate() {
            for (text, weight) in [(&section.heading, IN_HEADING), (&section.text, IN_TEXT)] {
                for word in words_of(text) {
                    let own = words.entry(word).or_default().entry(place).or_default();
                    *own = (*own).max(weight);
                }
            }
        }
        Self { sections, words }
    }

    /// The sections in which every word of the question stands or begins a word, the best first.
    fn find(&self, question: &str) -> Vec<&Section> {
        let mut wanted = words_of(question).filter(|word| word.chars().count() >= SHORTEST).take(WORDS);
        let Some(first) = wanted.next() else { return Vec::new() };
        let mut found = self.begun_with(&first);
        for word in wanted {
            let other = self.begun_with(&word);
            found = found.iter().filter_map(|(place, score)| Some((*place, score + other.get(place)?))).collect();
        }
        let mut found: Vec<(usize, u32)> = found.into_iter().collect();
        found.sort_by_key(|(place, score)| (Reverse(*score), *place));
        found.into_iter().take(FOUND).filter_map(|(place, _)| self.sections.get(place)).collect()
    }

    fn begun_with(&self, start: &str) -> BTreeMap<usize, u32> {
        let mut found = BTreeMap::new();
        let words = self.words.range(start.to_owned()..).take_while(|(word, _)| word.starts_with(start));
        for (word, places) in words {
            let factor = if word == start { WHOLE } else { 1 };
            for (place, weight) in places {
                let own: &mut u32 = found.entry(*place).or_default();
                *own = (*own).max(weight * factor);
            }
        }
        found
    }
}

fn of_book() -> impl Iterator<Item = Section> {
    let guide = ("Policies".to_owned(), "/docs/policies".to_owned(), book::sections(super::GUIDE));
    let pages = PAGES.iter().map(|page| (page.title().to_owned(), format!("/{}", page.path()), page.sections()));
    pages.chain([guide]).flat_map(|(page, path, sections)| {
        sections.into_iter().map(move |section| Section {
            page: page.clone(),
            heading: section.heading,
            href: format!("{path}#{}", section.anchor),
            text: section.text,
        })
    })
}

fn of_reference(openapi: &Value) -> impl Iterator<Item = Section> {
    operations(openapi).into_iter().map(|operation| Section {
        page: "Reference of the API".into(),
        heading: format!("{} {} – {}", operation.method, operation.path, operation.summary),
        href: format!("/docs#{}", operation.id),
        text: format!("{} {}", operation.id, schema::text(&operation.value["description"])),
    })
}

fn of_errors() -> impl Iterator<Item = Section> {
    let section = |anchor: &str, code: &str, text: String| Section {
        page: "Error codes".into(),
        heading: code.into(),
        href: format!("/docs/errors#{anchor}"),
        text,
    };
    let explained = |code: &Code| format!("{}. {}", code.title(), code.explanation());
    let own = Code::ALL.iter().map(move |code| section(code.as_str(), code.as_str(), explained(code)));
    let of_resources = errors::of_operations().chain(errors::of_deliveries());
    own.chain(of_resources.map(move |(anchor, code, text)| section(&anchor, code, text.into())))
}

/// Words in lower case. `tunnel_id` is one, and so are its parts.
fn words_of(text: &str) -> impl Iterator<Item = String> {
    let is_between = |c: char| !(c.is_alphanumeric() || c == '_');
    let whole = text.split(is_between).filter(|word| !word.is_empty());
    whole.flat_map(|word| {
        let parts = word.split('_').filter(move |part| !part.is_empty() && *part != word);
        std::iter::once(word).chain(parts).map(str::to_lowercase)
    })
}

pub(crate) type MakeIndex = Box<dyn FnOnce() -> Index + Send>;

/// The page that shows what was found.
#[derive(Clone)]
pub(crate) struct Search {
    /// Made for the first question.
    pub index: Arc<LazyLock<Index, MakeIndex>>,
    pub is_https: bool,
}

#[async_trait]
impl Handler for Search {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let question: String = req.query::<String>("q").unwrap_or_default().chars().take(QUESTION).collect();
        let found = self.index.find(&question);
        let content = html! {
            h1 { "Search" }
            div #found data-narrows { (results(question.trim(), &found)) }
        };
        let page = frame::searched("Search", content, "/docs/search", question.trim());
        Rendered::page(&page).answer(req, res, self.is_https);
    }
}

fn results(question: &str, found: &[&Section]) -> Markup {
    html! {
        p.muted role="status" {
            @if question.is_empty() { "Type a word, the begin of one, or several that are to stand in one section." }
            @else if found.is_empty() { "Nothing is found for “" (question) "”." }
            @else if found.len() == FOUND { "The " (FOUND) " best sections for “" (question) "”:" }
            @else { (found.len()) " found for “" (question) "”:" }
        }
        ul.found { @for section in found { li {
            a href=(section.href) { (section.heading) } " " span.muted { (section.page) }
            p { (excerpt(&section.text, question)) }
        } } }
    }
}

/// What stands around the first word of the question.
fn excerpt(text: &str, question: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let word = words_of(question).next().unwrap_or_default();
    // Letters are counted, because lower case may be longer in bytes.
    let place = text.to_lowercase().find(&word).map_or(0, |at| text.to_lowercase()[..at].chars().count());
    let begin = place.saturating_sub(EXCERPT / 3);
    let shown: String = text.chars().skip(begin).take(EXCERPT).collect();
    let before = if begin > 0 { "…" } else { "" };
    let after = if text.chars().count() > begin + EXCERPT { "…" } else { "" };
    format!("{before}{shown}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headings(question: &str) -> Vec<String> {
        let index = Index::of(&Value::Null);
        index.find(question).iter().map(|section| section.heading.clone()).collect()
    }

    #[test]
    fn code_is_found_by_its_name_and_by_a_part_of_it() {
        assert_eq!(headings("device_offline")[0], "device_offline");
        assert!(headings("devi off").contains(&"device_offline".to_owned()));
    }

    #[test]
    fn section_with_the_word_in_its_heading_comes_first() {
        assert!(headings("backup")[0].to_lowercase().contains("backup"), "{:?}", headings("backup"));
    }

    #[test]
    fn one_letter_and_unknown_words_find_nothing() {
        for question in ["", "a", "   ", "qqqqq", "backup qqqqq"] {
            assert!(headings(question).is_empty(), "{question}");
        }
        assert!(headings("the").len() <= FOUND);
    }

    #[test]
    fn excerpt_is_around_the_word_whatever_the_letters() {
        let text = format!("{} İstanbul needle {}", "é".repeat(300), "x".repeat(300));
        let shown = excerpt(&text, "needle");
        assert!(shown.contains("needle") && shown.chars().count() <= EXCERPT + 2, "{shown}");
    }
}
