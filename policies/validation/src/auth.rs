//! HTTP basic auth in front of an http tunnel (RFC 7617).

use crate::exports::culvert::policy::inputs::Protocol;
use crate::findings::Findings;
use crate::text::is_text;

/// What a request says of basic auth, beside what holds already.
pub struct BasicAuth<'a> {
    /// None, where it is malformed.
    pub protocol: Option<Protocol>,
    /// As it will be after the request.
    pub enabled: bool,
    /// As given by the request.
    pub username: Option<&'a str>,
    pub password: Option<&'a str>,
    /// Whether there will be one after the request.
    pub has_username: bool,
    pub has_password: bool,
}

const ENABLED: &str = "http_basic_auth_enabled";
const USERNAME: &str = "http_basic_auth_username";
const PASSWORD: &str = "http_basic_auth_password";

impl BasicAuth<'_> {
    pub fn check(&self, findings: &mut Findings) {
        match self.protocol {
            Some(Protocol::Http) => self.complete(findings),
            Some(_) => self.absent(findings),
            None => {}
        }
        let user = self.username.is_none_or(|user| is_text(user, 1, 64) && !user.contains(':'));
        findings.check(user, USERNAME, "basic-auth-user", "must have 1 to 64 characters without a colon");
        let password = self.password.is_none_or(|password| is_text(password, 8, 128));
        findings.check(password, PASSWORD, "basic-auth-password", "must have 8 to 128 characters");
    }

    fn complete(&self, findings: &mut Findings) {
        let rule = "basic-auth-incomplete";
        let message = "is required while basic auth is enabled";
        findings.check(!self.enabled || self.has_username, USERNAME, rule, message);
        findings.check(!self.enabled || self.has_password, PASSWORD, rule, message);
    }

    fn absent(&self, findings: &mut Findings) {
        let message = "is for http tunnels only";
        findings.check(!self.enabled, ENABLED, "http-only", message);
        findings.check(self.username.is_none(), USERNAME, "http-only", message);
        findings.check(self.password.is_none(), PASSWORD, "http-only", message);
    }
}
