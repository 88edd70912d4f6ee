//! API keys, which are made and revoked here and never by the API.

use culvert_api_types::read::Body;
use culvert_domain::action::Action;
use culvert_domain::caller::ScopeKind;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::facts::Resource;
use culvert_domain::key::ApiKey;
use culvert_domain::permission::PermissionPreset;
use culvert_service::api_keys::{CreateKey, NewKey, WantedKey};
use maud::{Markup, html};
use salvo::http::StatusCode;
use serde_json::json;

use crate::account::asked_first;
use crate::answer::Answer;
use crate::form::KEY;
use crate::requests::Shown;
use crate::view::sample::quoted;
use crate::view::{badge, field, list, page, refusal, secret, time};
use crate::visit::{Posted, Visit};

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    let keys = visit.service().keys(&visit.caller, visit.page()).await?;
    let now = visit.service().clock().now();
    let may = visit.preview(Resource::Scope, &[Action::KeysCreate]).await?;
    let full = (!visit.service().has_room_for_key(&visit.caller).await?).then(|| Error::of(Code::KeyLimitReached));
    let team = match visit.caller.scope.kind {
        ScopeKind::Personal => String::new(),
        ScopeKind::Team => format!(" --team {}", visit.caller.scope.id),
    };
    let command = format!("culvert key create --account {}{team} --scopes read_only", quoted(&visit.sign_in.email));
    let content = html! {
        p {
            "A program sends its key with each request: " code { "Authorization: Bearer ctk_…" } ". "
            a href=(visit.dashboard.docs_url) { "What the API does" }
        }
        (new_key(visit, may.refusal(Action::KeysCreate).or(full.as_ref())))
        @if keys.rows.is_empty() { p.empty { "There are no keys yet." } } @else {
            div.scroll role="region" aria-label="Keys" tabindex="0" { table {
                thead { tr { th { "Name" } th { "Begins with" } th { "Of" } th { "Last used" } th { "Ends" } th {} } }
                tbody {
                    @for key in &keys.rows {
                        @let is_over = key.revoked_at.is_some() || key.expires_at.is_some_and(|at| at <= now);
                        tr {
                            td { @if key.name.is_empty() { "–" } @else { (key.name) } div.muted { (key.permissions.to_words()) } }
                            td { code { "ctk_" (key.public_id) "…" } }
                            td { (key.email) }
                            td { (time::maybe(key.last_used_at, "never")) }
                            td { (time::maybe(key.expires_at, "never")) }
                            td {
                                @if key.revoked_at.is_some() { (badge::plain("revoked")) }
                                @else if is_over { (badge::plain("ended")) }
                                @else { (field::button(visit, &visit.in_scope(&format!("/keys/{}/revoke", key.id)), "Revoke")) }
                            }
                        }
                    }
                }
            } }
            (list::more(visit.next(keys.next).as_deref()))
        }
        (visit.dashboard.requests.drawer(&[Shown::Command { title: "A new key", command }]))
    };
    Ok(page::signed_in(visit, "Keys", &content))
}

fn new_key(visit: &Visit, refused: Option<&Error>) -> Markup {
    let path = visit.in_scope("/keys");
    html! {
        section {
            h2 { "New key" }
            @if refused.is_none() && !visit.is_elevated() { (asked_first(visit, &path, "make a key")) } @else {
                (refusal::form_unless(refused, html! { form method="post" action=(path) {
                    (field::hidden(KEY, &visit.form_key(&path)))
                    (field::text(&field::Field { name: "name", label: "Name", required: true, value: visit.typed("name").unwrap_or_default(),
                        fault: visit.fault("name"), hint: Some("What it is for, such as “backup script”."), ..field::Field::default() }))
                    (field::select("scopes", "May", visit.typed("scopes").unwrap_or("read_only"), visit.fault("scopes"),
                        PermissionPreset::ALL.iter().map(|preset| (preset.id, format!("{}: {}", preset.name, preset.description)))))
                    (field::text(&field::Field { name: "days", label: "Ends after days", kind: "text", inputmode: Some("numeric"),
                        value: visit.typed("days").unwrap_or("90"), fault: visit.fault("days"),
                        hint: Some("Empty: it lasts until it is revoked."), ..field::Field::default() }))
                    button type="submit" { "Make key" }
                } }))
            }
        }
    }
}

pub(crate) async fn create(visit: &Visit, posted: Posted) -> Result<Answer> {
    let field = |name| posted.form.get(name).to_owned();
    let draft = WantedKey { name: field("name"), scopes: field("scopes"), days: field("days") };
    let body = Body::from(draft);
    let key = ApiKey::generate(visit.service().clock());
    let change = |definition| CreateKey { definition, key: key.clone() };
    // A reload shows the same key and makes no other.
    let answer = |new: NewKey| json!({"key": new.key.reveal()});
    let made = visit.make(&posted, Action::KeysCreate, Resource::Scope, body, change, answer).await?;
    let key = made["key"].as_str().unwrap_or_default();
    let content = html! {
        (secret::shown_once("Your key", key, "It is shown this once. Whoever has it may do what the key may."))
        p { a href=(visit.in_scope("/keys")) { "All keys" } }
    };
    Ok(Answer::page(StatusCode::OK, page::signed_in(visit, "Key made", &content)))
}

pub(crate) async fn revoke(visit: &Visit, _: Posted) -> Result<Answer> {
    visit.service().revoke_key(&visit.caller, visit.id()?).await?;
    Ok(Answer::see_other(&visit.in_scope("/keys")))
}
