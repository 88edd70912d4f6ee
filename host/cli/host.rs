//! `culvert host …`

use clap::Subcommand;
use culvert_store::hosts::HostRecord;
use serde_json::{Value, json};

use super::{CliError, operator, print, table};
use crate::cli::Output;
use crate::config::Config;

#[derive(Subcommand)]
pub(super) enum Host {
    /// List the hosts on the database
    List,
}

impl Host {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let Self::List = self;
        let hosts = operator::store(config).await?.hosts().await?;
        let value = json!({"data": hosts.iter().map(record).collect::<Vec<_>>()});
        print(output, &value, || {
            let mut rows = vec![
                ["HOST", "NAME", "VERSION", "STATE", "LEADS", "DEVICES", "NODES", "POLICIES", "AGENT URL"]
                    .map(String::from)
                    .into(),
            ];
            rows.extend(hosts.iter().map(row));
            table(rows)
        });
        Ok(())
    }
}

fn row(host: &HostRecord) -> Vec<String> {
    let HostRecord { id, name, version, state, leads, nodes, devices, policy_generation, agent_url, .. } = host.clone();
    let leads = if leads { "yes" } else { "-" };
    let agent_url = agent_url.unwrap_or_else(|| "-".into());
    vec![
        id.to_string(),
        name,
        version,
        state.to_string(),
        leads.into(),
        devices.to_string(),
        nodes.to_string(),
        policy_generation.to_string(),
        agent_url,
    ]
}

fn record(host: &HostRecord) -> Value {
    json!({
        "id": host.id,
        "name": host.name,
        "version": host.version,
        "state": host.state,
        "leads": host.leads,
        "devices": host.devices,
        "nodes": host.nodes,
        "policy_generation": host.policy_generation,
        "agent_url": host.agent_url,
        "started_at": host.started_at,
        "lease_until": host.lease_until,
        "ended_at": host.ended_at,
    })
}
