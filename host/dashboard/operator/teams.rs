//! The Teams of the installation, and their plans.

use culvert_domain::account::TeamRecord;
use culvert_domain::error::Result;
use maud::{Markup, html};

use super::{PLAN, operator, plan};
use crate::account::asked_first;
use crate::answer::Answer;
use crate::form::{at_row, row_field};
use crate::view::{list, page, time};
use crate::visit::{Posted, Visit};

const PATH: &str = "/dashboard/operator/teams";

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let teams = visit.service().all_teams(&operator(visit)?, visit.page()).await?;
    let may_change = visit.is_elevated();
    let content = html! {
        @if teams.rows.is_empty() { p.empty { "There are no Teams yet. Anybody who is signed in can make one." } } @else {
            @if !may_change { (asked_first(visit, PATH, "change a plan")) }
            div.scroll role="region" aria-label="Teams" tabindex="0" { table {
                thead { tr { th { "Name" } th { "Plan" } th { "Members" } th { "Since" } } }
                tbody { @for team in &teams.rows { (row(visit, team, may_change)) } }
            } }
            (list::more(visit.next(teams.next).as_deref()))
        }
    };
    Ok(page::signed_in(visit, "Teams", &content))
}

fn row(visit: &Visit, team: &TeamRecord, may_change: bool) -> Markup {
    html! {
        tr {
            td.long { (team.name) div.muted { (team.id) } }
            td { @if may_change { (plan(visit, &format!("{PATH}/{}/plan", team.id), team.id, &team.plan, &team.name)) } @else { (team.plan) } }
            td { (team.members) }
            td { (time::at(team.created_at)) }
        }
    }
}

pub(crate) async fn set_plan(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (operator, id) = (operator(visit)?, visit.id()?);
    let plan = row_field(PLAN, id);
    let set = visit.service().set_plan_of_team(operator, &visit.policies, id, posted.form.get(&plan)).await;
    set.map_err(|error| at_row(error, PLAN, id))?;
    Ok(Answer::see_other(PATH))
}
