//! SQL statements. The macros of this file make all of them and list each in [`STATEMENTS`], so that a test prepares
//! every one on both engines. linkme collects them when the program is linked; inventory was weighed, which runs
//! code before `main`.

/// A statement, in the SQL of each engine; empty for an engine on which it is not sent. Its placeholders are `$1`, `$2`, …
#[derive(Clone, Copy, Debug)]
pub struct Sql {
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

/// Every statement of this crate.
#[linkme::distributed_slice]
pub static STATEMENTS: [Sql];

/// Makes a statement from one text for both engines, or from one for each. `locked` is a row-lock clause that ends the
/// statement on PostgreSQL; SQLite has no row locks, because a transaction that writes locks the whole database.
macro_rules! sql {
    (sqlite: $sqlite:expr, postgres: $postgres:expr) => {{
        const STATEMENT: $crate::sql::Sql = $crate::sql::Sql { sqlite: $sqlite, postgres: $postgres };
        #[linkme::distributed_slice($crate::sql::STATEMENTS)]
        #[expect(unsafe_code, reason = "linkme collects what lies in one section of the program")]
        static COLLECTED: $crate::sql::Sql = STATEMENT;
        STATEMENT
    }};
    (postgres: $postgres:expr) => {
        $crate::sql::sql!(sqlite: "", postgres: $postgres)
    };
    ($text:literal, locked: $clause:literal) => {
        $crate::sql::sql!(sqlite: $text, postgres: concat!($text, $clause))
    };
    ($text:expr) => {
        $crate::sql::sql!(sqlite: $text, postgres: $text)
    };
}
pub(crate) use sql;

/// Makes a statement with a condition on a list of ids from the SQL before the list, the list's placeholder and the SQL
/// after it. The list is bound as one value.
macro_rules! by_ids {
    ($before:expr, $list:literal, $after:literal) => {
        $crate::sql::by_ids!($before, $list, $after, locked: "")
    };
    ($before:expr, $list:literal, $after:literal, locked: $clause:literal) => {
        $crate::sql::sql!(
            sqlite: concat!($before, " IN (SELECT unhex(value) FROM json_each(", $list, ")) ", $after),
            postgres: concat!($before, " = ANY(", $list, ") ", $after, $clause)
        )
    };
}
pub(crate) use by_ids;

/// The epoch that follows the one in a column: the time of a placeholder, in microseconds, or more where that would not raise
/// it. After an older state of the database was restored, it is still higher than what nodes and agents have seen.
macro_rules! next_epoch {
    ($column:literal, $now:literal) => {
        concat!("CASE WHEN ", $column, " < ", $now, " THEN ", $now, " ELSE ", $column, " + 1 END")
    };
}
pub(crate) use next_epoch;

/// Makes a statement that inserts a row for each id of a list, from the beginning with the columns, of which the id's is the
/// first, the list's placeholder, the values of the other columns and the rest.
macro_rules! insert_ids {
    ($insert:literal, $list:literal, $others:literal, $rest:literal) => {
        $crate::sql::sql!(
            sqlite: concat!($insert, " SELECT unhex(value), ", $others, " FROM json_each(", $list, ") WHERE TRUE ", $rest),
            postgres: concat!($insert, " SELECT unnest(CAST(", $list, " AS UUID[])), ", $others, " ", $rest)
        )
    };
}
pub(crate) use insert_ids;
