//! Settings of certificates: the local authority, and an ACME authority.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, NodeConfig};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificatesConfig {
    /// Folder for copies of the root certificates of the local authority, which signs the certificates of `node.domain`
    /// (default: `ca` in `data_dir`). It is readable by the host's user alone (0700).
    pub ca_dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcmeConfig {
    /// URL of the directory of an ACME authority, such as `https://acme-v02.api.letsencrypt.org/directory`. Whoever sets it
    /// accepts the authority's terms. Without one, certificates are signed by the local authority.
    pub directory: Option<String>,
    /// Where the authority reaches the operator: `mailto:` URLs.
    pub contact: Vec<String>,
    /// A PEM file with the authorities that the directory's own certificate is trusted by (default: those of the operating
    /// system). For authorities of one's own.
    pub root_certificates: Option<PathBuf>,
    /// How names of `node.domain` are proved in the DNS (DNS-01), so that it gets a wildcard: `builtin` or `command` (default:
    /// not at all; each tunnel's name gets a certificate).
    pub dns: Option<AcmeDns>,
    /// Address of the built-in DNS server, on UDP and TCP. The domain's zone delegates `_acme-challenge.<node.domain>` to it
    /// by an NS record.
    pub dns_listen: Option<SocketAddr>,
    /// A program that is run as `<program> set|clear <name> <value>`, for a TXT record. It has a minute, and ends with 0.
    pub dns_command: Option<PathBuf>,
    /// Orders in an hour; more wait.
    pub orders_per_hour: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcmeDns {
    Builtin,
    Command,
}

impl Default for AcmeConfig {
    fn default() -> Self {
        Self {
            directory: None,
            contact: Vec::new(),
            root_certificates: None,
            dns: None,
            dns_listen: None,
            dns_command: None,
            orders_per_hour: 20,
        }
    }
}

/// Where public authorities look for proofs: with TLS-ALPN-01 (RFC 8737, section 3), and HTTP-01 (RFC 8555, section 8.3).
const TLS_ALPN_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

impl AcmeConfig {
    /// Warns of settings with which a public authority issues less than expected.
    pub(crate) fn warn(&self, node: &NodeConfig) {
        if self.directory.is_none() {
            return;
        }
        // An authority of the operator's own may look elsewhere.
        let is_reached = node.public_https_port() == Some(TLS_ALPN_PORT) || node.public_http_port() == Some(HTTP_PORT);
        if self.root_certificates.is_none() && !is_reached {
            tracing::warn!(
                "acme.directory is set, but visitors come neither to port 443 (node.https_listen, node.https_port) nor to \
                 port 80 (node.http_listen, node.http_port), where an authority looks: it will issue nothing for custom domains"
            );
        }
        if self.dns.is_none() && node.domain.is_some() {
            tracing::warn!(
                "acme.dns is not set: each tunnel below node.domain needs a certificate of its own, and authorities limit \
                 those; with acme.dns, one wildcard serves all"
            );
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(directory) = &self.directory
            && !reqwest::Url::parse(directory).is_ok_and(|url| url.scheme() == "https")
        {
            return Err(ConfigError::new("acme.directory", "must be an https:// URL"));
        }
        if let Some(contact) = self.contact.iter().find(|contact| !contact.starts_with("mailto:")) {
            return Err(ConfigError::new("acme.contact", format!("`{contact}` must be a mailto: URL")));
        }
        if self.orders_per_hour == 0 {
            return Err(ConfigError::new("acme.orders_per_hour", "must be at least 1"));
        }
        let problem = match self.dns {
            Some(_) if self.directory.is_none() => "needs acme.directory",
            Some(AcmeDns::Builtin) if self.dns_listen.is_none() => "`builtin` needs acme.dns_listen",
            Some(AcmeDns::Command) if self.dns_command.is_none() => "`command` needs acme.dns_command",
            _ => return Ok(()),
        };
        Err(ConfigError::new("acme.dns", problem))
    }
}
