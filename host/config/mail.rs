//! Settings of the mail that the host sends.

use culvert_service::jobs::mail::MailWorker;
use culvert_wire::loopback::is_loopback;
use serde::{Deserialize, Serialize};

use super::ConfigError;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MailConfig {
    /// The server that takes mail: `smtps://user:password@host`, or `smtp://user:password@host?tls=required` (STARTTLS). Without
    /// TLS on this machine alone. The password belongs in the environment: `CULVERT_MAIL__SMTP_URL`. No mail is sent without it.
    pub smtp_url: Option<String>,
    /// The sender, such as `Culvert <culvert@example.com>`; required with `smtp_url`.
    pub from: Option<String>,
}

impl MailConfig {
    /// What sends mail.
    ///
    /// # Errors
    ///
    /// The setting that is wrong.
    pub fn worker(&self) -> Result<MailWorker, ConfigError> {
        let (url, from) = match (&self.smtp_url, &self.from) {
            (None, None) => return Ok(MailWorker::off()),
            (Some(url), Some(from)) => (url, from),
            (None, Some(_)) => return Err(ConfigError::new("mail.smtp_url", "must be set with mail.from")),
            (Some(_), None) => return Err(ConfigError::new("mail.from", "must be set with mail.smtp_url")),
        };
        if !is_private(url) {
            let problem = "must be smtps://user:password@host or smtp://user:password@host?tls=required; without TLS the host \
                           must be a loopback address";
            return Err(ConfigError::new("mail.smtp_url", problem));
        }
        MailWorker::open(url, from).map_err(|(setting, problem)| ConfigError::new(&format!("mail.{setting}"), problem))
    }
}

/// Whether nobody on the network reads what is sent.
fn is_private(url: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(url) else { return false };
    let tls = url.query_pairs().find(|(name, _)| name == "tls").map(|(_, value)| value.into_owned());
    match (url.scheme(), tls.as_deref()) {
        ("smtps", None) | ("smtp", Some("required")) => url.host_str().is_some(),
        ("smtp", None) => url.host_str().is_some_and(is_loopback),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: Option<&str>, from: Option<&str>) -> Option<String> {
        let config = MailConfig { smtp_url: url.map(Into::into), from: from.map(Into::into) };
        config.worker().err().map(|error| error.to_string())
    }

    #[test]
    fn mail_goes_over_tls_or_stays_on_this_machine() {
        let from = Some("Culvert <culvert@example.com>");
        for url in [
            "smtps://u:p@mail.example.com",
            "smtp://u:p@mail.example.com:587?tls=required",
            "smtp://127.0.0.1:2525",
            "smtp://localhost",
            "smtp://[::1]:25",
        ] {
            assert_eq!(problem(Some(url), from), None, "{url}");
        }
        for url in
            ["smtp://mail.example.com", "smtp://h?tls=opportunistic", "http://h", "mail.example.com", "smtp://", ""]
        {
            assert!(problem(Some(url), from).is_some_and(|problem| problem.starts_with("mail.smtp_url: ")), "{url}");
        }
        assert_eq!(problem(None, None), None);
        assert_eq!(problem(None, from).as_deref(), Some("mail.smtp_url: must be set with mail.from"));
        let url = Some("smtp://localhost");
        assert_eq!(problem(url, None).as_deref(), Some("mail.from: must be set with mail.smtp_url"));
        assert!(problem(url, Some("nobody")).is_some_and(|problem| problem.starts_with("mail.from: ")));
    }
}
