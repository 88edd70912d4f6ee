//! Mails that are to be sent.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::{Row, row};
use super::sql::sql;
use super::{Hint, Store, Write};
use culvert_domain::error::Result;
use culvert_domain::mail::SealedMail;

/// How long after an attempt the next one is made, if the attempt fails.
const WAITS: [TimeDelta; 4] =
    [TimeDelta::minutes(1), TimeDelta::minutes(4), TimeDelta::minutes(10), TimeDelta::minutes(45)];

/// How long a mail belongs to who has taken it: longer than it can take to send it.
const CLAIM: TimeDelta = TimeDelta::minutes(3);

/// A mail that is being sent.
pub struct ClaimedMail {
    pub mail: SealedMail,
    /// The number of this attempt, from 1.
    pub attempt: u32,
}

impl ClaimedMail {
    /// How long after this attempt the next one is made. None after the last.
    fn wait(&self) -> Option<TimeDelta> {
        WAITS.get(self.attempt as usize - 1).copied()
    }

    /// Whether it is not tried again.
    pub fn is_last(&self) -> bool {
        self.wait().is_none()
    }
}

impl Store {
    /// When the next mail is due.
    pub async fn next_mail(&self) -> Result<Option<DateTime<Utc>>> {
        let row = (&self.db).one(sql!("SELECT MIN(due_at) AS due_at FROM mails"), args![]).await?;
        Ok(row.optional_time("due_at")?)
    }

    /// Mails that are overdue, at most so many.
    pub async fn overdue_mails(&self, most: u32) -> Result<u64> {
        let sql = sql!("SELECT COUNT(*) AS mails FROM (SELECT id FROM mails WHERE due_at <= $1 LIMIT $2) AS overdue");
        Ok((&self.db).one(sql, args![self.clock.now(), most]).await?.number("mails")?)
    }

    /// Takes a mail that is due. It is due again after a while, unless it is deleted before: no mail is lost with its host.
    pub async fn claim_mail(&self) -> Result<Option<ClaimedMail>> {
        let claim = self.write(None, |write| {
            Box::pin(async move {
                let due = sql!(
                    "SELECT id, recipient, content, attempts, due_at, expires_at FROM mails WHERE due_at <= $1 \
                     ORDER BY due_at, id LIMIT 1"
                );
                let now = write.now;
                let Some(row) = write.optional(due, args![now]).await? else { return Ok(None) };
                let (claimed, due_at) = (claimed(&row)?, row.time("due_at")?);
                // Another host may have taken it meanwhile.
                let sql = sql!("UPDATE mails SET attempts = attempts + 1, due_at = $3 WHERE id = $1 AND due_at = $2");
                let taken = write.execute(sql, args![claimed.mail.id, due_at, now + CLAIM]).await?;
                Ok((taken == 1).then_some(claimed))
            })
        });
        claim.await
    }

    /// Has a mail that could not be sent be tried again when its time has come.
    pub async fn postpone_mail(&self, claimed: &ClaimedMail) -> Result<()> {
        let (id, wait) = (claimed.mail.id, claimed.wait().unwrap_or(CLAIM));
        let postpone = self.write(None, move |write| {
            Box::pin(async move {
                let due_at = write.now + wait;
                write.execute(sql!("UPDATE mails SET due_at = $2 WHERE id = $1"), args![id, due_at]).await?;
                Ok(())
            })
        });
        postpone.await
    }

    /// Forgets a mail that was sent, or cannot be.
    pub async fn delete_mail(&self, id: Uuid) -> Result<()> {
        let delete = self.write(None, move |write| {
            Box::pin(async move {
                write.execute(sql!("DELETE FROM mails WHERE id = $1"), args![id]).await?;
                Ok(())
            })
        });
        delete.await
    }
}

impl Write {
    /// Has a mail be sent.
    pub async fn insert_mail(&mut self, mail: &SealedMail) -> Result<()> {
        let now = self.now;
        let sql = sql!(
            "INSERT INTO mails (id, recipient, content, attempts, due_at, expires_at) VALUES ($1, $2, $3, 0, $4, $5)"
        );
        let args = args![mail.id, &mail.recipient, mail.content.as_slice(), now, mail.expires_at];
        self.execute(sql, args).await?;
        self.notify(Hint::Mails);
        Ok(())
    }
}

fn claimed(row: &Row) -> DbResult<ClaimedMail> {
    let mail = row!(row => SealedMail { id: id, recipient: text, content: bytes, expires_at: time });
    Ok(ClaimedMail { mail, attempt: row.number::<u32>("attempts")? + 1 })
}
