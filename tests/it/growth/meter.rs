//! What things cost: blocks and rows by PostgreSQL's own count, and time.

use std::collections::{BTreeMap, HashMap};

use culvert::config::Config;
use culvert_wire::clock::Clock;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};

use crate::support::host::{Engine, TestHost};

pub struct Meter {
    clock: Clock,
    /// PostgreSQL's statistics of this test's database.
    statistics: Option<PgConnection>,
    measured: BTreeMap<String, Cost>,
}

/// What one thing cost, each time.
#[derive(Default)]
pub struct Cost {
    reads: Vec<Reads>,
    micros: Vec<i64>,
}

/// What PostgreSQL read for it.
#[derive(Clone, Default)]
pub struct Reads {
    pub blocks: i64,
    pub rows: i64,
    /// Each statement with its blocks, the most first.
    pub statements: Vec<Statement>,
}

#[derive(Clone, Debug)]
pub struct Statement {
    pub blocks: i64,
    /// The same for a statement with other constants; its text may show them or not.
    id: i64,
    #[expect(dead_code, reason = "a failure prints it")]
    sql: String,
}

impl Meter {
    /// Has PostgreSQL count what this host's statements read. Those of other tests are not counted, for whoever reads the
    /// counts reads those of the whole server.
    pub fn enable(config: &mut Config) {
        if let Some(url) = &mut config.database_url {
            url.push_str("?options[pg_stat_statements.track]=top");
        }
    }

    /// Measures a host that was started with [`Meter::enable`].
    pub async fn of(host: &TestHost, engine: Engine) -> Self {
        let statistics = match engine {
            Engine::Sqlite => None,
            Engine::Postgres => {
                let mut connection = PgConnection::connect(&host.config().database_url()).await.unwrap();
                let extension = "CREATE EXTENSION pg_stat_statements";
                sqlx::raw_sql(extension).execute(&mut connection).await.unwrap();
                Some(connection)
            }
        };
        Self { clock: Clock::system(), statistics, measured: BTreeMap::new() }
    }

    /// Does something, and notes under this name what it cost.
    pub async fn note<T>(&mut self, what: &str, work: impl Future<Output = T>) -> T {
        self.reset().await;
        let began = self.clock.moment();
        let result = work.await;
        let micros = self.clock.moment().since(began).as_micros();
        let reads = self.read().await;
        let cost = self.measured.entry(what.into()).or_default();
        cost.micros.push(i64::try_from(micros).unwrap());
        cost.reads.push(reads);
        result
    }

    async fn reset(&mut self) {
        let Some(statistics) = &mut self.statistics else { return };
        let sql =
            "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";
        sqlx::raw_sql(sql).execute(statistics).await.unwrap();
    }

    /// What was read since the last reset, but for what this meter itself reads.
    async fn read(&mut self) -> Reads {
        let Some(statistics) = &mut self.statistics else { return Reads::default() };
        let sql = "SELECT shared_blks_hit + shared_blks_read AS blocks, rows, queryid, query \
                   FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                   WHERE d.datname = current_database() AND s.query NOT LIKE '%pg_stat_statements%' ORDER BY 1 DESC";
        let rows = sqlx::query(sql).fetch_all(statistics).await.unwrap();
        let statement =
            |row: &PgRow| Statement { blocks: row.get("blocks"), id: row.get("queryid"), sql: row.get("query") };
        let statements: Vec<Statement> = rows.iter().map(statement).collect();
        let blocks = statements.iter().map(|statement| statement.blocks).sum();
        Reads { blocks, rows: rows.iter().map(|row| row.get::<i64, _>("rows")).sum(), statements }
    }

    /// The longest statement since the last reset, in milliseconds; 0 on SQLite.
    pub async fn longest(&mut self) -> f64 {
        let Some(statistics) = &mut self.statistics else { return 0.0 };
        let sql = "SELECT MAX(max_exec_time) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
                   WHERE d.datname = current_database() AND s.query LIKE 'DELETE%'";
        sqlx::query_scalar(sql).fetch_one(statistics).await.unwrap()
    }

    /// Begins anew.
    pub fn forget(&mut self) {
        self.measured.clear();
    }

    pub fn measured(&self) -> &BTreeMap<String, Cost> {
        &self.measured
    }
}

impl Cost {
    /// The least of each statement, and of a statement that was not always there none: what else goes on at the same time
    /// and what a new connection reads of the catalog only add to it.
    pub fn reads(&self) -> Reads {
        let mut least = self.reads[0].clone();
        for other in &self.reads[1..] {
            let found: HashMap<i64, i64> = other.statements.iter().map(|other| (other.id, other.blocks)).collect();
            least.statements.retain(|statement| found.contains_key(&statement.id));
            least.statements.iter_mut().for_each(|least| least.blocks = least.blocks.min(found[&least.id]));
            least.rows = least.rows.min(other.rows);
        }
        least.blocks = least.statements.iter().map(|statement| statement.blocks).sum();
        least
    }

    pub fn micros(&self, share: f64) -> i64 {
        let mut sorted = self.micros.clone();
        sorted.sort_unstable();
        sorted[((sorted.len() - 1) as f64 * share).round() as usize]
    }
}
