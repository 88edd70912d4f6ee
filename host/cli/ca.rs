//! `culvert ca …`

use clap::Subcommand;
use culvert_certificates::local_ca::{LocalCa, Root};
use culvert_wire::clock::Clock;
use serde_json::{Value, json};

use super::{CliError, print, refused};
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
    pub(super) fn run(&self, config: &Config, output: Output) -> Result<(), CliError> {
        let Self::Show { pem, path } = self;
        let domains: Vec<&String> = config.nodes().into_iter().filter_map(|(_, node)| node.domain.as_ref()).collect();
        if domains.is_empty() {
            return Err(refused("no node has a domain; set node.domain"));
        }
        let ca = LocalCa::new(config.ca_dir(), Clock::system());
        let root = |domain: &String| Ok((domain.clone(), ca.root(domain).map_err(refused)?));
        let roots: Vec<(String, Root)> = domains.into_iter().map(root).collect::<Result<_, CliError>>()?;
        let shown: Vec<Value> = roots.iter().map(|(domain, root)| as_json(domain, root)).collect();
        print(output, &json!({ "roots": shown }), || {
            let texts = roots.iter().map(|(domain, root)| {
                if *pem {
                    root.pem.trim_end().to_owned()
                } else if *path {
                    root.path.display().to_string()
                } else {
                    text(domain, root)
                }
            });
            texts.collect::<Vec<_>>().join("\n")
        });
        Ok(())
    }
}

fn as_json(domain: &str, root: &Root) -> Value {
    json!({
        "domain": domain,
        "path": root.path,
        "sha256": root.fingerprint,
        "not_after": root.not_after,
        "pem": root.pem,
    })
}

fn text(domain: &str, root: &Root) -> String {
    format!(
        "{domain}\n  file       {}\n  SHA-256    {}\n  not after  {}",
        root.path.display(),
        root.fingerprint,
        root.not_after.format("%Y-%m-%d")
    )
}
