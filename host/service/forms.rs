//! The keys of the dashboard's forms. A key proves that the form is ours, for one sign-in and one path, and makes what the
//! form does happen once: it is the Idempotency-Key as well.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta};
use uuid::Uuid;

use crate::Service;
use crate::secrets::Purpose;

/// How old a form may be: less than a stored response lives.
const FORM_LIFETIME: TimeDelta = TimeDelta::hours(12);

/// Whose form it is, and where it leads. Before anybody has signed in, the sign-in is nil.
#[derive(Clone, Copy, Debug)]
pub struct FormId<'a> {
    pub sign_in: Uuid,
    pub path: &'a str,
}

impl FormId<'_> {
    /// What the MAC covers.
    fn statement(&self, key: Uuid) -> Vec<u8> {
        [self.sign_in.as_bytes(), key.as_bytes(), self.path.as_bytes()].concat()
    }
}

impl Service {
    /// A new key of a form.
    pub fn form_key(&self, form: FormId<'_>) -> String {
        let key = self.clock().id();
        let mac = self.secrets.mac(Purpose::Forms, &form.statement(key));
        URL_SAFE_NO_PAD.encode([key.as_bytes(), &mac[..]].concat())
    }

    /// The id of a form's key; `None` if it is another form's, or too old.
    pub fn open_form_key(&self, form: FormId<'_>, key: &str) -> Option<Uuid> {
        let bytes = URL_SAFE_NO_PAD.decode(key).ok()?;
        let (key, mac) = bytes.split_first_chunk::<16>()?;
        let key = Uuid::from_bytes(*key);
        if !self.secrets.verify_mac(Purpose::Forms, &form.statement(key), mac) {
            return None;
        }
        let (seconds, _) = key.get_timestamp()?.to_unix();
        let made = DateTime::from_timestamp(i64::try_from(seconds).ok()?, 0)?;
        (self.clock().now() - made < FORM_LIFETIME).then_some(key)
    }
}
