//! The dashboard and the documentation, and whether the API, the dashboard and the tunnels are of one site for browsers, which then share cookies.

use std::net::IpAddr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use culvert_dashboard::docs::Docs;
use culvert_dashboard::{ApiRequests, CountryDatabase, Dashboard, SignInProvider, Site};
use culvert_domain::access::Country;
use culvert_domain::error::Chain;
use culvert_http::openapi;
use culvert_node::countries::Countries;
use culvert_policy::serve::generations::Generations;
use culvert_service::Service;
use culvert_service::connected_agents::ConnectedAgents;
use culvert_service::mails::Mails;
use culvert_service::refusals::Refusals;
use culvert_service::scope_changes::ScopeChanges;
use culvert_service::sign_ins::SignIns;
use culvert_store::Store;
use culvert_wire::clock::Clock;
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::config::{Config, ConfigError, OidcConfig};
use crate::{policies, policy_plan};

type Reload = BoxFuture<'static, Result<u64, String>>;

/// What the dashboard shows.
pub(crate) struct Shown<'a> {
    pub service: &'a Arc<Service>,
    pub policies: &'a Arc<Generations>,
    pub refusals: Arc<Refusals>,
    pub changes: Arc<ScopeChanges>,
    pub countries: Arc<Countries>,
    pub agents: Arc<ConnectedAgents>,
}

/// The documentation, and the dashboard unless it is turned off.
pub(crate) fn pages(config: &Config, shown: Shown<'_>) -> (Arc<Docs>, Option<Arc<Dashboard>>) {
    let docs = docs(config, shown.service);
    let dashboard = dashboard(config, shown, &docs.openapi);
    (Arc::new(docs), dashboard.map(Arc::new))
}

fn dashboard(config: &Config, shown: Shown<'_>, openapi: &Value) -> Option<Dashboard> {
    let Shown { service, policies, refusals, changes, countries, agents } = shown;
    // The URL was checked with the settings.
    let site = Site::of(&config.dashboard_url()).filter(|_| config.dashboard.enabled)?;
    Some(Dashboard {
        service: service.clone(),
        sign_ins: SignIns::new(
            service.clock().clone(),
            config.dashboard.lifetimes(),
            config.dashboard.sign_up,
            &site.origin,
        ),
        refusals,
        changes,
        streams: Arc::default(),
        exports: Arc::default(),
        providers: providers(config, &site, service.clock()),
        mails: Arc::new(Mails::new(config.mail.smtp_url.is_some())),
        requests: ApiRequests::of(openapi),
        countries: Box::new(NodeCountries(countries)),
        agents,
        warnings: shared_names(config),
        site,
        require_second_factor: config.dashboard.require_second_factor,
        public_url: config.public_url(),
        docs_url: config.docs_url(),
        trusted_proxies: config.trusted_proxies.clone(),
        reload_policies: reload(config, service),
        plan_policies: policy_plan::planner(config, service, policies),
        status_of: culvert_http::problem::status,
    })
}

/// The providers at which people sign in.
fn providers(config: &Config, site: &Site, clock: &Clock) -> Vec<SignInProvider> {
    let provider = |oidc: &OidcConfig| {
        let settings = culvert_oidc::Settings {
            issuer: oidc.issuer.clone(),
            client_id: oidc.client_id.clone(),
            client_secret: oidc.secret()?,
            redirect_uri: format!("{}{}/{}", site.origin, culvert_dashboard::ROOT, culvert_dashboard::OIDC_CALLBACK),
        };
        let provider = culvert_oidc::Provider::new(settings, clock.clone())?;
        Ok::<_, String>(SignInProvider { name: oidc.name.trim().to_owned(), trust_email: oidc.trust_email, provider })
    };
    let made = config.dashboard.oidc.iter().filter_map(|oidc| match provider(oidc) {
        Ok(provider) => Some(provider),
        Err(problem) => {
            tracing::error!(name = oidc.name, problem, "nobody can sign in at this provider");
            None
        }
    });
    made.collect()
}

/// The country database, as the dashboard uses it.
struct NodeCountries(Arc<Countries>);

impl CountryDatabase for NodeCountries {
    fn of(&self, address: IpAddr) -> Option<Country> {
        self.0.of(address)
    }

    fn built_at(&self) -> Option<DateTime<Utc>> {
        self.0.built_at()
    }
}

/// The documentation, which is served whether there is a dashboard or not.
fn docs(config: &Config, service: &Arc<Service>) -> Docs {
    let public_url = config.public_url();
    Docs {
        service: service.clone(),
        openapi: openapi::document(&public_url, &config.docs_url()),
        openapi_path: openapi::PATH,
        start_page: if config.dashboard.enabled { culvert_dashboard::ROOT } else { "/docs" },
        is_https: public_url.starts_with("https://"),
        status_of: culvert_http::problem::status,
    }
}

