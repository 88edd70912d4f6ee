//! A Team: its members, invitations to it, its name and its end. In a personal scope, how to make one.

use culvert_api_types::read::Body;
use culvert_domain::action::Action;
use culvert_domain::caller::{Role, ScopeKind};
use culvert_domain::error::{Error, Fault, Result};
use culvert_domain::facts::Resource;
use culvert_domain::string_enum::StringEnum;
use culvert_domain::team::{Invitation, Member};
use culvert_service::invitations::{CreateInvitation, InvitationDefinition, RevokeInvitation, WantedInvitation};
use culvert_service::links;
use culvert_service::teams::{ChangeMember, DeleteTeam, Membership, RenameTeam, WantedName, WantedRole};
use maud::{Markup, html};
use salvo::http::StatusCode;
use serde_json::{Value, json};

use crate::ROOT;
use crate::account::asked_first;
use crate::answer::Answer;
use crate::form::{KEY, at_row, row_field};
use crate::mail;
use crate::view::{badge, field, list, page, refusal, secret, time};
use crate::visit::{Posted, Visit};

/// The field of a row that holds a role.
const ROLE: &str = "role";
/// What the page has forms for.
const ACTIONS: [Action; 2] = [Action::TeamsUpdate, Action::InvitationsCreate];

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    if visit.caller.scope.kind == ScopeKind::Personal {
        return Ok(page::signed_in(visit, "Team", &new_team(visit)));
    }
    let members = visit.service().members(&visit.caller, visit.page()).await?;
    let invitations = visit.service().invitations(&visit.caller).await?;
    let manages = visit.caller.role != Some(Role::Member);
    let proved = visit.is_elevated();
    let may = visit.preview(Resource::Scope, &ACTIONS).await?;
    let content = html! {
        p.muted { "You are " (visit.caller.role.map_or("", Role::with_article)) ". Plan " (visit.caller.scope.plan) "." }
        @if manages && !proved { (asked_first(visit, &visit.in_scope("/team"), "change the Team")) }
        section {
            h2 { "Members" }
            div.scroll role="region" aria-label="Members" tabindex="0" { table {
                thead { tr { th { "Name" } th { "E-mail" } th { "Role" } th { "Since" } th {} } }
                tbody { @for member in &members.rows { (row(visit, member, manages && proved)) } }
            } }
            (list::more(visit.next(members.next).as_deref()))
        }
        section {
            h2 { "Invitations" }
            (open_invitations(visit, &invitations, manages && proved))
            @if manages && proved { (refusal::form_unless(may.refusal(Action::InvitationsCreate), new_invitation(visit))) }
        }
        @if manages && proved { section { h2 { "Name" } (refusal::form_unless(may.refusal(Action::TeamsUpdate), name(visit))) } }
        section {
            h2 { "Leave or delete" }
            div.row { (field::button(visit, &visit.in_scope("/team/leave"), "Leave the Team")) }
            @if visit.caller.role == Some(Role::Owner) && proved {
                p { "A Team without tunnels and devices can be deleted. Its keys, webhook endpoints and invitations end." }
                form method="post" action=(visit.in_scope("/team/delete")) {
                    (field::hidden(KEY, &visit.form_key(&visit.in_scope("/team/delete"))))
                    (field::text(&field::Field { required: true,
                        hint: Some("To confirm, type the name of the Team."), ..field::typed(visit, "confirm_name", "Name of the Team", "") }))
                    button.danger type="submit" { "Delete the Team" }
                }
            }
        }
    };
    Ok(page::signed_in(visit, &visit.caller.scope.name, &content))
}

fn new_team(visit: &Visit) -> Markup {
    let path = visit.in_scope("/team");
    html! {
        p { "A Team has tunnels, devices and keys that several people share. Each is an owner, an admin or a member." }
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(&path)))
            (field::text(&field::Field { required: true, hint: Some("1 to 100 characters."), ..field::typed(visit, "name", "Name", "") }))
            button type="submit" { "Make Team" }
        }
    }
}

fn role(visit: &Visit, member: &Member, path: &str) -> Markup {
    let (name, label) = (row_field(ROLE, member.account_id), format!("Role of {}", member.name));
    let all = Role::ALL.iter().map(|role| role.as_str());
    let control = field::select_in_row(visit, &name, &label, member.role.as_str(), all);
    field::in_row(visit, path, &name, &control, "Change")
}

fn row(visit: &Visit, member: &Member, may_change: bool) -> Markup {
    let path = |action: &str| visit.in_scope(&format!("/team/members/{}/{action}", member.account_id));
    let is_self = member.account_id == visit.caller.account_id;
    html! {
        tr {
            td.long { (member.name) }
            td.long { (member.email) }
            td {
                @if may_change && !is_self {
                    (role(visit, member, &path("role")))
                } @else { (badge::plain(member.role.as_str())) }
            }
            td { (time::at(member.created_at)) }
            td {
                @if is_self { (badge::plain("you")) }
                @else if may_change { (field::button(visit, &path("remove"), "Remove")) }
            }
        }
    }
}

fn open_invitations(visit: &Visit, invitations: &[Invitation], may_change: bool) -> Markup {
    html! {
        @if invitations.is_empty() { p.empty { "Nobody is invited." } } @else {
            div.scroll role="region" aria-label="Invitations" tabindex="0" { table {
                thead { tr { th { "E-mail" } th { "Role" } th { "Invited by" } th { "Ends" } th {} } }
                tbody { @for one in invitations { tr {
                    td.long { (one.email) }
                    td { (badge::plain(one.role.as_str())) }
                    td.long { (one.invited_by) }
                    td { (time::at(one.expires_at)) }
                    td { @if may_change {
                        (field::button(visit, &visit.in_scope(&format!("/team/invitations/{}/revoke", one.id)), "Revoke"))
                    } }
                } } }
            } }
        }
    }
}

