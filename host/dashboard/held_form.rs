//! A form that was sent when somebody had first to prove who they are: it goes along with that question, sealed and without
//! secrets, and is shown filled in when it is answered.

use culvert_domain::error::{Code, Result};
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::actions;
use crate::answer::Answer;
use crate::form::Form;
use crate::handler::caller;
use crate::view::field;
use crate::visit::{Refused, Visit};
use crate::{ROOT, pages};

const FIELD: &str = "held_form";
/// Bytes of a form that goes along. A larger one is to be filled in once more.
const LARGEST: usize = 64 * 1024;

#[derive(Serialize, Deserialize)]
struct HeldForm {
    /// Where it was sent.
    path: String,
    form: Form,
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
    html! { @if let Some(sealed) = sealed.filter(|sealed| sealed.len() <= LARGEST) { (field::hidden(FIELD, &sealed)) } }
}

/// Shows the form that went along, in the place of the answer to who has proved who they are. The answer itself if none did, or if
/// it took too long.
pub(crate) async fn shown_again(mut visit: Visit, form: &Form, answer: Answer) -> Result<Answer> {
    let Some(sealed) = form.find(FIELD) else { return Ok(answer) };
    let sign_ins = &visit.dashboard.sign_ins;
    let Ok(HeldForm { path, form }) = sign_ins.open_form(visit.service(), &visit.sign_in, sealed) else {
        return Ok(answer);
    };
    let below = path.strip_prefix(ROOT).unwrap_or_default().trim_start_matches('/').to_owned();
    let Some((act, named)) = actions::find(&below) else { return Ok(answer) };
    let Some(present) = sign_ins.present(visit.service(), &visit.sign_in).await? else { return Ok(answer) };
    visit.caller = caller(&visit.dashboard, &present, named.scope.as_deref()).await?;
    (visit.sign_in, visit.ids, visit.path, visit.held) = (present, named.ids, path, Some(form));
    visit.path = visit.path_of(act.page);
    let Some(page) = pages::by_pattern(act.page) else { return Ok(answer) };
    let page = (page.view)(&visit).await?;
    Ok(answer.showing(page))
}
