//! `culvert node …`

use clap::Subcommand;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{CliError, operator, print, refused, table};
use crate::cli::Output;
use crate::config::Config;
use culvert_domain::node::{self, NodeStatus};
use culvert_service::catalog;

#[derive(Subcommand)]
pub(super) enum Node {
    /// List nodes
    List,
    /// Change what clients see of a node
    Set {
        node: Uuid,
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
}

impl Node {
    pub(super) async fn run(self, config: &Config, output: Output) -> Result<(), CliError> {
        let store = operator::store(config).await?;
        let nodes = store.nodes().await?;
        let Self::Set { node, name, region, country, flag, status, pro_only } = self else {
            list(output, &nodes);
            return Ok(());
        };
        let mut found = nodes
            .into_iter()
            .find(|known| known.id == node)
            .ok_or_else(|| refused(format!("there is no node {node}")))?;
        if let Some(name) = name {
            operator::check_name("--name", &name)?;
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

fn list(output: Output, nodes: &[node::Node]) {
    let value = json!({"data": nodes.iter().map(record).collect::<Vec<_>>()});
    print(output, &value, || {
        let mut rows = vec![["NODE", "NAME", "HOST", "REGION", "COUNTRY", "STATUS", "PORTS"].map(String::from).into()];
        rows.extend(nodes.iter().map(|node| {
            let node::Node { id, name, hostname, region, country, status, ports, .. } = node.clone();
            vec![id.to_string(), name, hostname, region, country, status.to_string(), ports.to_string()]
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
