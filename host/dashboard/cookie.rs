//! The cookie of a sign-in (RFC 6265). Tunnels of the same host name would get it, so the dashboard's name is its own.

use chrono::{DateTime, Utc};
use culvert_service::links::SECRET_CHARACTERS;
use salvo::Request;
use salvo::http::header::COOKIE;

use crate::Site;

/// `__Host-` has browsers refuse a cookie that another name or a page without TLS sets.
fn name(site: &Site) -> &'static str {
    if site.is_https { "__Host-culvert" } else { "culvert_local" }
}

/// The name of what a browser keeps while it is at another provider.
fn login_name(site: &Site) -> &'static str {
    if site.is_https { "__Host-culvert-oidc" } else { "culvert_local_oidc" }
}

/// Characters of what a browser keeps while it is at another provider, at most.
const LOGIN_CHARACTERS: usize = 2048;

/// The value that a request brings.
pub(crate) fn value(req: &Request, site: &Site) -> Option<String> {
    named(req, name(site)).filter(|value| value.len() == SECRET_CHARACTERS)
}

/// What a browser has kept while it was at another provider.
pub(crate) fn login(req: &Request, site: &Site) -> Option<String> {
    named(req, login_name(site)).filter(|value| value.len() <= LOGIN_CHARACTERS)
}

/// None if a request brings two, of which one may be planted.
fn named(req: &Request, name: &str) -> Option<String> {
    let headers = req.headers().get_all(COOKIE).iter().filter_map(|header| header.to_str().ok());
    let pairs = headers.flat_map(|header| header.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut values = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value);
    let value = values.next()?;
    values.next().is_none().then(|| value.to_owned())
}

pub(crate) fn set(site: &Site, value: &str, expires_at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let seconds = (expires_at - now).num_seconds().max(0);
    format!("{}={value}; Max-Age={seconds}; {}", name(site), attributes(site))
}

pub(crate) fn clear(site: &Site) -> String {
    format!("{}=; Max-Age=0; {}", name(site), attributes(site))
}

/// For ten minutes.
pub(crate) fn set_login(site: &Site, value: &str) -> String {
    format!("{}={value}; Max-Age=600; {}", login_name(site), attributes(site))
}

pub(crate) fn clear_login(site: &Site) -> String {
    format!("{}=; Max-Age=0; {}", login_name(site), attributes(site))
}

fn attributes(site: &Site) -> &'static str {
    if site.is_https { "Path=/; HttpOnly; SameSite=Lax; Secure" } else { "Path=/; HttpOnly; SameSite=Lax" }
}
