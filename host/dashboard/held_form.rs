//! A form that was sent when somebody had first to prove who they are: it goes along with that question, sealed and without
//! secrets, and is shown filled in when it is answered.

use culvert_domain::error::Code;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::form::Form;
use crate::view::field;
use crate::visit::{Refused, Visit};

const FIELD: &str = "held_form";
/// Bytes of a form that goes along. A larger one is to be filled in once more.
const LARGEST: usize = 64 * 1024;

#[derive(Serialize, Deserialize)]
pub(crate) struct HeldForm {
    /// Where it was sent.
    pub path: String,
    pub form: Form,
}

impl HeldForm {
    /// The form that came back with the answer. None if none did, if it took too long, or if it is another sign-in's.
    pub(crate) fn of(visit: &Visit, answer: &Form) -> Option<Self> {
        let sealed = answer.find(FIELD)?;
        visit.dashboard.sign_ins.open_form(visit.service(), &visit.sign_in, sealed).ok()
    }
}

/// The field of the question that holds the form which was refused.
pub(crate) fn field(visit: &Visit) -> Markup {
    let held = visit.refused.as_ref().filter(|refused| refused.error.code == Code::ElevationRequired);
    // A button is pressed once more.
    let held = held.filter(|refused| refused.form.names().next().is_some());
    let sealed = held.and_then(|Refused { form, path, .. }| {
        let held = HeldForm { path: path.clone(), form: form.clone() };
        visit.dashboard.sign_ins.seal_form(visit.service(), &visit.sign_in, &held).ok()
    });
    // A proof that failed is asked for once more, and what went along with it goes along again.
    let sealed = sealed.filter(|sealed| sealed.len() <= LARGEST).or_else(|| visit.typed(FIELD).map(str::to_owned));
    html! { @if let Some(sealed) = sealed { (field::hidden(FIELD, &sealed)) } }
}
