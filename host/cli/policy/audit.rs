//! `culvert policy audit`: what exists and would be refused today.

use clap::Args;
use serde_json::{Value, json};

use super::Progress;
use crate::cli::Output;
use crate::cli::{CliError, operator, print, refused, table};
use crate::config::Config;
use crate::policies;
use culvert_service::audit::{self, AuditReport, Finding};
use culvert_wire::clock::Clock;

#[derive(Args)]
pub(crate) struct Audit {
    /// End with 1 where something would be refused
    #[arg(long)]
    fail_on_refusal: bool,
}

impl Audit {
    pub(crate) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let progress = Progress::of("judging what exists");
        let clock = Clock::system();
        let (store, secrets) = operator::store_and_secrets(config).await?;
        let policies = policies::configured(config, &store, &secrets)?;
        let report = audit::run(&store, policies, &clock).await?;
        drop(progress);
        print(output, &as_json(&report), || describe(&report));
        match report.findings.len() {
            0 => Ok(()),
            _ if !self.fail_on_refusal => Ok(()),
            1 => Err(refused("1 thing that exists would be refused")),
            many => Err(refused(format!("{many} things that exist would be refused"))),
        }
    }
}

fn as_json(report: &AuditReport) -> Value {
    let finding = |finding: &Finding| {
        let Finding { kind, id, name, scope, account_id, refusal } = finding;
        json!({
            "kind": kind.name(),
            "id": id,
            "name": name,
            "scope_id": scope.id,
            "scope_name": scope.name,
            "account_id": account_id,
            "code": refusal.code,
            "field": refusal.field,
            "rule": refusal.rule,
            "message": refusal.message,
        })
    };
    json!({
        "tunnels": report.tunnels,
        "domains": report.domains,
        "webhooks": report.webhooks,
        "refused": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "without_creator": report.without_creator,
    })
}

fn describe(report: &AuditReport) -> String {
    let AuditReport { tunnels, domains, webhooks, findings, without_creator } = report;
    let mut lines =
        vec![format!("{tunnels} tunnels, {domains} domains, {webhooks} webhooks; {} refusals", findings.len())];
    if !without_creator.is_empty() {
        lines.push(format!("{} tunnels were not judged: who made them has left the Team", without_creator.len()));
    }
    if findings.is_empty() {
        return lines.join("\n");
    }
    let columns = ["kind", "name", "id", "scope", "account", "what", "rule", "message"];
    let mut rows = vec![columns.map(str::to_uppercase).to_vec()];
    rows.extend(findings.iter().map(|finding| {
        let Finding { kind, id, name, scope, account_id, refusal } = finding;
        let what = refusal.field.clone().or_else(|| refusal.code.clone()).unwrap_or_default();
        let (rule, message) = (refusal.rule.clone(), refusal.message.clone());
        let (id, account) = (id.to_string(), account_id.to_string());
        vec![kind.name().into(), name.clone(), id, scope.name.clone(), account, what, rule, message]
    }));
    lines.push(table(rows));
    lines.join("\n")
}
