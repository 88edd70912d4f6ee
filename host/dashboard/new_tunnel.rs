//! A new tunnel.

use culvert_api_types::read::read;
use culvert_api_types::requests::NewTunnel;
use culvert_domain::action::Action;
use culvert_domain::error::Result;
use culvert_domain::facts::Resource;
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
    let body = json!({"name": "web", "protocol": "http", "local_port": 3000});
    let request = Shown::Request { title: "A new tunnel", action: Action::TunnelsCreate, ids: Vec::new(), body };
    let content = html! {
        (refusal::form_unless(may.refusal(Action::TunnelsCreate), form(visit)))
        (visit.dashboard.requests.drawer(&[request]))
    };
    Ok(page::signed_in(visit, "New tunnel", &content))
}

fn form(visit: &Visit) -> Markup {
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
            button type="submit" { "Create tunnel" }
        }
    }
}

pub(crate) async fn create(visit: &Visit, posted: Posted) -> Result<Answer> {
    let tree = posted.form.body(&["name", "protocol", "local_host", "subdomain"], &["local_port"]);
    let body = read::<NewTunnel>(Some(&tree));
    let change = |definition| CreateTunnel { definition, password_hash: None };
    let answer = |tunnel: Tunnel| json!({"id": tunnel.id});
    let made = visit.make(&posted, Action::TunnelsCreate, Resource::Scope, body, change, answer).await?;
    let id = made["id"].as_str().unwrap_or_default();
    Ok(Answer::see_other(&visit.in_scope(&format!("/tunnels/{id}"))))
}
