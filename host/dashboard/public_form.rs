//! Forms that nobody has to be signed in for.

use culvert_domain::error::{Code, Error, Result};
use culvert_service::forms::FormId;
use culvert_service::sign_ins::SignInValue;
use maud::Markup;
use uuid::Uuid;

use crate::answer::Answer;
use crate::form::{Form, KEY};
use crate::{Dashboard, ROOT, cookie};

/// The answer to a sign-in that has begun, or has another value.
pub(crate) fn signed_in(dashboard: &Dashboard, value: &SignInValue, next: &str) -> Answer {
    let now = dashboard.service.clock().now();
    let cookie = cookie::set(&dashboard.site, &value.value, value.expires_at, now);
    Answer::see_other(next).with_cookie(&cookie)
}

/// The answer to a change of credentials, with which a sign-in has another value; none if it was made before.
pub(crate) fn credentials_changed(dashboard: &Dashboard, value: Option<&SignInValue>) -> Answer {
    let account = format!("{ROOT}/account");
    value.map_or_else(|| Answer::see_other(&account), |value| signed_in(dashboard, value, &account))
}

/// Checks that a form is ours, by its path and its key.
pub(crate) fn check(dashboard: &Dashboard, form: &Form, path: &str) -> Result<()> {
    let id = FormId { sign_in: Uuid::nil(), path };
    dashboard.service.open_form_key(id, form.get(KEY)).map(drop).ok_or_else(|| Error::of(Code::FormExpired))
}

pub(crate) fn refused(dashboard: &Dashboard, error: &Error, page: Markup) -> Answer {
    Answer::page((dashboard.status_of)(&error.code), page).retry_after(error.retry_after)
}

pub(crate) fn form_key(dashboard: &Dashboard, path: &str) -> String {
    dashboard.service.form_key(FormId { sign_in: Uuid::nil(), path })
}
