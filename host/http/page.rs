//! The query parameters `limit` and `cursor` of lists; see `docs/develop/decisions/0009-pages.md`.
//!
//! A cursor is the place of the last row that was shown. It is bound to its list and vouched for by
//! the host's key, so that no client comes to rely on what is in it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::DateTime;
use uuid::Uuid;

use crate::secret::{Purpose, Secrets};
use culvert_domain::caller::Caller;
use culvert_domain::error::{Error, Fault, Result};
use culvert_store::page::{CursorPosition, Page};

pub const DEFAULT_LIMIT: u32 = 25;
pub const MAX_LIMIT: u32 = 100;

const VERSION: u8 = 1;
const PLACE_BYTES: usize = 8 + 16;

/// Which rows a list shows: of one caller's scope, and of one resource where there is one.
pub struct ListQuery<'a> {
    pub caller: &'a Caller,
    pub path: &'a str,
}

impl ListQuery<'_> {
    /// The page that a query asks for.
    pub fn page(&self, query: &[(String, String)], secrets: &Secrets) -> Result<Page> {
        let mut faults = Vec::new();
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
            Ok(Some(cursor)) => self
                .open(cursor, secrets)
                .ok_or_else(|| Fault::new("cursor", "must be a `meta.next_cursor` of this list, unchanged")),
        };
        match (limit, after) {
            (Ok(limit), Ok(after)) => Ok(Page { limit, after }),
            (limit, after) => {
                faults.extend(limit.err());
                faults.extend(after.err());
                Err(Error::invalid(faults))
            }
        }
    }

    pub fn cursor(&self, place: CursorPosition, secrets: &Secrets) -> String {
        let body = [&place.micros().to_be_bytes()[..], place.id.as_bytes()].concat();
        let tag = secrets.mac(Purpose::Cursors, &self.vouched(&body));
        URL_SAFE_NO_PAD.encode([&[VERSION], &body[..], &tag].concat())
    }

    fn open(&self, cursor: &str, secrets: &Secrets) -> Option<CursorPosition> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (body, tag) = rest.split_at_checked(PLACE_BYTES)?;
        if *version != VERSION || !secrets.verify_mac(Purpose::Cursors, &self.vouched(body), tag) {
            return None;
        }
        let (micros, id) = body.split_first_chunk::<8>()?;
        let at = DateTime::from_timestamp_micros(i64::from_be_bytes(*micros))?;
        Some(CursorPosition { at, id: Uuid::from_slice(id).ok()? })
    }

    /// A place means something in its own list only.
    fn vouched(&self, body: &[u8]) -> Vec<u8> {
        [self.caller.scope.id.as_bytes(), body, self.path.as_bytes()].concat()
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
