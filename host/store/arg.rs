//! Bound values of statements.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::sql::Sql;
use culvert_domain::string_enum::StringEnum;

/// One bound value of a statement.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    Id(Option<Uuid>),
    Int(Option<i64>),
    Flag(Option<bool>),
    Text(Option<&'a str>),
    Bytes(Option<&'a [u8]>),
    /// A list of ids, for `by_ids`.
    Ids(&'a [Uuid]),
}

/// Builds the bound values of a statement, in the order of its placeholders.
macro_rules! args {
    ($($value:expr),* $(,)?) => { &[$($crate::arg::Arg::from($value)),*] };
}
pub(super) use args;

/// Builds a query of either engine and binds its values.
macro_rules! query {
    ($sql:expr, $args:expr, $ids:ident) => {{
        let mut query = sqlx::query($sql);
        for arg in $args {
            query = match *arg {
                $crate::arg::Arg::Id(id) => query.bind(id),
                $crate::arg::Arg::Int(number) => query.bind(number),
                $crate::arg::Arg::Flag(flag) => query.bind(flag),
                $crate::arg::Arg::Text(text) => query.bind(text),
                $crate::arg::Arg::Bytes(bytes) => query.bind(bytes),
                $crate::arg::Arg::Ids(ids) => query.bind($ids(ids)),
            };
        }
        query
    }};
}
pub(super) use query;

/// Encodes ids as a JSON array of hexadecimal strings, which `json_each` and `unhex` decode in SQL.
pub(super) fn sqlite_ids(ids: &[Uuid]) -> String {
    let texts: Vec<String> = ids.iter().map(|id| id.simple().to_string()).collect();
    format!("[{}]", texts.iter().map(|text| format!("\"{text}\"")).collect::<Vec<_>>().join(","))
}

pub(super) fn postgres_ids(ids: &[Uuid]) -> Vec<Uuid> {
    ids.to_vec()
}

/// Checks in debug builds that a statement gets as many values as it has placeholders, in the text of both engines.
/// SQLite silently reads a missing value as NULL.
pub(super) fn check(sql: Sql, args: &[Arg<'_>]) {
    if cfg!(debug_assertions) {
        for text in [sql.sqlite, sql.postgres].into_iter().filter(|text| !text.is_empty()) {
            assert_eq!(placeholders(text), args.len(), "values of: {text}");
        }
    }
}

/// The highest number of a placeholder.
fn placeholders(text: &str) -> usize {
    let numbers = text.split('$').skip(1).filter_map(|rest| {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().ok()
    });
    numbers.max().unwrap_or(0)
}

impl From<Uuid> for Arg<'_> {
    fn from(id: Uuid) -> Self {
        Arg::Id(Some(id))
    }
}

impl From<Option<Uuid>> for Arg<'_> {
    fn from(id: Option<Uuid>) -> Self {
        Arg::Id(id)
    }
}

impl From<i64> for Arg<'_> {
    fn from(number: i64) -> Self {
        Arg::Int(Some(number))
    }
}

impl From<Option<i64>> for Arg<'_> {
    fn from(number: Option<i64>) -> Self {
        Arg::Int(number)
    }
}

impl From<u32> for Arg<'_> {
    fn from(number: u32) -> Self {
        Arg::Int(Some(number.into()))
    }
}

impl From<u16> for Arg<'_> {
    fn from(number: u16) -> Self {
        Arg::Int(Some(number.into()))
    }
}

impl From<Option<u32>> for Arg<'_> {
    fn from(number: Option<u32>) -> Self {
        Arg::Int(number.map(i64::from))
    }
}

/// A count of bytes. Counts of 2^63 and more do not occur; they would be stored as `i64::MAX`.
impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Arg::Int(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

impl From<bool> for Arg<'_> {
    fn from(flag: bool) -> Self {
        Arg::Flag(Some(flag))
    }
}

impl From<Option<bool>> for Arg<'_> {
    fn from(flag: Option<bool>) -> Self {
        Arg::Flag(flag)
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Arg::Text(Some(text))
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(text: &'a String) -> Self {
        Arg::Text(Some(text))
    }
}

impl<'a> From<Option<&'a str>> for Arg<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Arg::Text(text)
    }
}

impl<'a> From<&'a [u8]> for Arg<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Arg::Bytes(Some(bytes))
    }
}

impl<'a> From<Option<&'a [u8]>> for Arg<'a> {
    fn from(bytes: Option<&'a [u8]>) -> Self {
        Arg::Bytes(bytes)
    }
}

impl<'a> From<&'a [Uuid]> for Arg<'a> {
    fn from(ids: &'a [Uuid]) -> Self {
        Arg::Ids(ids)
    }
}

impl From<DateTime<Utc>> for Arg<'_> {
    fn from(time: DateTime<Utc>) -> Self {
        Arg::Int(Some(time.timestamp_micros()))
    }
}

impl From<Option<DateTime<Utc>>> for Arg<'_> {
    fn from(time: Option<DateTime<Utc>>) -> Self {
        Arg::Int(time.map(|time| time.timestamp_micros()))
    }
}

/// The text of an enum value.
impl<W: StringEnum> From<StringArg<W>> for Arg<'_> {
    fn from(StringArg(word): StringArg<W>) -> Self {
        Arg::Text(Some(word.as_str()))
    }
}

/// Binds an enum value as its text.
#[derive(Clone, Copy)]
pub struct StringArg<W>(pub W);
