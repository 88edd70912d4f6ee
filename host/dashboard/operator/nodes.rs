//! The nodes of the platform, and whether they take new tunnels.

use culvert_domain::error::{Error, Fault, Result};
use culvert_domain::node::{Node, NodeStatus};
use culvert_domain::string_enum::StringEnum;
use maud::{Markup, html};

use super::operator;
use crate::account::asked_first;
use crate::answer::Answer;
use crate::form::row_field;
use crate::view::{badge, field, page};
use crate::visit::{Posted, Visit};

const PATH: &str = "/dashboard/operator/nodes";
/// The field of a row that holds a status.
const STATUS: &str = "status";

pub(crate) async fn list(visit: &Visit) -> Result<Markup> {
    operator(visit)?;
    let nodes = visit.service().listed_nodes().await?;
    let may_change = visit.is_elevated();
    let content = html! {
        p { "An online node takes new tunnels. What runs on another one goes on. Names and regions are changed by "
            code { "culvert node set" } "." }
        @if !may_change { (asked_first(visit, PATH, "change nodes")) }
        div.scroll role="region" aria-label="Nodes" tabindex="0" { table {
            thead { tr { th { "Name" } th { "Host" } th { "Region" } th { "Public ports" } th { "Http tunnels" } th { "Status" } } }
            tbody { @for node in &nodes { (row(visit, node, may_change)) } }
        } }
    };
    Ok(page::signed_in(visit, "Nodes", &content))
}

fn row(visit: &Visit, node: &Node, may_change: bool) -> Markup {
    html! {
        tr {
            td.long { (node.name) div.muted { (node.id) } }
            td { code { (node.hostname) } }
            td { (node.region) " " (node.country) @if node.pro_only { " " (badge::plain("premium network")) } }
            td { (node.ports) }
            td { @if node.domain_id.is_some() { "yes" } @else { "no" } }
            td {
                @if may_change { (status(visit, node)) } @else { (node.status) }
                @if node.reach != NodeStatus::Online { div.muted { "Its host is not heard of: " (node.reach) } }
            }
        }
    }
}

fn status(visit: &Visit, node: &Node) -> Markup {
    let path = format!("{PATH}/{}/status", node.id);
    let (name, label) = (row_field(STATUS, node.id), format!("Status of {}", node.name));
    let all = NodeStatus::ALL.iter().map(|status| status.as_str());
    let control = field::select_in_row(visit, &name, &label, node.status.as_str(), all);
    field::in_row(visit, &path, &name, &control, "Set")
}

pub(crate) async fn set_status(visit: &Visit, posted: Posted) -> Result<Answer> {
    let (operator, id) = (operator(visit)?, visit.id()?);
    let name = row_field(STATUS, id);
    let allowed = || Error::invalid(vec![Fault::new(&name, format!("must be one of {}", NodeStatus::list()))]);
    let status = NodeStatus::parse(posted.form.get(&name)).ok_or_else(allowed)?;
    visit.service().set_node_status(operator, id, status).await?;
    Ok(Answer::see_other(PATH))
}
