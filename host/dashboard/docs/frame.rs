//! The frame of the documentation's pages: the same as the dashboard's, with the book's pages at the side.

use maud::{Markup, html};

use super::book::{PAGES, Page};
use crate::view::page::plain;

/// Pages beside those of the book.
const REFERENCE: [(&str, &str); 4] = [
    ("/docs", "Reference of the API"),
    ("/docs/errors", "Error codes"),
    ("/docs/policies", "Policies"),
    ("/docs/book", "Overview"),
];
/// Parts of the book, by their folder.
const PARTS: [(&str, &str); 4] = [
    ("docs/operate/", "Operate"),
    ("docs/api/", "API"),
    ("docs/develop/", "Develop"),
    ("docs/develop/decisions/", "Decisions"),
];

pub(crate) fn page(title: &str, content: Markup, path: &str) -> Markup {
    searched(title, content, path, "")
}

/// A page, with what is searched for in the field of its head.
pub(crate) fn searched(title: &str, content: Markup, path: &str, query: &str) -> Markup {
    plain(
        title,
        &html! {
            header {
                a.brand href="/" { "culvert" }
                nav aria-label="Documentation" {
                    a href="/docs/book" { "Documentation" }
                    a href="/docs" { "Reference" }
                    a href="/docs/errors" { "Errors" }
                    a href="/docs/policies" { "Policies" }
                    a.to-pages href="#pages" { "All pages" }
                }
                form.search.own method="get" action="/docs/search" role="search" {
                    input type="search" name="q" value=(query) aria-label="Search the documentation" placeholder="Search" maxlength="100";
                    button type="submit" { "Search" }
                }
            }
            div.columns.of-book {
                main #content .book { (content) }
                (side(path))
            }
        },
    )
}

fn side(path: &str) -> Markup {
    let link = |to: &str, title: &str| html! { a href=(to) aria-current=[(to == path).then_some("page")] { (title) } };
    html! {
        nav.side #pages aria-label="Pages" {
            @for (to, title) in REFERENCE { (link(to, title)) }
            @for page in PAGES.iter().filter(|page| is_of(page, "docs/")) { (link(&format!("/{}", page.path()), page.title())) }
            @for (folder, part) in PARTS {
                details open[PAGES.iter().any(|page| is_of(page, folder) && format!("/{}", page.path()) == path)] {
                    summary { (part) }
                    @for page in PAGES.iter().filter(|page| is_of(page, folder)) { (link(&format!("/{}", page.path()), page.title())) }
                }
            }
        }
    }
}

/// Whether a page is in a folder itself, and not in one below it. What stands outside of the book's folder is in its first
/// one; the overview has a link of its own.
fn is_of(page: &Page, folder: &str) -> bool {
    let path = page.path();
    path != "docs/book" && path.strip_prefix(folder).is_some_and(|rest| !rest.contains('/'))
}