fn new_invitation(visit: &Visit) -> Markup {
    let path = visit.in_scope("/team/invitations");
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(&path)))
            (field::text(&field::Field { kind: "email", required: true,
                hint: Some("You get a link for them, good for 7 days. A former one of theirs ends."), ..field::typed(visit, "email", "E-mail", "") }))
            (field::select("role", "As", visit.typed("role").unwrap_or("member"), visit.fault("role"),
                Role::ALL.iter().rev().map(|role| (role.as_str(), role.to_string()))))
            button type="submit" { "Invite" }
        }
    }
}

fn name(visit: &Visit) -> Markup {
    let path = visit.in_scope("/team/name");
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(&path)))
            (field::text(&field::Field { required: true, ..field::typed(visit, "name", "Name of the Team", &visit.caller.scope.name) }))
            button type="submit" { "Rename" }
        }
    }
}

/// Leads back to the page of the Team.
fn back(visit: &Visit) -> Answer {
    Answer::see_other(&visit.in_scope("/team"))
}

/// What is done to a Team is not there in a personal scope.
fn in_team(visit: &Visit) -> Result<()> {
    if visit.caller.role.is_some() { Ok(()) } else { Err(Error::not_found()) }
}

pub(crate) async fn create(visit: &Visit, posted: Posted) -> Result<Answer> {
    if visit.caller.role.is_some() {
        return Err(Error::not_found());
    }
    let run = visit.service().create_team(visit.caller.account_id, posted.form.get("name"), &posted.key);
    let team = visit.carry_out(&posted, run).await?;
    Ok(Answer::see_other(&format!("{ROOT}/{}/team", team.as_str().unwrap_or_default())))
}

pub(crate) async fn rename(visit: &Visit, posted: Posted) -> Result<Answer> {
    in_team(visit)?;
    let wanted = Body::from(WantedName(posted.form.get("name").to_owned()));
    visit.change_with(&posted, Action::TeamsUpdate, Resource::Scope, wanted, |name| RenameTeam { name }).await?;
    Ok(back(visit))
}

pub(crate) async fn delete(visit: &Visit, posted: Posted) -> Result<Answer> {
    in_team(visit)?;
    if posted.form.get("confirm_name").trim() != visit.caller.scope.name.trim() {
        return Err(Error::invalid(vec![Fault::new("confirm_name", "must be the name of this Team")]));
    }
    visit.change(&posted, Action::TeamsDelete, Resource::Scope, |()| DeleteTeam).await?;
    Ok(Answer::see_other(ROOT))
}

/// No policy is asked whether somebody may leave.
pub(crate) async fn leave(visit: &Visit, _: Posted) -> Result<Answer> {
    in_team(visit)?;
    visit.service().leave_team(&visit.caller).await?;
    Ok(Answer::see_other(ROOT))
}

pub(crate) async fn set_role(visit: &Visit, posted: Posted) -> Result<Answer> {
    in_team(visit)?;
    let account_id = visit.id()?;
    let wanted = Body::from(WantedRole(posted.form.get(&row_field(ROLE, account_id)).to_owned()));
    let change = |role| ChangeMember { account_id, what: Membership::Changed(role) };
    let set = visit.change_with(&posted, Action::MembersSetRole, Resource::Scope, wanted, change).await;
    set.map_err(|error| at_row(error, ROLE, account_id))?;
    Ok(back(visit))
}

pub(crate) async fn remove(visit: &Visit, posted: Posted) -> Result<Answer> {
    in_team(visit)?;
    let account_id = visit.id()?;
    let change = |()| ChangeMember { account_id, what: Membership::Removed };
    visit.change(&posted, Action::MembersRemove, Resource::Scope, change).await?;
    Ok(back(visit))
}

pub(crate) async fn invite(visit: &Visit, posted: Posted) -> Result<Answer> {
    in_team(visit)?;
    let field = |name| posted.form.get(name).to_owned();
    let wanted = Body::from(WantedInvitation { email: field("email"), role: field("role") });
    let (id, link) = (visit.service().clock().id(), links::new_secret(visit.service().clock()));
    let change = |definition: InvitationDefinition| {
        let mail = mail::invitation(visit, definition.email(), &link);
        CreateInvitation { definition, id, secret: link.clone(), mail }
    };
    let shown = link.clone();
    // A reload shows the same link and makes no other.
    let answer = move |mailed: bool| -> Value { json!({"link": shown, "mailed": mailed}) };
    let made = visit.make(&posted, Action::InvitationsCreate, Resource::Scope, wanted, change, answer).await?;
    let link = visit.dashboard.site.entrance(made["link"].as_str().unwrap_or_default());
    let content = html! {
        @if made["mailed"] == true { p.notice.ok { "It is on its way to them by mail. If that does not arrive, send them the link." } }
        (secret::shown_once(&format!("The link for {}", field("email")), &link,
            "Whoever has it can use it. It is shown this once, can be used once, and ends in 7 days."))
        p { a href=(visit.in_scope("/team")) { "The Team" } }
    };
    Ok(Answer::page(StatusCode::OK, page::signed_in(visit, "Invitation made", &content)))
}

pub(crate) async fn revoke_invitation(visit: &Visit, posted: Posted) -> Result<Answer> {
    in_team(visit)?;
    let id = visit.id()?;
    visit.change(&posted, Action::InvitationsRevoke, Resource::Scope, |()| RevokeInvitation { id }).await?;
    Ok(back(visit))
}
