//! The custom domain of an http tunnel.

use culvert_api_types::read::read;
use culvert_api_types::requests;
use culvert_domain::action::Action;
use culvert_domain::custom_domain::CustomDomain;
use culvert_domain::error::Result;
use culvert_domain::facts::Resource;
use culvert_domain::protocol::Protocol;
use culvert_domain::tunnel::Tunnel;
use culvert_service::domains::{AssignDomain, RemoveDomain, VerifyDomain};
use culvert_service::gate::Preview;
use maud::{Markup, html};
use serde_json::Value;

use crate::answer::Answer;
use crate::form::KEY;
use crate::view::{badge, field, page, refusal, secret, time};
use crate::visit::{Posted, Visit};

const PAGE: &str = "{s}/tunnels/{id}/domain";
/// What the page has forms for.
const ACTIONS: [Action; 3] = [Action::TunnelsVerifyDomain, Action::TunnelsAssignDomain, Action::TunnelsRemoveDomain];

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let (tunnel, domain) = visit.service().custom_domain(&visit.caller, visit.id()?).await?;
    let may = visit.preview(Resource::Tunnel(tunnel.id), &ACTIONS).await?;
    let content = html! {
        p { a href=(visit.in_scope(&format!("/tunnels/{}", tunnel.id))) { "The tunnel " (tunnel.spec.name) } }
        @if tunnel.spec.protocol == Protocol::Http {
            @if let Some(domain) = &domain { (state(visit, &tunnel, domain, &may)) }
            (verification(visit, &tunnel, domain.as_ref(), &may))
        } @else {
            p.empty { "Only an http tunnel has a domain of its own: visitors of other tunnels come by a port." }
        }
    };
    Ok(page::signed_in(visit, "Custom domain", &content))
}

fn state(visit: &Visit, tunnel: &Tunnel, domain: &CustomDomain, may: &Preview) -> Markup {
    let path = |action: &str| visit.in_scope(&format!("/tunnels/{}/domain/{action}", tunnel.id));
    let certificate = &domain.certificate;
    let unless = |action, label, button| refusal::unless(may.refusal(action), label, button);
    let assign = field::button_with(visit, &path("assign"), "Assign to this tunnel", &[("domain", &domain.domain)]);
    let remove = field::button(visit, &path("remove"), "Remove domain");
    html! {
        section {
            h2 { (domain.domain) }
            p.line { (badge::custom_domain(domain.status)) " " @if domain.assigned { "It leads to this tunnel." } @else { "It does not lead here yet." } }
            @if let Some(error) = &domain.error { p.notice.warn { (error.detail) " " code { (error.code) } } }
            dl {
                dt { "Verified" } dd { (time::maybe(domain.verified_at, "not yet")) }
                dt { "Looked up last" } dd { (time::at(domain.last_checked_at)) }
                @if domain.assigned {
                    dt { "Certificate" } dd { (certificate.status) @if let Some(error) = &certificate.error { ": " (error) } }
                    dt { "It ends" } dd { (time::maybe(certificate.expires_at, "–")) }
                }
            }
            @if domain.verified_at.is_some() && !domain.assigned { (unless(Action::TunnelsAssignDomain, "Assign to this tunnel", assign)) }
            (unless(Action::TunnelsRemoveDomain, "Remove domain", remove))
        }
    }
}

fn verification(visit: &Visit, tunnel: &Tunnel, domain: Option<&CustomDomain>, may: &Preview) -> Markup {
    let path = visit.in_scope(&format!("/tunnels/{}/domain/verify", tunnel.id));
    let known = domain.map(|domain| domain.domain.as_str()).unwrap_or_default();
    html! {
        section {
            h2 { "Verify a domain" }
            p { "Where the domain's DNS is managed, make a CNAME record that leads to:" }
            (secret::command(&tunnel.cname_target()))
            (refusal::form_unless(may.refusal(Action::TunnelsVerifyDomain), html! { form method="post" action=(path) {
                (field::hidden(KEY, &visit.form_key(&path)))
                (field::text(&field::Field { required: true,
                    hint: Some("Such as app.example.com. It may take a while until a new record is seen."),
                    ..field::typed(visit, "domain", "Domain", known) }))
                button type="submit" { "Look for the record" }
            } }))
        }
    }
}

pub(crate) async fn verify(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let body = read::<requests::VerifyDomain>(Some(&posted.form.body(&["domain"], &[])));
    let run = async {
        let admitted = visit.admit(Action::TunnelsVerifyDomain, Resource::Tunnel(tunnel_id), body).await?;
        let target = visit.service().tunnel(&visit.caller, tunnel_id).await?.cname_target();
        let found = visit.service().check_cname(&admitted.valid, &target).await;
        let change = |domain| VerifyDomain { tunnel_id, domain, found: found.clone() };
        visit.commit(&posted, admitted, change, |_| Value::Null).await
    };
    visit.carry_out(&posted, run).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn assign(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let body = read::<requests::AssignDomain>(Some(&posted.form.body(&["domain"], &[])));
    let change = |domain| AssignDomain { tunnel_id, domain };
    visit.change_with(&posted, Action::TunnelsAssignDomain, Resource::Tunnel(tunnel_id), body, change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}

pub(crate) async fn remove(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tunnel_id = visit.id()?;
    let change = |()| RemoveDomain { tunnel_id };
    visit.change(&posted, Action::TunnelsRemoveDomain, Resource::Tunnel(tunnel_id), change).await?;
    Ok(Answer::see_other(&visit.path_of(PAGE)))
}
