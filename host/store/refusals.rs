//! Requests that were refused to a caller.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::arg::{StringArg, args};
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Hint, Store, Write};
use culvert_domain::error::{Error, Result};
use culvert_domain::page::{CursorPosition, Page, PageRows};
use culvert_domain::refusal::{PER_SCOPE, Refusal};
use culvert_domain::refused_by::{RefusedBy, Stage};

macro_rules! select_refusal {
    ($rest:literal) => {
        sql!(concat!(
            "SELECT request_id, at, scope_id, account_id, credential, credential_id, method, path, status, code, detail, \
                    stage, rule, faults, modules, generation, question FROM refusals ",
            $rest
        ))
    };
}

/// Refusals that are counted.
const COUNTED: u32 = 1000;

macro_rules! count_rules {
    ($which:literal) => {
        sql!(concat!(
            "SELECT rule, COUNT(*) AS refused FROM (SELECT rule FROM refusals WHERE ",
            $which,
            " ORDER BY at DESC, request_id DESC LIMIT $3) AS newest WHERE rule IS NOT NULL GROUP BY rule ORDER BY rule"
        ))
    };
}

impl Store {
    /// A refusal in a scope; with an account, one of its own.
    pub async fn refusal(&self, scope_id: Uuid, account_id: Option<Uuid>, id: Uuid) -> Result<Option<Refusal>> {
        let sql = select_refusal!("WHERE request_id = $1 AND scope_id = $2 AND account_id = COALESCE($3, account_id)");
        let row = (&self.db).optional(sql, args![id, scope_id, account_id]).await?;
        Ok(row.as_ref().map(refusal).transpose()?)
    }

    /// A page of the refusals in a scope, the newest first; with an account, of its own.
    pub async fn refusals(&self, scope_id: Uuid, account_id: Option<Uuid>, page: Page) -> Result<PageRows<Refusal>> {
        let (at, id, limit) = (page.after.micros(), page.after.id, page.limit_plus_one());
        let rows = match account_id {
            None => {
                let sql = select_refusal!(
                    "WHERE scope_id = $1 AND (at, request_id) < ($2, $3) ORDER BY at DESC, request_id DESC LIMIT $4"
                );
                (&self.db).all(sql, args![scope_id, at, id, limit]).await?
            }
            Some(account_id) => {
                let sql = select_refusal!(
                    "WHERE scope_id = $1 AND account_id = $2 AND (at, request_id) < ($3, $4) \
                     ORDER BY at DESC, request_id DESC LIMIT $5"
                );
                (&self.db).all(sql, args![scope_id, account_id, at, id, limit]).await?
            }
        };
        let refusals = rows.iter().map(refusal).collect::<DbResult<Vec<_>>>()?;
        Ok(page.truncate(refusals, |refusal| CursorPosition { at: refusal.at, id: refusal.request_id }))
    }

    /// How many requests each rule has refused in a scope since a time, of the newest 1,000 refusals; with an account, of its own.
    pub async fn refused_by_rule(
        &self,
        scope_id: Uuid,
        account_id: Option<Uuid>,
        since: DateTime<Utc>,
    ) -> Result<Vec<(String, u64)>> {
        let rows = match account_id {
            None => {
                let sql = count_rules!("scope_id = $1 AND at >= $2");
                (&self.db).all(sql, args![scope_id, since, COUNTED]).await?
            }
            Some(account_id) => {
                let sql = count_rules!("scope_id = $1 AND at >= $2 AND account_id = $4");
                (&self.db).all(sql, args![scope_id, since, COUNTED, account_id]).await?
            }
        };
        let counted = rows.iter().map(|row| Ok((row.text("rule")?, row.number("refused")?)));
        Ok(counted.collect::<DbResult<Vec<_>>>()?)
    }
}

impl Write {
    pub async fn insert_refusal(&mut self, refusal: &Refusal) -> Result<()> {
        // Those of who asks too often are no news to the pages that ask.
        if refusal.stage != Stage::Rate {
            self.notify(Hint::Scope(refusal.scope_id));
        }
        let json = |value: serde_json::Result<String>| value.map_err(Error::internal);
        let by = refusal.refused_by.as_ref();
        let modules = json(serde_json::to_string(&by.map_or(&[][..], |by| &by.modules)))?;
        let faults = json(serde_json::to_string(&refusal.faults))?;
        let (generation, question) = (by.map_or(0, |by| by.generation), by.map_or("", |by| &by.question));
        let Refusal { request_id, at, scope_id, account_id, credential, credential_id, method, path, .. } = refusal;
        let Refusal { status, code, detail, stage, rule, .. } = refusal;
        let sql = sql!(
            "INSERT INTO refusals (request_id, at, scope_id, account_id, credential, credential_id, method, path, status, \
                 code, detail, stage, rule, faults, modules, generation, question) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) ON CONFLICT DO NOTHING"
        );
        let args = args![
            *request_id,
            *at,
            *scope_id,
            *account_id,
            credential,
            *credential_id,
            method,
            path,
            *status,
            code,
            detail,
            StringArg(*stage),
            rule.as_deref(),
            &faults,
            &modules,
            generation,
            question
        ];
        self.execute(sql, args).await?;
        Ok(())
    }

    /// Deletes what a scope has beyond the newest.
    pub async fn trim_refusals(&mut self, scope_id: Uuid) -> Result<()> {
        let sql = sql!(
            "DELETE FROM refusals WHERE request_id IN (SELECT request_id FROM (SELECT request_id FROM refusals \
                 WHERE scope_id = $1 ORDER BY at DESC, request_id DESC LIMIT 1000 OFFSET $2) AS oldest)"
        );
        self.execute(sql, args![scope_id, PER_SCOPE]).await?;
        Ok(())
    }
}

fn refusal(row: &Row) -> DbResult<Refusal> {
    let stage: Stage = row.string_enum("stage")?;
    let refused_by = match row.number("generation")? {
        0 => None,
        generation => {
            let (modules, question) = (row.json("modules")?.unwrap_or_default(), row.text("question")?);
            Some(RefusedBy {
                stage,
                rule: row.optional_text("rule")?,
                generation,
                modules,
                question,
                secrets: Vec::new(),
            })
        }
    };
    Ok(row!(row => Refusal {
        request_id: id, at: time, scope_id: id, account_id: id, credential: text, credential_id: id, method: text,
        path: text, status: number, code: text, detail: text, rule: optional_text;
        stage, faults: row.json("faults")?.unwrap_or_default(), refused_by,
    }))
}
