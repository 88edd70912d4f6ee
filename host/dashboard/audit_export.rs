//! The audit log of a scope as a file: CSV (RFC 4180) for spreadsheets, and JSON lines as `culvert audit export` prints them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use culvert_domain::audit_log::Entry;
use culvert_domain::caller::Caller;
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::page::{CursorPosition, Page};
use culvert_service::audit_log::record;
use futures_util::Stream;
use futures_util::stream::try_unfold;
use uuid::Uuid;

use crate::Dashboard;
use crate::answer::Answer;
use crate::visit::{Posted, Visit};

/// Entries of one file, the newest.
const ENTRIES: usize = 100_000;
const BATCH: u32 = 500;
/// When it is worth trying again while another export is under way.
const RETRY: Duration = Duration::from_secs(10);
const COLUMNS: &str =
    "number,at,origin,account_id,account,credential_id,action,subject_id,details,request_id,address\r\n";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Csv,
    JsonLines,
}

/// The accounts for which a file is being made: each makes one at a time.
#[derive(Default)]
pub struct Exports(Mutex<HashSet<Uuid>>);

struct Running {
    exports: Arc<Exports>,
    account_id: Uuid,
}

impl Exports {
    fn begin(self: &Arc<Self>, account_id: Uuid) -> Result<Running> {
        if !self.accounts().insert(account_id) {
            let error = Error::new(Code::RateLimited, "An export of yours is under way; wait until it has ended.");
            return Err(error.after(RETRY));
        }
        Ok(Running { exports: self.clone(), account_id })
    }

    fn accounts(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.exports.accounts().remove(&self.account_id);
    }
}

struct Export {
    dashboard: Arc<Dashboard>,
    caller: Caller,
    format: Format,
    /// Where it goes on; `None` at its end.
    after: Option<CursorPosition>,
    left: usize,
    _running: Running,
}

pub(crate) async fn export(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (format, content_type) = match posted.form.get("format") {
        "csv" => (Format::Csv, "text/csv; charset=utf-8"),
        "jsonl" => (Format::JsonLines, "application/jsonl"),
        _ => return Err(Error::invalid(vec![Fault::new("format", "must be csv or jsonl")])),
    };
    let running = visit.dashboard.exports.begin(visit.caller.account_id)?;
    let (service, caller) = (visit.service(), visit.caller.clone());
    service.note_audit_export(&caller, visit.policies.request_id(), visit.client.address).await?;
    let name = format!("audit-log-{}.{}", service.clock().now().format("%Y-%m-%d"), posted.form.get("format"));
    let dashboard = visit.dashboard.clone();
    let export =
        Export { dashboard, caller, format, after: Some(CursorPosition::START), left: ENTRIES, _running: running };
    Ok(Answer::file(&name, content_type, export.lines()))
}

impl Export {
    fn lines(self) -> impl Stream<Item = Result<Bytes>> + Send {
        try_unfold(self, |mut export| async move {
            let Some(after) = export.after else { return Ok(None) };
            let page = Page { limit: BATCH, after };
            let entries = export.dashboard.service.audit_entries(&export.caller, page).await?;
            let is_first = after == CursorPosition::START && export.format == Format::Csv;
            let mut text = String::from(if is_first { COLUMNS } else { "" });
            for (entry, name) in entries.rows.iter().take(export.left) {
                match export.format {
                    Format::Csv => text.push_str(&csv_line(entry, name.as_deref())),
                    Format::JsonLines => text.push_str(&format!("{}\n", record(entry))),
                }
            }
            export.left = export.left.saturating_sub(entries.rows.len());
            export.after = entries.next.filter(|_| export.left > 0);
            Ok(Some((text.into(), export)))
        })
    }
}

fn csv_line(entry: &Entry, name: Option<&str>) -> String {
    let id = |id: Option<Uuid>| id.map(|id| id.to_string()).unwrap_or_default();
    let actor = &entry.actor;
    let cells = [
        entry.number.to_string(),
        entry.at.to_rfc3339(),
        actor.origin.to_string(),
        id(actor.account_id),
        name.unwrap_or_default().to_owned(),
        id(actor.credential_id),
        entry.action.clone(),
        id(entry.subject_id),
        entry.details.clone(),
        id(actor.request_id),
        actor.address.clone(),
    ];
    cells.map(|cell| csv_cell(&cell)).join(",") + "\r\n"
}

/// A cell in quotes. Spreadsheets take some beginnings for a formula. The csv crate was weighed: this is its one rule.
fn csv_cell(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::csv_cell;

    #[test]
    fn cells_are_quoted_and_are_no_formulas() {
        assert_eq!(csv_cell("a \"b\", c\n"), "\"a \"\"b\"\", c\n\"");
        for text in ["=1+1", "+1", "-1", "@x", "\tx", "\rx"] {
            assert_eq!(csv_cell(text), format!("\"'{text}\""));
        }
    }
}
