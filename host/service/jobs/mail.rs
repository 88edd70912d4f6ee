//! The mail worker: sends what is due by SMTP, one after another, and tries again what the server did not take for now.

use std::sync::Arc;
use std::time::Duration;

use culvert_domain::error::{Chain, Result};
use culvert_store::mails::ClaimedMail;
use culvert_wire::clock::Moment;
use lettre::message::Mailbox;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::transport::smtp::Error as SmtpError;
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor};
use tokio::sync::Notify;
use tokio_util::future::FutureExt;

use super::Jobs;
use crate::mails::Content;
use crate::secrets::Purpose;

/// How long one command of the protocol may take, and a whole mail: less than the mail belongs to who has claimed it.
const STEP: Duration = Duration::from_secs(30);
const WHOLE: Duration = Duration::from_mins(2);
/// The wait after an error of the database.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked for mails of other hosts.
const LOOK_EVERY: Duration = Duration::from_mins(1);

/// Where mail is sent to, and by whom.
pub struct MailWorker {
    server: Option<Server>,
    woken: Notify,
}

struct Server {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
}

/// How an attempt ended.
enum Outcome {
    Sent,
    /// The server takes it later.
    Later(String),
    /// It is never taken.
    Never(String),
}

impl MailWorker {
    /// Sends no mail.
    pub fn off() -> Self {
        Self { server: None, woken: Notify::new() }
    }

    /// # Errors
    ///
    /// The setting that is wrong, and what is allowed.
    pub fn open(url: &str, from: &str) -> Result<Self, (&'static str, String)> {
        let transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(url)
            .map_err(|_| ("smtp_url", "must be smtps://user:password@host or smtp://…?tls=required".to_owned()))?;
        let from =
            from.parse().map_err(|_| ("from", "must be an address, such as Culvert <culvert@example.com>".into()))?;
        let server = Server { transport: transport.timeout(Some(STEP)).build(), from };
        Ok(Self { server: Some(server), woken: Notify::new() })
    }

    pub fn is_on(&self) -> bool {
        self.server.is_some()
    }

    /// Has the worker look for due mails.
    pub fn wake(&self) {
        self.woken.notify_one();
    }
}

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    let Some(server) = &jobs.mail.server else { return };
    loop {
        let next = send_due(&jobs, server).with_cancellation_token(&jobs.stop).await;
        let Some(next) = next else { return };
        let next = next.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "mails could not be looked for");
            jobs.clock.moment().plus(LOOK_AGAIN)
        });
        tokio::select! {
            biased;
            () = jobs.stop.cancelled() => return,
            () = jobs.mail.woken.notified() => {}
            () = jobs.clock.until(next) => {}
        }
    }
}

/// Sends what is due, and returns when to look again.
async fn send_due(jobs: &Jobs, server: &Server) -> Result<Moment> {
    let store = &jobs.service.store;
    while let Some(claimed) = store.claim_mail().await? {
        let (id, attempt) = (claimed.mail.id, claimed.attempt);
        let sent = jobs.clock.timeout(WHOLE, send(jobs, server, &claimed)).await;
        let outcome = match sent.unwrap_or_else(|_| Outcome::Later("the server takes too long".into())) {
            Outcome::Later(problem) if claimed.is_last() => Outcome::Never(problem),
            outcome => outcome,
        };
        match outcome {
            Outcome::Sent => {
                jobs.metrics.count_mail("sent");
                store.delete_mail(id).await?;
            }
            Outcome::Later(problem) => {
                tracing::warn!(%id, attempt, problem, "a mail could not be sent; it is tried again");
                jobs.metrics.count_mail("later");
                store.postpone_mail(&claimed).await?;
            }
            Outcome::Never(problem) => {
                tracing::error!(%id, attempt, problem, "a mail could not be sent; it is given up");
                jobs.metrics.count_mail("given_up");
                store.delete_mail(id).await?;
            }
        }
    }
    let latest = jobs.clock.moment().plus(LOOK_EVERY);
    Ok(store.next_mail().await?.map_or(latest, |next| jobs.clock.moment_of(next).min(latest)))
}

async fn send(jobs: &Jobs, server: &Server, claimed: &ClaimedMail) -> Outcome {
    let mail = &claimed.mail;
    if mail.expires_at <= jobs.clock.now() {
        return Outcome::Never("what it says is over".into());
    }
    let opened = jobs.service.secrets.open_sealed(Purpose::Mails, mail.id.as_bytes(), &mail.content);
    let Some(content) = opened.and_then(|content| serde_json::from_slice::<Content>(&content).ok()) else {
        return Outcome::Never("it was sealed with a key that secret_key_file does not have".into());
    };
    let message = match message(server, claimed, content, jobs.clock.now().into()) {
        Ok(message) => message,
        Err(problem) => return Outcome::Never(problem),
    };
    match server.transport.send(message).await {
        Ok(_) => Outcome::Sent,
        Err(error) if is_final(&error) => Outcome::Never(told(&error)),
        Err(error) => Outcome::Later(told(&error)),
    }
}

/// A mail in the format of RFC 5322. It says that no person has written it (RFC 3834, section 5).
fn message(
    server: &Server,
    claimed: &ClaimedMail,
    content: Content,
    at: std::time::SystemTime,
) -> Result<Message, String> {
    let to = claimed.mail.recipient.parse().map_err(|_| "mail cannot be sent to such an address".to_owned())?;
    let id = format!("<{}@{}>", claimed.mail.id, server.from.email.domain());
    let message = Message::builder().from(server.from.clone()).to(Mailbox::new(None, to)).subject(content.subject);
    let message = message.date(at).message_id(Some(id)).header(ContentType::TEXT_PLAIN).body(content.text);
    let mut message = message.map_err(|error| error.to_string())?;
    let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
    message.headers_mut().insert_raw(HeaderValue::new(automatic, "auto-generated".into()));
    Ok(message)
}

/// Whether the server will never take the mail, because of its recipient or its size (RFC 5321, section 4.2.3). What it says of
/// the session, such as a wrong password, is mended by the operator.
fn is_final(error: &SmtpError) -> bool {
    error.status().is_some_and(|code| matches!(u16::from(code), 550..=553 | 555 | 556))
}

fn told(error: &SmtpError) -> String {
    Chain(error).to_string()
}
