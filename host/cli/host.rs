//! `culvert host …`

use std::collections::BTreeMap;

use clap::Subcommand;
use culvert_domain::fleet::HostState;
use culvert_store::Store;
use culvert_store::hosts::{self, HostRecord};
use serde_json::{Value, json};

use super::{CliError, operator, print, refused, table};
use crate::cli::Output;
use crate::config::Config;

#[derive(Subcommand)]
pub(super) enum Host {
    /// List the hosts on the database
    List,
    /// Have other hosts take the work of one that is to be stopped
    ///
    /// It takes no new tunnels, is not ready for load balancers, and sends its agents to other hosts, within about 20 seconds. It
    /// goes on until it is stopped; what its nodes serve goes on as well, and can be moved. A start ends this.
    Drain {
        /// Its name or id
        host: String,
        /// Have it take work again
        #[arg(long)]
        undo: bool,
    },
}

impl Host {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let store = operator::store(config).await?;
        let hosts = store.hosts().await?;
        if let Self::Drain { host, undo } = self {
            return drain(output, &store, &hosts, &host, !undo).await;
        }
        let different = hosts::different_settings(&hosts);
        let value = json!({"data": hosts.iter().map(record).collect::<Vec<_>>(), "different_settings": different});
        print(output, &value, || {
            let mut rows = vec![
                ["HOST", "NAME", "VERSION", "STATE", "LEADS", "DEVICES", "NODES", "POLICIES", "AGENT URL"]
                    .map(String::from)
                    .into(),
            ];
            rows.extend(hosts.iter().map(row));
            std::iter::once(table(rows))
                .chain(different.iter().map(|name| values(&hosts, name)))
                .collect::<Vec<_>>()
                .join("\n")
        });
        Ok(())
    }
}

async fn drain(output: Output, store: &Store, hosts: &[HostRecord], name: &str, drains: bool) -> Result<(), CliError> {
    let named = |alive| {
        let named = |host: &&HostRecord| host.name == name || Some(host.id) == name.parse().ok();
        hosts.iter().filter(named).filter(move |host| host.state.is_alive() == alive)
    };
    // A machine that was set up anew has the name of the former one.
    let mut named = named(true).chain(named(false));
    let host =
        named.next().ok_or_else(|| refused(format!("there is no host {name}; `culvert host list` shows them")))?;
    if named.next().is_some_and(|other| other.state.is_alive()) {
        return Err(refused(format!("several hosts are called {name}; use an id")));
    }
    let takes_over = |other: &HostRecord| other.id != host.id && other.state == HostState::Alive;
    if drains && !hosts.iter().any(takes_over) {
        return Err(refused(format!("no other host is there to take the work of {name}; stop it instead")));
    }
    if !host.state.is_alive() || !store.drain_host(host.id, drains).await? {
        let help = "its agents look for other hosts by themselves";
        return Err(refused(format!("the host {name} does not answer or has ended ({}); {help}", host.state)));
    }
    let value = json!({"host": host.id, "draining": drains});
    print(output, &value, || {
        let HostRecord { id, name, devices, .. } = host;
        if drains {
            format!("host {name} ({id}) drains; {devices} devices are to go to other hosts")
        } else {
            format!("host {name} ({id}) takes work again")
        }
    });
    Ok(())
}

/// The hosts by their values of a setting.
fn values(hosts: &[HostRecord], setting: &str) -> String {
    let mut by_value: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for host in hosts.iter().filter(|host| host.ended_at.is_none()) {
        if let Some(value) = host.settings.get(setting) {
            by_value.entry(value).or_default().push(&host.name);
        }
    }
    let values = by_value.iter().map(|(value, names)| format!("{value} at {}", names.join(", ")));
    format!("{setting} is to be the same at all hosts; it is {}", values.collect::<Vec<_>>().join("; "))
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
        "settings": host.settings,
    })
}
