//! Cursors of lists; see `docs/develop/decisions/0009-pages.md`.
//!
//! A cursor is the position of the last row that was shown. It is bound to its list and authenticated by the host's
//! key, so that no client comes to rely on what is in it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::DateTime;
use uuid::Uuid;

use crate::Service;
use crate::secrets::Purpose;
use culvert_domain::page::CursorPosition;

const VERSION: u8 = 1;
const POSITION_BYTES: usize = 8 + 16;

/// A list that a cursor belongs to: of one scope, at one path.
#[derive(Clone, Copy, Debug)]
pub struct ListId<'a> {
    pub scope_id: Uuid,
    pub path: &'a str,
}

impl ListId<'_> {
    /// What the MAC covers: a position means something in its own list only.
    fn statement(&self, body: &[u8]) -> Vec<u8> {
        [self.scope_id.as_bytes(), body, self.path.as_bytes()].concat()
    }
}

impl Service {
    pub fn cursor(&self, list: ListId<'_>, position: CursorPosition) -> String {
        let body = [&position.micros().to_be_bytes()[..], position.id.as_bytes()].concat();
        let mac = self.secrets.mac(Purpose::Cursors, &list.statement(&body));
        URL_SAFE_NO_PAD.encode([&[VERSION], &body[..], &mac].concat())
    }

    /// The position of a cursor; `None` if it is not one of this list.
    pub fn open_cursor(&self, list: ListId<'_>, cursor: &str) -> Option<CursorPosition> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (body, mac) = rest.split_at_checked(POSITION_BYTES)?;
        if *version != VERSION || !self.secrets.verify_mac(Purpose::Cursors, &list.statement(body), mac) {
            return None;
        }
        let (micros, id) = body.split_first_chunk::<8>()?;
        let at = DateTime::from_timestamp_micros(i64::from_be_bytes(*micros))?;
        Some(CursorPosition { at, id: Uuid::from_slice(id).ok()? })
    }
}
