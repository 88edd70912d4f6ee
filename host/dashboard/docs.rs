//! The documentation that a host serves by itself, to everybody: the book, the reference of the API, what every code means,
//! and a search through all of it.

pub mod book;
mod errors;
mod frame;
pub(crate) mod reference;
mod rendered;
mod schema;
mod search;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use culvert_domain::error::Code;
use culvert_service::Service;
use maud::PreEscaped;
use salvo::http::StatusCode;
use salvo::writing::Redirect;
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use serde_json::Value;

use crate::assets;
use rendered::Rendered;
use search::{Index, Search};

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
    let fixed = |path: &str, rendered: Rendered| at(path, Fixed { rendered: Arc::new(rendered), is_https });
    let guide = || frame::page("Policies", PreEscaped(book::render("policies/README.md", GUIDE)), "/docs/policies");
    let document = serde_json::to_vec(&docs.openapi).unwrap_or_default();
    let start = StartPage(docs.start_page);
    let mut routers = vec![
        Router::new().get(start).head(start),
        fixed("docs", Rendered::page(&reference::page(&docs.openapi))),
        at("docs/errors", Errors { docs: docs.clone(), rendered: Arc::default() }),
        fixed("docs/policies", Rendered::page(&guide())),
        at("docs/search", Search { index: Arc::new(Index::of(&docs.openapi)), is_https }),
        fixed(docs.openapi_path.trim_start_matches('/'), Rendered::new("application/json", document)),
        assets::router(),
    ];
    routers
        .extend(book::PAGES.iter().map(|page| at(&page.path(), BookPage { page, rendered: Arc::default(), is_https })));
    routers.extend(
        book::PICTURES.iter().map(|(name, picture)| {
            fixed(&format!("docs/pictures/{name}"), Rendered::new("image/webp", picture.to_vec()))
        }),
    );
    routers
}

fn at(path: &str, handler: impl Handler + Clone) -> Router {
    Router::with_path(path).get(handler.clone()).head(handler)
}

#[derive(Clone)]
struct Fixed {
    rendered: Arc<Rendered>,
    is_https: bool,
}

#[async_trait]
impl Handler for Fixed {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        self.rendered.answer(req, res, self.is_https);
    }
}

/// A page of the book, rendered when it is first asked for.
#[derive(Clone)]
struct BookPage {
    page: &'static book::Page,
    rendered: Arc<OnceLock<Rendered>>,
    is_https: bool,
}

#[async_trait]
impl Handler for BookPage {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let page = self.page;
        let content = || PreEscaped(page.render());
        let render = || Rendered::page(&frame::page(page.title(), content(), &format!("/{}", page.path())));
        self.rendered.get_or_init(render).answer(req, res, self.is_https);
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
