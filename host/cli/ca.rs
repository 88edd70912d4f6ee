//! `culvert ca …`

use std::collections::BTreeSet;
use std::path::Path;

use clap::Subcommand;
use culvert_certificates::local_ca::Root;
use culvert_service::local_roots::LocalRoots;
use serde_json::{Value, json};

use super::{CliError, operator, print, refused};
use crate::cli::Output;
use crate::config::Config;

#[derive(Subcommand)]
pub(super) enum Ca {
    /// Show the root certificates of the local authority, one for each node.domain
    ///
    /// A browser or curl that trusts it accepts the certificates of the names below this domain, and of no others.
    #[command(after_help = "Examples:\n  \
        curl --cacert $(culvert ca show --path) https://hello.tunnel.localhost:8443\n  \
        culvert ca show --pem > root.pem")]
    Show {
        /// Print the certificates alone, as PEM
        #[arg(long, conflicts_with = "path")]
        pem: bool,
        /// Print the names of their files alone
        #[arg(long)]
        path: bool,
    },
}

impl Ca {
    pub(super) async fn run(&self, config: &Config, output: Output) -> Result<(), CliError> {
        let Self::Show { pem, path } = self;
        let domains = config.domains();
        if domains.is_empty() {
            return Err(refused("no node has a domain; set node.domain"));
        }
        let (store, secrets) = operator::store_and_secrets(config).await?;
        let local_roots = LocalRoots::new(config.ca_dir(), domains.clone());
        // Those of the nodes of other hosts as well.
        let known = store.local_roots().await?.into_iter().map(|root| root.domain);
        let mut roots = Vec::new();
        for domain in known.chain(domains).collect::<BTreeSet<_>>() {
            let root = local_roots.root(&store, &secrets, &domain).await?;
            roots.push((local_roots.path(&domain), domain, root));
        }
        let shown: Vec<Value> = roots.iter().map(|(path, domain, root)| as_json(path, domain, root)).collect();
        print(output, &json!({ "roots": shown }), || {
            let texts = roots.iter().map(|(file, domain, root)| {
                if *pem {
                    root.pem.trim_end().to_owned()
                } else if *path {
                    file.display().to_string()
                } else {
                    text(file, domain, root)
                }
            });
            texts.collect::<Vec<_>>().join("\n")
        });
        Ok(())
    }
}

fn as_json(path: &Path, domain: &str, root: &Root) -> Value {
    json!({
        "domain": domain,
        "path": path,
        "sha256": root.fingerprint,
        "not_after": root.not_after,
        "pem": root.pem,
    })
}

fn text(path: &Path, domain: &str, root: &Root) -> String {
    format!(
        "{domain}\n  file       {}\n  SHA-256    {}\n  not after  {}",
        path.display(),
        root.fingerprint,
        root.not_after.format("%Y-%m-%d")
    )
}
