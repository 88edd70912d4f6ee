//! The policies that decide: what is loaded, a reload, and the way back.

use culvert_domain::error::Result;
use culvert_service::operators::{ModuleStatus, PolicyStatus, policies_kept};
use maud::{Markup, html};

use super::operator;
use crate::account::asked_first;
use crate::answer::Answer;
use crate::view::sample::quoted;
use crate::view::{badge, field, page, secret, time};
use crate::visit::{Posted, Visit};

pub(super) const PATH: &str = "/dashboard/operator/policies";
const SHADOWS: &str = "/dashboard/operator/policies/shadows";
const PLAN: &str = "/dashboard/operator/policies/plan";
const RELOAD: &str = "/dashboard/operator/policies/reload";
const ROLL_BACK: &str = "/dashboard/operator/policies/rollback";

pub(crate) fn show(visit: &Visit) -> Result<Markup> {
    let status = visit.service().policy_status(&operator(visit)?);
    let content = html! {
        p { "Generation " strong { (status.generation) } ", loaded " (time::at(status.loaded_at)) ". "
            a href=(format!("{}/policies", visit.dashboard.docs_url)) { "Their rules and codes" } }
        @if let Some(failure) = &status.last_failure {
            div.notice.bad { p { "The last reload failed " (time::at(failure.at)) ", so the policies below stay in use:" }
                p { code { (failure.problem) } } }
        }
        (modules(&status))
        p { a href=(SHADOWS) { "Where shadow modules disagree" } }
        @if let Some(records) = &status.records {
            p.muted { "Decisions are recorded in " code { (records.file.display()) } "; " (records.lost) " records were lost."
                @if let Some(problem) = &records.problem { " The last one could not be written: " (problem) } }
        }
        section {
            h2 { "Change" }
            @if visit.is_elevated() {
                p { "A reload reads the configuration file again. If anything in it cannot be used, nothing changes." }
                div.row {
                    (field::button(visit, PLAN, "Show what a reload would change"))
                    (field::button(visit, RELOAD, "Reload"))
                }
                @if let Some(earlier) = status.earlier.first() {
                    p { "The policies before the last reload are kept." }
                    (field::button_with(visit, ROLL_BACK, &format!("Roll back to generation {earlier}"),
                        &[("generation", &status.generation.to_string())]))
                } @else { p.muted { "There are no earlier policies to roll back to." } }
            } @else { (asked_first(visit, PATH, "change policies")) }
            @if let Some(records) = &status.records {
                p { "How a new module would have decided is told on the server:" }
                (secret::command(&format!("culvert policy replay {} --module new.wasm", quoted(&records.file.to_string_lossy()))))
            } @else {
                p.muted { "Where " code { "decisions.file" } " is set, decisions are recorded, and " code { "culvert policy replay" }
                    " tells how a new module would have decided." }
            }
        }
    };
    Ok(page::signed_in(visit, "Policies", &content))
}

fn modules(status: &PolicyStatus) -> Markup {
    html! {
        div.scroll role="region" aria-label="Modules" tabindex="0" { table {
            thead { tr { th { "Kind" } th { "Module" } th { "Version" } th { "Digest (SHA-256)" } th { "Mode" } th { "State" } } }
            tbody { @for module in &status.modules { tr {
                td { (module.kind) }
                td.long { (module.name) div.muted { (module.module) @if module.is_signed { ", signed by a trusted key" } } }
                td { (module.version) }
                td { code title=(module.sha256) { (short(&module.sha256)) } div.muted { "settings " code title=(module.settings_sha256) { (short(&module.settings_sha256)) } } }
                td { (mode(module)) div.muted { (module.deadline_ms) " ms, " (module.memory_kib) " KiB" } }
                td { @if module.breaker_open { (badge::warning("not asked for a while: it timed out")) } @else { (badge::good("in use")) } }
            } } }
        } }
    }
}

fn mode(module: &ModuleStatus) -> String {
    serde_json::to_value(module.mode).ok().and_then(|mode| mode.as_str().map(str::to_owned)).unwrap_or_default()
}

fn short(digest: &str) -> String {
    format!("{}…", digest.chars().take(12).collect::<String>())
}

pub(crate) async fn reload(visit: &Visit, _: Posted) -> Result<Answer> {
    let operator = operator(visit)?;
    let generation = (visit.dashboard.reload_policies)().await.map_err(|problem| policies_kept(&problem))?;
    visit.service().note_reload(&operator, generation).await?;
    Ok(Answer::see_other(PATH))
}

pub(crate) async fn roll_back(visit: &Visit, posted: Posted) -> Result<Answer> {
    let operator = operator(visit)?;
    // A second click must not go back once more.
    let status = visit.service().policy_status(&operator);
    let left = posted.form.get("generation").parse().ok();
    if left != Some(status.generation) {
        return if status.is_rollback {
            Ok(Answer::see_other(PATH))
        } else {
            Err(policies_kept(&"the page was out of date."))
        };
    }
    visit.dashboard.service.roll_back_policies(&operator).await?;
    Ok(Answer::see_other(PATH))
}
