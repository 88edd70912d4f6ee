//! What operators see of the whole installation: its Teams, and how it is.

use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert_domain::account::TeamRecord;
use culvert_domain::error::{Error, Result};
use culvert_domain::page::{Page, PageRows};
use uuid::Uuid;

use crate::Service;
use crate::gate::PinnedPolicies;
use crate::operators::Operator;

/// Mails that are counted.
const MAILS: u32 = 1000;

/// How the installation is, as this host sees it.
pub struct Health {
    /// How long the database takes to answer.
    pub database: Duration,
    /// Webhook endpoints for which something is overdue, and since when.
    pub overdue_endpoints: (u64, Option<DateTime<Utc>>),
    /// Names without a certificate, and why.
    pub failing_certificates: Vec<(String, String)>,
    /// Mails that could not be sent yet, at most 1,000.
    pub overdue_mails: u64,
}

impl Service {
    /// A page of all Teams.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn all_teams(&self, _: &Operator, page: Page) -> Result<PageRows<TeamRecord>> {
        self.store.all_teams(page).await
    }

    /// Gives a Team another plan.
    ///
    /// # Errors
    ///
    /// `not_found` if there is no such Team; `validation_failed` if no policy knows the plan; if a policy or the database
    /// fails.
    pub async fn set_plan_of_team(
        &self,
        operator: Operator,
        policies: &PinnedPolicies,
        team_id: Uuid,
        plan: &str,
    ) -> Result<()> {
        if !self.store.has_team(team_id).await? {
            return Err(Error::not_found());
        }
        self.give_plan(operator, policies, team_id, plan).await
    }

    /// How the installation is.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn health(&self, _: &Operator) -> Result<Health> {
        let began = self.clock().moment();
        let overdue_endpoints = self.store.overdue_endpoints().await?;
        let database = self.clock().moment().since(began);
        let failing_certificates = self.store.failing_certificates().await?;
        let overdue_mails = self.store.overdue_mails(MAILS).await?;
        Ok(Health { database, overdue_endpoints, failing_certificates, overdue_mails })
    }
}
