//! A new tunnel.

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::read;
use culvert_api_types::requests::NewTunnel;
use culvert_domain::action::Action;
use culvert_domain::error::Result;
use culvert_domain::facts::Resource;
use culvert_domain::preset::Preset;
use culvert_domain::tunnel::Tunnel;
use culvert_service::tunnels::CreateTunnel;
use maud::{Markup, html};
use serde_json::json;

use crate::answer::Answer;
use crate::form::KEY;
use crate::requests::Shown;
use crate::view::{field, page, refusal};
use crate::visit::{Posted, Visit};

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let may = visit.preview(Resource::Scope, &[Action::TunnelsCreate]).await?;
    let presets = visit.service().presets().await?;
    let mut regions: Vec<String> = visit.service().listed_nodes().await?.into_iter().map(|node| node.region).collect();
    regions.sort_unstable();
    regions.dedup();
    let body = json!({"name": "web", "protocol": "http", "local_port": 3000});
    let request = Shown::Request { title: "A new tunnel", action: Action::TunnelsCreate, ids: Vec::new(), body };
    let content = html! {
        (refusal::form_unless(may.refusal(Action::TunnelsCreate), form(visit, &presets, &regions)))
        (visit.dashboard.requests.drawer(&[request]))
    };
    Ok(page::signed_in(visit, "New tunnel", &content))
}

fn form(visit: &Visit, presets: &[Preset], regions: &[String]) -> Markup {
    let path = visit.in_scope("/tunnels");
    let text = |name, label, hint| field::Field { hint: Some(hint), ..field::typed(visit, name, label, "") };
    let protocols = [
        ("http", "http: web pages, by a name".to_owned()),
        ("tcp", "tcp: anything else, by a port".to_owned()),
        ("udp", "udp: games and the like, by a port".to_owned()),
        ("both", "both: tcp and udp on one port".to_owned()),
    ];
    html! {
        form method="post" action=(path) {
            (field::hidden(KEY, &visit.form_key(&path)))
            (field::text(&field::Field { required: true, ..text("name", "Name", "What you call it.") }))
            (field::select("protocol", "Protocol", visit.typed("protocol").unwrap_or("http"), visit.fault("protocol"), protocols.into_iter()))
            (field::text(&field::Field { value: visit.typed("local_host").unwrap_or("127.0.0.1"),
                ..text("local_host", "Local host", "Where the service is, as the device sees it.") }))
            (field::text(&field::Field { inputmode: Some("numeric"), required: true,
                ..text("local_port", "Local port", "The port of the service, such as 3000.") }))
            (field::text(&text("subdomain", "Subdomain", "For http; one is made up if you leave it empty.")))
            details open[visit.refused.is_some()] {
                summary { "More" }
                (more(visit, presets, regions))
            }
            button type="submit" { "Create tunnel" }
        }
    }
}

fn more(visit: &Visit, presets: &[Preset], regions: &[String]) -> Markup {
    let ids: Vec<(String, String)> =
        presets.iter().map(|preset| (preset.id.to_string(), preset.name.clone())).collect();
    let none = || std::iter::once(("", "none".to_owned()));
    let any = std::iter::once(("", "any".to_owned()));
    html! {
        (field::select("game_preset_id", "Preset", visit.typed("game_preset_id").unwrap_or_default(), visit.fault("game_preset_id"),
            none().chain(ids.iter().map(|(id, name)| (id.as_str(), name.clone())))))
        p.hint { "It brings the extra ports of a kind of service." }
        (field::select("region", "Region", visit.typed("region").unwrap_or_default(), visit.fault("region"),
            any.chain(regions.iter().map(|region| (region.as_str(), region.clone())))))
        (field::text(&field::Field { hint: Some("For http: visitors are asked for it, with the password. Empty: nobody is asked."),
            ..field::typed(visit, "http_basic_auth_username", "Name for visitors", "") }))
        (field::text(&field::Field { kind: "password", autocomplete: Some("new-password"), value: "", hint: Some("8 to 128 characters."),
            ..field::typed(visit, "http_basic_auth_password", "Password for visitors", "") }))
    }
}

pub(crate) async fn create(visit: &Visit, posted: Posted) -> Result<Answer> {
    let texts = ["name", "protocol", "local_host", "subdomain", "region", "game_preset_id", "http_basic_auth_username"];
    let mut tree = posted.form.body(&texts, &["local_port"]);
    let password = posted.form.get("http_basic_auth_password");
    let asks = !password.is_empty() || !posted.form.get("http_basic_auth_username").trim().is_empty();
    if let JsonTree::Object(fields) = &mut tree
        && asks
    {
        fields.push(("http_basic_auth_enabled".into(), JsonTree::Bool(true)));
        fields.push(("http_basic_auth_password".into(), JsonTree::Text(password.to_owned())));
    }
    let run = async {
        let body = read::<NewTunnel>(Some(&tree));
        let admitted = visit.admit(Action::TunnelsCreate, Resource::Scope, body).await?;
        let hash = visit.service().hash_password(admitted.valid.basic_auth_password.clone()).await?;
        let change = |definition| CreateTunnel { definition, password_hash: hash.clone() };
        visit.commit(&posted, admitted, change, |tunnel: Tunnel| json!({"id": tunnel.id})).await
    };
    let made = visit.carry_out(&posted, run).await?;
    let id = made["id"].as_str().unwrap_or_default();
    Ok(Answer::see_other(&visit.in_scope(&format!("/tunnels/{id}"))))
}
