//! Where a request comes from. Cookies know no ports, and names below one domain are one site for browsers, so what a page of
//! a tunnel sends could carry the cookie of somebody who is signed in.

use std::net::IpAddr;

use culvert_domain::error::{Code, Error, Result};
use salvo::Request;
use salvo::http::header::{HOST, ORIGIN};
use url::{Host, Url};

use crate::path::ENTER;

/// Where browsers reach the dashboard.
#[derive(Clone, Debug)]
pub struct Site {
    /// Scheme, host name and port (RFC 6454).
    pub origin: String,
    /// Host name and port, as the `Host` header has them.
    pub authority: String,
    pub is_https: bool,
    /// Whether it is this machine alone.
    pub is_loopback: bool,
}

impl Site {
    /// The URL of a link. The secret stands in its fragment, which no server sees.
    pub(crate) fn entrance(&self, secret: &str) -> String {
        format!("{}{ENTER}#{secret}", self.origin)
    }

    /// The site of the dashboard's URL. None if it is no URL.
    pub fn of(url: &str) -> Option<Self> {
        let url = Url::parse(url).ok()?;
        let host = url.host()?;
        let is_loopback = match host {
            Host::Domain(name) => name == "localhost" || name.ends_with(".localhost"),
            Host::Ipv4(address) => address.is_loopback(),
            Host::Ipv6(address) => address.is_loopback(),
        };
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_string(),
        };
        Some(Self {
            origin: url.origin().ascii_serialization(),
            authority,
            is_https: url.scheme() == "https",
            is_loopback,
        })
    }

    /// Whether people may sign in here: their passwords cross no network in the clear.
    pub fn is_private(&self) -> bool {
        self.is_https || self.is_loopback
    }

    /// Whether a request asks for this site by its own name, as DNS rebinding would not.
    pub(crate) fn is_named_by(&self, req: &Request) -> bool {
        host(req).is_some_and(|host| host.eq_ignore_ascii_case(&self.authority))
    }

    /// Whether a request asks for the listener by its own loopback address, as somebody at this machine would.
    pub(crate) fn is_asked_by_address(req: &Request) -> bool {
        let by_address = host(req).and_then(|host| Url::parse(&format!("http://{host}")).ok());
        let address = by_address.and_then(|url| match url.host()? {
            Host::Ipv4(address) => Some(IpAddr::from(address)),
            Host::Ipv6(address) => Some(IpAddr::from(address)),
            Host::Domain(_) => None,
        });
        address.is_some_and(|address| address.is_loopback())
    }

    /// Refuses a change that does not come from one of our own pages.
    ///
    /// # Errors
    ///
    /// `cross_origin_request` unless `Sec-Fetch-Site` is `same-origin`, or, where a browser sends none, `Origin` is ours.
    pub(crate) fn check(&self, req: &Request) -> Result<()> {
        let header = |name: &str| {
            let mut all = req.headers().get_all(name).iter();
            let first = all.next().map(|value| value.to_str().unwrap_or_default().to_owned());
            if all.next().is_some() { Some(String::new()) } else { first }
        };
        let is_ours = match (header("sec-fetch-site"), header(ORIGIN.as_str())) {
            (Some(site), _) => site == "same-origin",
            (None, Some(origin)) => origin == self.origin,
            (None, None) => false,
        };
        if is_ours { Ok(()) } else { Err(Error::of(Code::CrossOriginRequest)) }
    }
}

fn host(req: &Request) -> Option<String> {
    let named = req.headers().get(HOST).and_then(|host| host.to_str().ok()).map(String::from);
    named.or_else(|| req.uri().authority().map(|authority| authority.as_str().to_owned()))
}
