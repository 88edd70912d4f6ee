//! The root certificates of the local authority.

use culvert_domain::error::Result;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Store, Write};

#[derive(Clone, Debug)]
pub struct LocalRoot {
    pub domain: String,
    /// PEM.
    pub certificate: String,
    pub sealed_key: Vec<u8>,
}

macro_rules! select_local_roots {
    ($rest:literal) => {
        concat!("SELECT domain, certificate, sealed_key FROM local_roots ", $rest)
    };
}

impl Store {
    pub async fn local_root(&self, domain: &str) -> Result<Option<LocalRoot>> {
        let sql = sql!(select_local_roots!("WHERE domain = $1"));
        let found = (&self.db).optional(sql, args![domain]).await?;
        Ok(found.as_ref().map(local_root).transpose()?)
    }

    /// All of them; there are about as many as nodes.
    pub async fn local_roots(&self) -> Result<Vec<LocalRoot>> {
        let rows = (&self.db).all(sql!(select_local_roots!("ORDER BY domain LIMIT 1000")), args![]).await?;
        Ok(rows.iter().map(local_root).collect::<DbResult<_>>()?)
    }
}

impl Write {
    /// Keeps a root in place of this one, or of none. Nothing changes if another one has come meanwhile.
    pub async fn keep_local_root(&mut self, root: &LocalRoot, former: Option<&LocalRoot>) -> Result<()> {
        let LocalRoot { domain, certificate, sealed_key } = root;
        let sql = sql!(
            "INSERT INTO local_roots (domain, certificate, sealed_key) VALUES ($1, $2, $3) \
             ON CONFLICT (domain) DO UPDATE SET certificate = excluded.certificate, sealed_key = excluded.sealed_key \
                 WHERE local_roots.sealed_key = $4"
        );
        let former = former.map(|former| &former.sealed_key[..]);
        self.execute(sql, args![domain, certificate, &sealed_key[..], former]).await?;
        Ok(())
    }
}

fn local_root(row: &Row) -> DbResult<LocalRoot> {
    Ok(row!(row => LocalRoot { domain: text, certificate: text, sealed_key: bytes }))
}
