//! Opens the database of the configuration.

use std::fmt::Display;

use culvert_store::db::Db;
use culvert_store::schema::{NEWER, Schema};

use crate::config::{Config, ConfigError};

/// Opens it, with the schema that this program needs. An empty one gets it; one of an earlier version only if `migrates` says so.
///
/// # Errors
///
/// One line that names `database_url` and says what to do.
pub(crate) async fn open(config: &Config, migrates: bool) -> Result<Db, ConfigError> {
    let fail = |problem: &dyn Display| ConfigError::new("database_url", problem);
    let db = Db::open(&config.database_url()).await.map_err(|e| fail(&e))?;
    match db.schema().await.map_err(|e| fail(&e))? {
        Schema::Current => {}
        Schema::Older if !migrates => {
            return Err(fail(&"the database is of an earlier version; call `culvert migrate` first"));
        }
        Schema::Empty | Schema::Older => db.migrate().await.map_err(|e| fail(&e))?,
        Schema::Newer => return Err(fail(&NEWER)),
    }
    Ok(db)
}
