//! The file of decision records: lines are added to it whole, and it may be moved away at any time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use culvert_wire::clock::{Clock, Moment};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;

/// Least time between two log lines about records that are lost.
const QUIET: Duration = Duration::from_secs(1);

/// How the writing of decision records goes, for the operator.
#[derive(Clone, Debug, Serialize)]
pub struct RecordsHealth {
    pub file: PathBuf,
    /// Records that were lost since the start: no place in the queue, or not written.
    pub lost: u64,
    /// Why the last record could not be written; none once one was written again.
    pub problem: Option<String>,
}

pub(crate) struct RecordWriter {
    path: PathBuf,
    file: File,
    clock: Clock,
    written: Counter,
    lost: Counter,
    health: Arc<Mutex<RecordsHealth>>,
    unsaid: Unsaid,
    /// Whether the file ends in an incomplete line.
    is_cut: bool,
}

/// Lost records that no log line has told of yet.
#[derive(Default)]
struct Unsaid {
    lost: u64,
    /// When the last line was.
    said: Option<Moment>,
}

impl Unsaid {
    /// How many a log line is to tell of now. None if there was one a moment ago.
    fn add(&mut self, lost: u64, now: Moment) -> Option<u64> {
        self.lost += lost;
        if self.said.is_some_and(|said| now.since(said) < QUIET) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.lost))
    }
}

impl RecordWriter {
    pub(crate) fn open(
        path: &Path,
        clock: Clock,
        written: Counter,
        lost: Counter,
        health: Arc<Mutex<RecordsHealth>>,
    ) -> io::Result<Self> {
        Ok(Self {
            path: path.into(),
            file: open(path)?,
            clock,
            written,
            lost,
            health,
            unsaid: Unsaid::default(),
            is_cut: false,
        })
    }

    /// Adds lines. Of those that do not fit, nothing is left in the file.
    pub(crate) fn write(&mut self, lines: &[u8]) {
        let (whole, problem) = match self.reopen_if_moved() {
            Ok(()) => self.add(lines),
            Err(error) => (0, Some(error)),
        };
        let (written, all) = (count(&lines[..whole]), count(lines));
        self.written.inc_by(written);
        self.health.lock().unwrap_or_else(PoisonError::into_inner).problem = problem.as_ref().map(ToString::to_string);
        if let Some(error) = problem {
            self.report(all - written, &error);
        }
    }

    /// Opens a new file of the name if the old one was moved away or removed.
    fn reopen_if_moved(&mut self) -> io::Result<()> {
        let own = self.file.metadata()?;
        let named = fs::metadata(&self.path).map(|named| (named.dev(), named.ino()));
        if named.is_ok_and(|named| named == (own.dev(), own.ino())) {
            return Ok(());
        }
        self.file = open(&self.path)?;
        self.is_cut = false;
        tracing::info!(file = %self.path.display(), "decision records go on in a new file");
        Ok(())
    }

    /// Returns how many bytes of whole lines were added, and why they were not all.
    fn add(&mut self, lines: &[u8]) -> (usize, Option<io::Error>) {
        if self.is_cut {
            match self.file.write_all(b"\n") {
                Ok(()) => self.is_cut = false,
                Err(error) => return (0, Some(error)),
            }
        }
        let mut added = 0;
        let problem = loop {
            match self.file.write(&lines[added..]) {
                Ok(0) if added < lines.len() => break Some(io::ErrorKind::WriteZero.into()),
                Ok(0) => break None,
                Ok(bytes) => added += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Some(error),
            }
        };
        let whole = lines[..added].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if whole < added
            && let Ok(metadata) = self.file.metadata()
        {
            // Where it cannot be cut off, the next line begins behind it.
            let cut = self.file.set_len(metadata.len().saturating_sub((added - whole) as u64));
            self.is_cut = cut.is_err();
        }
        (whole, problem)
    }

    fn report(&mut self, lost: u64, error: &io::Error) {
        self.lost.inc_by(lost);
        if let Some(lost) = self.unsaid.add(lost, self.clock.moment()) {
            tracing::warn!(%error, lost, file = %self.path.display(), "decision records were lost");
        }
    }
}

fn count(lines: &[u8]) -> u64 {
    lines.split_inclusive(|byte| *byte == b'\n').count() as u64
}

fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    // A host that was killed while it wrote may have left an incomplete line.
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 && file.metadata()?.is_file() {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_records_are_told_of_once_a_second() {
        let (mut unsaid, clock) = (Unsaid::default(), Clock::manual("2026-01-15T12:00:00Z".parse().unwrap()));
        assert_eq!(unsaid.add(1, clock.moment()), Some(1));
        assert_eq!(unsaid.add(5, clock.moment()), None);
        clock.advance(Duration::from_millis(999));
        assert_eq!(unsaid.add(6_000, clock.moment()), None);
        clock.advance(Duration::from_millis(1));
        assert_eq!(unsaid.add(2, clock.moment()), Some(6_007));
    }
}
