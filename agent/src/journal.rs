//! The journal: the commands for this device, written to disk before they are carried out.
//!
//! A command goes from received to executing to completed. Each stage is written and synced before the next
//! step. A command that is delivered again is not run again: its stored outcome is reported. If a new process
//! finds a command in the stage executing, it reports the outcome that can be proven, or else that the
//! outcome is unknown.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::state_dir::StateDir;
use culvert_wire::control::{Action, Done, Failure};

const FILE: &str = "journal.jsonl";
const MOST: usize = 1000;
const KEEP: TimeDelta = TimeDelta::days(7);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub operation_id: Uuid,
    pub action: Action,
    pub tunnel_id: Option<Uuid>,
    pub stage: Stage,
    /// The process and version that wrote the entry.
    pub boot_id: Uuid,
    pub version: String,
    pub at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    Received,
    Executing,
    Completed(Result<Done, Failure>),
    /// The command was dropped before it began.
    Dropped,
    /// The host has stored the outcome.
    Settled,
}

pub(crate) struct Journal {
    state: StateDir,
    file: File,
    entries: HashMap<Uuid, Entry>,
    lines: usize,
}

impl Journal {
    /// # Errors
    ///
    /// If the file cannot be read or written.
    pub(crate) fn load(state: &StateDir, now: DateTime<Utc>) -> io::Result<Self> {
        let text = match std::fs::read_to_string(state.path(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        // A line that a crash cut short was never synced, so its step was not taken.
        let entries = text.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok());
        let entries = entries.map(|entry| (entry.operation_id, entry)).collect();
        let mut journal = Self { state: state.clone(), file: open(state)?, entries, lines: 0 };
        journal.compact(now)?;
        Ok(journal)
    }

    pub(crate) fn get(&self, operation_id: Uuid) -> Option<&Entry> {
        self.entries.get(&operation_id)
    }

    /// The entries of all commands that are neither settled nor dropped.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|entry| !matches!(entry.stage, Stage::Settled | Stage::Dropped))
    }

    /// Writes an entry and waits until it is on disk.
    ///
    /// # Errors
    ///
    /// If the entry cannot be written. Then the step must not be taken.
    pub(crate) fn record(&mut self, entry: Entry) -> io::Result<()> {
        if self.lines >= 2 * MOST {
            self.compact(entry.at)?;
        }
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.file.sync_data()?;
        self.lines += 1;
        self.entries.insert(entry.operation_id, entry);
        Ok(())
    }

    /// Rewrites the file with the newest entries of the last seven days.
    fn compact(&mut self, now: DateTime<Utc>) -> io::Result<()> {
        let mut kept: Vec<_> = self.entries.drain().map(|(_, entry)| entry).filter(|e| now - e.at < KEEP).collect();
        kept.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        kept.truncate(MOST);
        let mut text = Vec::new();
        for entry in kept.iter().rev() {
            serde_json::to_writer(&mut text, entry)?;
            text.push(b'\n');
        }
        self.state.replace(FILE, &text)?;
        self.file = open(&self.state)?;
        self.lines = kept.len();
        self.entries = kept.into_iter().map(|entry| (entry.operation_id, entry)).collect();
        Ok(())
    }
}

fn open(state: &StateDir) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(state.path(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reloaded_journal_keeps_entries_and_ignores_truncated_line() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let now: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().unwrap();
        let entry = |id: u128, stage, at| Entry {
            operation_id: Uuid::from_u128(id),
            action: Action::Stop,
            tunnel_id: None,
            stage,
            boot_id: Uuid::nil(),
            version: "1".into(),
            at,
        };
        let mut journal = Journal::load(&state, now).unwrap();
        journal.record(entry(1, Stage::Received, now)).unwrap();
        journal.record(entry(1, Stage::Executing, now)).unwrap();
        journal.record(entry(2, Stage::Settled, now)).unwrap();
        journal.record(entry(3, Stage::Received, now - TimeDelta::days(8))).unwrap();
        OpenOptions::new().append(true).open(state.path(FILE)).unwrap().write_all(b"{\"operation_id\":\"0").unwrap();

        let found = Journal::load(&state, now).unwrap();
        assert_eq!(found.get(Uuid::from_u128(1)).map(|e| e.stage.clone()), Some(Stage::Executing));
        assert_eq!(found.unsettled().count(), 1);
        assert!(found.get(Uuid::from_u128(3)).is_none(), "older than a week");
    }

    #[test]
    fn journal_with_many_entries_stays_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let now: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut journal = Journal::load(&state, now).unwrap();
        for id in 0..2 * MOST as u128 + 10 {
            let at = now + TimeDelta::milliseconds(id as i64);
            let (operation_id, boot_id) = (Uuid::from_u128(id), Uuid::nil());
            let stage = Stage::Settled;
            let entry = Entry {
                operation_id,
                action: Action::Stop,
                tunnel_id: None,
                stage,
                boot_id,
                version: String::new(),
                at,
            };
            journal.record(entry).unwrap();
        }
        assert!(std::fs::read_to_string(state.path(FILE)).unwrap().lines().count() < 2 * MOST);
        assert!(journal.get(Uuid::from_u128(2 * MOST as u128)).is_some());
    }
}
