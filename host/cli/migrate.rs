//! `culvert migrate`

use clap::Args;
use culvert_store::db::Db;
use culvert_store::schema::{NEWER, Schema};
use serde_json::json;

use super::{CliError, print, refused};
use crate::cli::Output;
use crate::config::{Config, ConfigError};

#[derive(Args)]
pub(super) struct Migrate {
    /// Change nothing; exit code 1 if something is to be done
    #[arg(long)]
    check: bool,
}

impl Migrate {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let fail = |problem: &dyn std::fmt::Display| ConfigError::new("database_url", problem);
        let db = Db::open(&config.database_url()).await.map_err(|e| fail(&e))?;
        let schema = db.schema().await.map_err(|e| fail(&e))?;
        match schema {
            Schema::Newer => return Err(fail(&NEWER).into()),
            Schema::Empty | Schema::Older if self.check => {
                return Err(refused(
                    "the database is empty or of an earlier version; `culvert migrate` brings it up to date",
                ));
            }
            Schema::Empty | Schema::Older => db.migrate().await.map_err(|e| fail(&e))?,
            Schema::Current => {}
        }
        db.close().await;
        let migrated = schema != Schema::Current;
        print(output, &json!({"migrated": migrated}), || {
            if migrated { "the database is up to date now" } else { "the database is up to date" }.into()
        });
        Ok(())
    }
}
