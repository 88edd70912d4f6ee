//! The end of a file of decision records: the last hour that is in it, without reading the rest.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use chrono::{DateTime, TimeDelta, Utc};

use crate::tools::replay::Recorded;

/// Bytes that are read first; then twice as many, until they hold more than the time that is wanted.
const FIRST: u64 = 1 << 20;
/// Most bytes that are read.
const MOST: u64 = 64 << 20;

#[derive(Debug)]
pub struct RecentRecords {
    pub records: Vec<Recorded>,
    /// Lines that are no decision records.
    pub unreadable: usize,
    /// Whether there are older records of that time which were not read.
    pub is_cut: bool,
}

/// Reads the records of the newest one's last hour, oldest first.
///
/// # Errors
///
/// If the file cannot be read.
pub fn last_hour(file: &mut File) -> io::Result<RecentRecords> {
    let length = file.metadata()?.len();
    let mut window = FIRST;
    loop {
        let (timed, unreadable) = read_from(file, length.saturating_sub(window))?;
        let since = timed.iter().map(|(time, _)| *time).max().unwrap_or_default() - TimeDelta::hours(1);
        let is_whole = window >= length || timed.first().is_some_and(|(first, _)| *first < since);
        if is_whole || window >= MOST {
            let records = timed.into_iter().filter(|(time, _)| *time >= since).map(|(_, record)| record).collect();
            return Ok(RecentRecords { records, unreadable, is_cut: !is_whole });
        }
        window *= 2;
    }
}

type TimedRecord = (DateTime<Utc>, Recorded);

/// Reads whole lines from an offset on: records with their times, and how many lines are none.
fn read_from(file: &mut File, offset: u64) -> io::Result<(Vec<TimedRecord>, usize)> {
    file.seek(SeekFrom::Start(offset))?;
    let mut lines = BufReader::new(file.take(MOST));
    if offset > 0 {
        lines.read_until(b'\n', &mut Vec::new())?;
    }
    let (mut timed, mut unreadable) = (Vec::new(), 0);
    for line in lines.split(b'\n') {
        let record = serde_json::from_slice::<Recorded>(&line?).ok();
        match record.and_then(|record| Some((record.time.parse().ok()?, record))) {
            Some(record) => timed.push(record),
            None => unreadable += 1,
        }
    }
    Ok((timed, unreadable))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;

    fn record(time: &str) -> String {
        let input = json!({"padding": "x".repeat(2000)});
        json!({"time": time, "kind": "team-role", "module": "m", "call": "check", "input": input}).to_string() + "\n"
    }

    #[test]
    fn last_hour_is_that_of_the_newest_record() {
        let mut file = tempfile::tempfile().unwrap();
        for minute in 0..60 {
            for _ in 0..20 {
                file.write_all(record(&format!("2026-01-01T10:{minute:02}:00Z")).as_bytes()).unwrap();
            }
        }
        file.write_all(b"{\"half\": ").unwrap();
        file.write_all(b"\n").unwrap();
        file.write_all(record("2026-01-01T11:30:00Z").as_bytes()).unwrap();
        let recent = last_hour(&mut file).unwrap();
        assert_eq!(recent.records.len(), 30 * 20 + 1, "from 10:30 on");
        assert_eq!((recent.unreadable, recent.is_cut), (1, false));
        assert_eq!(recent.records[0].time, "2026-01-01T10:30:00Z");
        let mut empty = tempfile::tempfile().unwrap();
        assert!(last_hour(&mut empty).unwrap().records.is_empty());
    }
}
