//! The documentation that a host serves by itself, to everybody: the book, the reference of the API, what every code means,
//! and a search through all of it.

pub mod book;
mod errors;
mod frame;
pub(crate) mod reference;
mod rendered;
mod schema;
mod search;

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use culvert_domain::error::Code;
use culvert_service::Service;
use maud::PreEscaped;
use salvo::http::StatusCode;
use salvo::writing::Redirect;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use serde_json::Value;

use crate::assets;
use rendered::Rendered;
use search::{Index, MakeIndex, Search};

/// What the documentation is made of.
pub struct Docs {
    pub service: Arc<Service>,
    /// The description of the API (OpenAPI 3.1), and the path that it is served at.
    pub openapi: Value,
    pub openapi_path: &'static str,
    /// Where `/` leads to.
    pub start_page: &'static str,
    /// Whether browsers reach the host by HTTPS.
    pub is_https: bool,
    /// The HTTP status of a code, as the API answers it.
    pub status_of: fn(&Code) -> StatusCode,
}

/// The guide for authors and operators of policies, as it stands in the repository.
const GUIDE: &str = include_str!("../../policies/README.md");

/// The routes of the documentation, and of the files that its pages need.
pub fn routers(docs: &Arc<Docs>) -> Vec<Router> {
    let is_https = docs.is_https;
    let guide = || frame::page("Policies", PreEscaped(book::render("policies/README.md", GUIDE)), "/docs/policies");
    let start = StartPage(docs.start_page);
    let (described, reference, searched) = (docs.clone(), docs.clone(), docs.clone());
    let index: MakeIndex = Box::new(move || Index::of(&searched.openapi));
    let mut routers = vec![
        Router::new().get(start).head(start),
        fixed("docs", is_https, move || Rendered::page(&reference::page(&reference.openapi))),
        at("docs/errors", Errors { docs: docs.clone(), rendered: Arc::default() }),
        fixed("docs/policies", is_https, move || Rendered::page(&guide())),
        at("docs/search", Search { index: Arc::new(LazyLock::new(index)), is_https }),
        fixed(docs.openapi_path.trim_start_matches('/'), is_https, move || {
            Rendered::new("application/json", serde_json::to_vec(&described.openapi).unwrap_or_default())
        }),
        assets::router(),
    ];
    routers.extend(book::PAGES.iter().map(|page| {
        let render = || PreEscaped(page.render());
        fixed(&page.path(), is_https, move || {
            Rendered::page(&frame::page(page.title(), render(), &format!("/{}", page.path())))
        })
    }));
    routers.extend(book::PICTURES.iter().map(|(name, picture)| {
        fixed(&format!("docs/pictures/{name}"), is_https, || Rendered::new("image/webp", picture.to_vec()))
    }));
    routers
}

fn at(path: &str, handler: impl Handler + Clone) -> Router {
    Router::with_path(path).get(handler.clone()).head(handler)
}

/// A page that is the same as long as the host runs.
fn fixed(path: &str, is_https: bool, render: impl FnOnce() -> Rendered + Send + 'static) -> Router {
    let render: Render = Box::new(render);
    at(path, Fixed { rendered: Arc::new(LazyLock::new(render)), is_https })
}

type Render = Box<dyn FnOnce() -> Rendered + Send>;

#[derive(Clone)]
struct Fixed {
    /// Rendered when it is first asked for.
    rendered: Arc<LazyLock<Rendered, Render>>,
    is_https: bool,
}

#[async_trait]
impl Handler for Fixed {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        self.rendered.answer(req, res, self.is_https);
    }
}

/// Leads from `/` to where people begin.
#[derive(Clone, Copy)]
struct StartPage(&'static str);

#[async_trait]
impl Handler for StartPage {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        res.render(Redirect::found(self.0));
    }
}

/// The codes, those of the policies included: rendered anew when other policies decide.
#[derive(Clone)]
struct Errors {
    docs: Arc<Docs>,
    /// With the generation that it tells of.
    rendered: Arc<Mutex<(u64, Option<Arc<Rendered>>)>>,
}

#[async_trait]
impl Handler for Errors {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        self.current().answer(req, res, self.docs.is_https);
    }
}

impl Errors {
    fn current(&self) -> Arc<Rendered> {
        let service = &self.docs.service;
        let generation = service.policy_generation();
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        if rendered.0 != generation {
            *rendered = (generation, None);
        }
        let render = || Rendered::page(&errors::page(&service.policy_codes(), self.docs.status_of));
        rendered.1.get_or_insert_with(|| Arc::new(render())).clone()
    }
}
