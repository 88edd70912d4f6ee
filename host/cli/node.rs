//! `culvert node …`

use std::collections::HashMap;

use clap::Subcommand;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{CliError, operator, print, refused, table};
use crate::cli::Output;
use crate::config::Config;
use culvert_domain::node::{self, NodeStatus};
use culvert_service::catalog;
use culvert_store::Store;
use culvert_store::hosts::NodeHost;

#[derive(Subcommand)]
pub(super) enum Node {
    /// List nodes
    List,
    /// Change what clients see of a node
    Set {
        /// Its id or name
        node: String,
        #[arg(long)]
        name: Option<String>,
        /// A slug: eu-central
        #[arg(long)]
        region: Option<String>,
        /// ISO 3166-1 alpha-2: DE
        #[arg(long)]
        country: Option<String>,
        /// A flag to show beside the region; empty for none
        #[arg(long)]
        flag: Option<String>,
        /// online, degraded, maintenance or offline; only an online node takes new tunnels
        #[arg(long)]
        status: Option<NodeStatus>,
        /// Whether it takes tunnels of the premium network only
        #[arg(long)]
        pro_only: Option<bool>,
    },
    /// Give up a node whose host is gone, so that its tunnels can be moved at once
    ///
    /// A host that is not heard of may have lost the database alone, and its nodes serve on for `node_authority_seconds`. Until
    /// then, tunnels that are moved away run on no other device. With --force you say that the machine is off, or the node stopped.
    Abandon {
        /// Its id or name
        node: String,
        /// Do it; without, say what would be done
        #[arg(long)]
        force: bool,
    },
}

impl Node {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let store = operator::store(config).await?;
        let nodes = store.nodes().await?;
        let (node, name, region, country, flag, status, pro_only) = match self {
            Self::List => {
                list(output, &nodes, &store.node_hosts().await?);
                return Ok(());
            }
            Self::Abandon { node, force } => return abandon(output, &store, &find(&nodes, &node)?, force).await,
            Self::Set { node, name, region, country, flag, status, pro_only } => {
                (node, name, region, country, flag, status, pro_only)
            }
        };
        let mut found = find(&nodes, &node)?;
        if let Some(name) = name {
            operator::check_name("--name", &name)?;
            if nodes.iter().any(|other| other.id != found.id && other.name == name) {
                return Err(refused(format!("--name: another node is called {name}; each name is one node's")));
            }
            found.name = name;
        }
        if let Some(region) = region {
            let slug = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if !(1..=32).contains(&region.len()) || !region.chars().all(slug) {
                return Err(refused("--region must have 1 to 32 characters of a-z, 0-9 and -"));
            }
            found.region = region;
        }
        if let Some(country) = country {
            if country.len() != 2 || !country.bytes().all(|b| b.is_ascii_alphabetic()) {
                return Err(refused("--country must be an ISO 3166-1 alpha-2 code"));
            }
            found.country = country.to_ascii_uppercase();
        }
        if let Some(flag) = flag {
            found.region_flag = Some(flag).filter(|flag| !flag.is_empty());
        }
        found.status = status.unwrap_or(found.status);
        found.pro_only = pro_only.unwrap_or(found.pro_only);
        catalog::update_node(&store, found.clone()).await?;
        print(output, &record(&found), || format!("node {} ({}) is {}", found.id, found.name, found.status));
        Ok(())
    }
}

fn find(nodes: &[node::Node], node: &str) -> Result<node::Node, CliError> {
    let found = nodes.iter().find(|known| known.name == node || Some(known.id) == node.parse().ok());
    found.cloned().ok_or_else(|| refused(format!("there is no node {node}; `culvert node list` shows them")))
}

async fn abandon(output: Output, store: &Store, node: &node::Node, force: bool) -> Result<(), CliError> {
    let node::Node { id, name, .. } = node;
    let Some(NodeHost { host_name, state, serves_until, .. }) = store.node_hosts().await?.remove(id) else {
        return Err(refused(format!("node {id} ({name}) has no host: nothing waits for it")));
    };
    let alive = || refused(format!("the host of node {id} ({name}), on {host_name}, is alive; stop it instead"));
    if state.is_alive() {
        return Err(alive());
    }
    let until = serves_until.format("%Y-%m-%d %H:%M:%S");
    if !force {
        let value = json!({"node": id, "abandoned": false, "host_state": state, "serves_until": serves_until});
        print(output, &value, || {
            format!(
                "node {id} ({name}): its host, on {host_name}, is {state}. It may serve until {until} UTC, and tunnels that are \
                 moved away run on no other device until then. If it is stopped, or its machine is off, use --force"
            )
        });
        return Ok(());
    }
    if !store.abandon_node(*id).await? {
        return Err(alive());
    }
    let value = json!({"node": id, "abandoned": true, "host_state": state, "serves_until": serves_until});
    print(output, &value, || format!("node {id} ({name}) is given up; it serves again when its host is started"));
    Ok(())
}

fn list(output: Output, nodes: &[node::Node], hosts: &HashMap<Uuid, NodeHost>) {
    // A host that is alive has its nodes serve on.
    let ends = |host: &NodeHost| (!host.state.is_alive()).then_some(host.serves_until);
    let value = |node: &node::Node| {
        let mut value = record(node);
        let host = hosts.get(&node.id);
        value["host"] = json!(host.map(|host| host.host_id));
        value["host_state"] = json!(host.map(|host| host.state));
        value["serves_until"] = json!(host.and_then(ends));
        value
    };
    let value = json!({"data": nodes.iter().map(value).collect::<Vec<_>>()});
    print(output, &value, || {
        let head = ["NODE", "NAME", "ADDRESS", "REGION", "COUNTRY", "STATUS", "PORTS", "HOST", "SERVES UNTIL"];
        let mut rows = vec![head.map(String::from).into()];
        rows.extend(nodes.iter().map(|node| {
            let node::Node { id, name, hostname, region, country, status, ports, .. } = node.clone();
            let host = hosts.get(&id).map_or_else(|| "-".into(), |host| format!("{} ({})", host.host_name, host.state));
            let until = hosts.get(&id).and_then(ends);
            let until = until.map_or_else(|| "-".into(), |until| until.format("%H:%M:%S").to_string());
            let (status, ports) = (status.to_string(), ports.to_string());
            vec![id.to_string(), name, hostname, region, country, status, ports, host, until]
        }));
        table(rows)
    });
}

fn record(node: &node::Node) -> Value {
    json!({
        "id": node.id,
        "name": node.name,
        "hostname": node.hostname,
        "region": node.region,
        "country": node.country,
        "region_flag": node.region_flag,
        "status": node.status,
        "pro_only": node.pro_only,
    })
}