/// Reloads policies in a task of its own, so that a reload completes even if the browser disconnects.
fn reload(config: &Config, service: &Arc<Service>) -> Box<dyn Fn() -> Reload + Send + Sync> {
    let (file, service) = (config.file.clone(), service.clone());
    Box::new(move || {
        let (file, service) = (file.clone(), service.clone());
        let reload = tokio::spawn(async move { policies::reload(&service, file.as_deref()).await });
        Box::pin(async move { reload.await.map_err(|panic| panic.to_string())?.map_err(|problem| problem.to_string()) })
    })
}

/// Refuses a dashboard whose host name tunnels are served under: their pages would get the cookies of people who are signed
/// in. It looks at the settings of this host, and at the nodes and domains that the database knows.
///
/// # Errors
///
/// The setting, and the name that is the same; if the database fails.
pub(crate) async fn check_dashboard(config: &Config, store: &Store) -> Result<(), ConfigError> {
    let host = normalised(&config.dashboard_host());
    let shared = |what: &str| {
        let problem = format!(
            "must not be a name that tunnels are served under ({what}); give it another name, or set dashboard.enabled \
             to false"
        );
        Err(ConfigError::new("dashboard.url", problem))
    };
    for (setting, node) in config.nodes() {
        if host == normalised(&node.hostname) {
            return shared(&format!("{setting}.hostname is the same"));
        }
        if node.domain.as_ref().is_some_and(|domain| is_below(&host, &normalised(domain))) {
            return shared(&format!("{setting}.domain leads there"));
        }
    }
    let database = |e| ConfigError::new("database_url", Chain(&e));
    if store.nodes().await.map_err(database)?.iter().any(|node| host == normalised(&node.hostname)) {
        return shared("a node has the same name");
    }
    let domains = store.platform_domains().await.map_err(database)?;
    if store.has_custom_domain(&host).await.map_err(database)? {
        return shared("it is the custom domain of a tunnel");
    }
    match domains.iter().find(|known| is_below(&host, &normalised(&known.domain))) {
        Some(known) => shared(&format!("the platform domain {} leads there", known.domain)),
        None => Ok(()),
    }
}

/// Warns of names that the API, the dashboard and tunnels share.
pub(crate) fn warn_if_shared(config: &Config) {
    shared_names(config).iter().for_each(|warning| tracing::warn!("{warning}"));
}

/// Where a tunnel's page could set cookies for the API's host or the dashboard's, or read those that it has set: cookies know
/// no ports, and go to all names below the one that they are for (RFC 6265, section 5.1.3). A page may also set them for any
/// name that its own is below, up to the registrable domain (section 5.3, step 5).
fn shared_names(config: &Config) -> Vec<String> {
    let mut hosts = vec![("public_url", config.public_host()), ("dashboard.url", config.dashboard_host())];
    hosts.dedup_by(|second, first| second.1 == first.1);
    let mut warnings = Vec::new();
    for (setting, node) in config.nodes() {
        for (of, host) in &hosts {
            let names = [Some(&node.hostname), node.domain.as_ref()];
            if *host == node.hostname || node.domain.as_ref().is_some_and(|domain| is_below(host, domain)) {
                warnings.push(format!(
                    "{of} ({host}) shares its host name with the tunnels of {setting}, and so its cookies; give it another"
                ));
            } else if let Some(site) = names.into_iter().flatten().find_map(|name| common_site(host, name)) {
                warnings.push(format!(
                    "{of} ({host}) and the tunnels of {setting} are below one registrable domain ({site}), for which pages \
                     of tunnels can set cookies; give tunnels a domain of their own"
                ));
            }
        }
    }
    warnings
}

/// A host name in one spelling: names have no case, and may end with a dot.
fn normalised(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether a name is a domain or below it.
fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// The registrable domain that two names share, by the public suffix list.
fn common_site<'a>(one: &'a str, other: &str) -> Option<&'a str> {
    if one.parse::<IpAddr>().is_ok() {
        return None;
    }
    let site = psl::domain_str(one)?;
    (psl::domain_str(other) == Some(site)).then_some(site)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrable_domain_is_found_by_the_public_suffix_list() {
        assert_eq!(common_site("api.example.co.uk", "t.example.co.uk"), Some("example.co.uk"));
        assert_eq!(common_site("api.example.com", "tunnels.example.com"), Some("example.com"));
        for (one, other) in [
            ("one.co.uk", "two.co.uk"),
            ("one.github.io", "two.github.io"),
            ("localhost", "tunnel.localhost"),
            ("127.0.0.1", "10.0.0.1"),
        ] {
            assert_eq!(common_site(one, other), None, "{one} {other}");
        }
    }
}
