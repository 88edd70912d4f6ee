//! The URLs under which the host is reached.

use std::net::{Ipv4Addr, Ipv6Addr};

use culvert_wire::server_url::server_url;

use super::{Config, ConfigError, dashboard};

impl Config {
    pub(super) fn check_urls(&self) -> Result<(), ConfigError> {
        for (setting, url) in [("public_url", &self.public_url), ("docs_url", &self.docs_url)] {
            let fits =
                |url: &String| reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
            if url.as_ref().is_some_and(|url| !fits(url)) {
                return Err(ConfigError::new(setting, "must be an http:// or https:// URL"));
            }
        }
        if let Some(url) = &self.agent_url {
            server_url(url).map_err(|problem| ConfigError::new("agent_url", problem))?;
        }
        Ok(())
    }

    /// Without a slash at its end.
    pub fn public_url(&self) -> String {
        let url = self.public_url.clone().unwrap_or_else(|| format!("http://{}", self.local_name()));
        url.trim_end_matches('/').into()
    }

    /// Where agents look for this host: `public_url`, unless it has a URL of its own; none where the operator has named
    /// neither.
    pub fn agent_url(&self) -> Option<String> {
        // A `public_url` in the clear, but on this machine, is none that anybody can have enrolled with.
        self.agent_url.as_ref().or(self.public_url.as_ref()).and_then(|url| server_url(url).ok())
    }

    /// `listen`, with the name `localhost` where that leads there. Cookies know no ports, so the API has another name than
    /// the node.
    fn local_name(&self) -> String {
        let ip = self.listen.ip();
        let is_local = ip.is_unspecified() || ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST;
        if is_local { format!("localhost:{}", self.listen.port()) } else { self.listen.to_string() }
    }

    /// The host name of `public_url`.
    pub fn public_host(&self) -> String {
        host_of(&self.public_url())
    }

    pub fn dashboard_url(&self) -> String {
        self.dashboard.url.clone().unwrap_or_else(|| format!("{}{}", self.public_url(), dashboard::PATH))
    }

    /// The host name of the dashboard.
    pub fn dashboard_host(&self) -> String {
        host_of(&self.dashboard_url())
    }

    /// Without a slash at its end.
    pub fn docs_url(&self) -> String {
        let url = self.docs_url.clone().unwrap_or_else(|| format!("{}/docs", self.public_url()));
        url.trim_end_matches('/').into()
    }
}

fn host_of(url: &str) -> String {
    let url = reqwest::Url::parse(url).ok();
    url.and_then(|url| url.host_str().map(String::from)).unwrap_or_default()
}
