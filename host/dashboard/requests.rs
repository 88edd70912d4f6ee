//! The requests of the API that do what a page shows or does: for who is about to write a program for it.

use std::collections::HashMap;

use culvert_domain::action::Action;
use maud::{Markup, html};
use serde_json::Value;
use uuid::Uuid;

use crate::docs::reference::operations;
use crate::view::sample::Sample;
use crate::view::secret;

/// The endpoints of the API by their actions, from its description (OpenAPI 3.1).
pub struct ApiRequests {
    server: String,
    by_operation: HashMap<String, Endpoint>,
}

struct Endpoint {
    method: String,
    path: String,
    scope: String,
    idempotent: bool,
}

/// Something that a page does.
pub(crate) enum Shown {
    /// By an endpoint: what it is called, its ids in their order, and a body.
    Request { title: &'static str, action: Action, ids: Vec<Uuid>, body: Value },
    /// In the dashboard alone, and by a command on the host's machine.
    Command { title: &'static str, command: String },
}

impl ApiRequests {
    pub fn of(openapi: &Value) -> Self {
        let by_operation = operations(openapi).into_iter().map(|operation| {
            let parameters = operation.value["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            let endpoint = Endpoint {
                idempotent: parameters.iter().any(|parameter| parameter["name"] == "Idempotency-Key"),
                scope: operation.value["x-scope"].as_str().unwrap_or_default().to_owned(),
                method: operation.method,
                path: operation.path.to_owned(),
            };
            (operation.id.to_owned(), endpoint)
        });
        let server = openapi["servers"][0]["url"].as_str().unwrap_or_default().to_owned();
        Self { by_operation: by_operation.collect(), server }
    }

    /// A part of a page that can be opened.
    pub(crate) fn drawer(&self, shown: &[Shown]) -> Markup {
        html! {
            details.drawer {
                summary { "As requests of the API" }
                p.muted { "With a key of this scope in " code { "CULVERT_KEY" } "." }
                @for one in shown { (self.one(one)) }
            }
        }
    }

    fn one(&self, shown: &Shown) -> Markup {
        match shown {
            Shown::Request { title, action, ids, body } => {
                let Some(endpoint) = self.by_operation.get(&action.name().replace('.', "_")) else { return html! {} };
                let mut ids = ids.iter();
                let parts =
                    endpoint.path.split('/').map(|part| match part.strip_prefix('{').and_then(|_| ids.next()) {
                        Some(id) => id.to_string(),
                        None => part.to_owned(),
                    });
                let url = format!("{}{}", self.server, parts.collect::<Vec<_>>().join("/"));
                let body = (!body.is_null()).then_some(body);
                let sample = Sample { method: &endpoint.method, url: &url, body, idempotent: endpoint.idempotent };
                html! {
                    h2 { (title) }
                    p.muted { "Needs the scope " code { (endpoint.scope) } "." }
                    (secret::command(&sample.curl()))
                }
            }
            Shown::Command { title, command } => html! {
                h2 { (title) }
                p.muted { "In the dashboard alone; no key may do it. On the host's machine:" }
                (secret::command(command))
            },
        }
    }
}
