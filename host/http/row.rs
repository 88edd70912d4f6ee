//! One row of the table of endpoints. The types of its handler say what it takes and what it answers.

use culvert_api_types::json_tree::JsonTree;
use culvert_api_types::read::{Body, FromJsonTree, read};
use culvert_domain::action::Action;
use culvert_domain::error::Result;
use culvert_service::call::Answered;
use futures_util::future::BoxFuture;
use salvo::http::Method;
use schemars::{Schema, SchemaGenerator};

use super::call::Call;
use super::reply::{Reply, ResponseShape};

/// One endpoint.
pub struct Row {
    pub method: Method,
    pub path: &'static str,
    pub action: Action,
    pub title: &'static str,
    pub takes: BodyKind,
    pub idempotent: bool,
    pub status: u16,
    pub paged: bool,
    pub request: Option<fn(&mut SchemaGenerator) -> Schema>,
    pub response: fn(&mut SchemaGenerator) -> Schema,
    pub run: EndpointHandler,
}

/// A handler behind its types.
pub type EndpointHandler = Box<dyn Fn(Call, Option<JsonTree>) -> BoxFuture<'static, Result<Answered>> + Send + Sync>;

/// What an endpoint takes for a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// None; what is sent is not read.
    Nothing,
    /// None, or an empty object.
    EmptyObject,
    Object,
}

impl Row {
    /// The request names its effect by an Idempotency-Key.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }
}

/// A handler's argument, by which it says what it takes.
pub trait RequestBody: Sized {
    const TAKES: BodyKind;
    const SCHEMA: Option<fn(&mut SchemaGenerator) -> Schema>;

    fn take(tree: Option<&JsonTree>) -> Self;
}

impl RequestBody for () {
    const TAKES: BodyKind = BodyKind::Nothing;
    const SCHEMA: Option<fn(&mut SchemaGenerator) -> Schema> = None;

    fn take(_: Option<&JsonTree>) -> Self {}
}

impl<D: FromJsonTree> RequestBody for Body<D> {
    const TAKES: BodyKind = if D::SCHEMA.is_some() { BodyKind::Object } else { BodyKind::EmptyObject };
    const SCHEMA: Option<fn(&mut SchemaGenerator) -> Schema> = D::SCHEMA;

    fn take(tree: Option<&JsonTree>) -> Self {
        read(tree)
    }
}

fn row<B, S, F>(
    method: Method,
    path: &'static str,
    action: Action,
    title: &'static str,
    handler: impl Fn(Call, B) -> F + Send + Sync + Clone + 'static,
) -> Row
where
    B: RequestBody + Send,
    S: ResponseShape,
    F: Future<Output = Result<Reply<S>>> + Send,
{
    let run: EndpointHandler = Box::new(move |call, tree| {
        let handler = handler.clone();
        Box::pin(async move {
            let body = B::take(tree.as_ref());
            Ok(handler(call, body).await?.answered)
        })
    });
    Row {
        method,
        path,
        action,
        title,
        takes: B::TAKES,
        idempotent: false,
        status: S::STATUS,
        paged: S::PAGED,
        request: B::SCHEMA,
        response: S::schema,
        run,
    }
}

macro_rules! methods {
    ($($name:ident $method:ident)*) => {
        $(
            pub fn $name<B, S, F>(
                path: &'static str,
                action: Action,
                title: &'static str,
                handler: impl Fn(Call, B) -> F + Send + Sync + Clone + 'static,
            ) -> Row
            where
                B: RequestBody + Send,
                S: ResponseShape,
                F: Future<Output = Result<Reply<S>>> + Send,
            {
                row(Method::$method, path, action, title, handler)
            }
        )*
    };
}

methods! { get GET post POST put PUT patch PATCH delete DELETE }
