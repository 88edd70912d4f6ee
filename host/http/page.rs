//! The query parameters `limit` and `cursor` of lists; see `docs/develop/decisions/0009-pages.md`.

use culvert_domain::error::{Error, Fault, Result};
use culvert_domain::page::{CursorPosition, Page};

pub(crate) const DEFAULT_LIMIT: u32 = 25;
pub(crate) const MAX_LIMIT: u32 = 100;

/// The page that a query asks for. `open` returns the position of a cursor of this list.
pub(crate) fn read(query: &[(String, String)], open: impl Fn(&str) -> Option<CursorPosition>) -> Result<Page> {
    let limit = match single(query, "limit") {
        Err(fault) => Err(fault),
        Ok(None) => Ok(DEFAULT_LIMIT),
        Ok(Some(limit)) => limit
            .parse()
            .ok()
            .filter(|limit| (1..=MAX_LIMIT).contains(limit))
            .ok_or_else(|| Fault::new("limit", format!("must be an integer between 1 and {MAX_LIMIT}"))),
    };
    let after = match single(query, "cursor") {
        Err(fault) => Err(fault),
        Ok(None) => Ok(CursorPosition::START),
        Ok(Some(cursor)) => {
            open(cursor).ok_or_else(|| Fault::new("cursor", "must be a `meta.next_cursor` of this list, unchanged"))
        }
    };
    match (limit, after) {
        (Ok(limit), Ok(after)) => Ok(Page { limit, after }),
        (limit, after) => Err(Error::invalid(limit.err().into_iter().chain(after.err()).collect())),
    }
}

/// A parameter that may stand in a query once.
fn single<'q>(query: &'q [(String, String)], name: &str) -> Result<Option<&'q str>, Fault> {
    let mut values = query.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Fault::new(name, "must not be given twice")),
        (value, None) => Ok(value),
    }
}
