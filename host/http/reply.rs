//! Successful answers: the envelope, and the types by which a handler says what it returns.

use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use culvert_domain::error::{Error, Result};
use culvert_service::call::Answered;
use culvert_service::idempotency::StoredResponse;

/// What a handler returns.
pub(crate) type HandlerResult<S> = Result<Reply<S>>;

/// A rendered answer of a shape.
pub struct Reply<S> {
    pub answered: Answered,
    shape: PhantomData<fn() -> S>,
}

impl<S> Reply<S> {
    pub fn new(answered: Answered) -> Self {
        Self { answered, shape: PhantomData }
    }
}

/// The status of an answer, and the shape of its `data`.
pub trait ResponseShape: Serialize {
    const STATUS: u16;
    /// Whether `meta` has a `next_cursor`.
    const PAGED: bool = false;

    fn schema(generator: &mut SchemaGenerator) -> Schema;

    /// The cursor of the next page, where there are pages.
    fn next_cursor(&self) -> Option<&str> {
        None
    }

    fn render(&self, request_id: &str) -> Result<StoredResponse> {
        let next_cursor = Self::PAGED.then(|| self.next_cursor());
        let envelope = Envelope { data: self, meta: Meta { request_id, next_cursor } };
        let body = serde_json::to_vec(&envelope).map_err(Error::internal)?;
        Ok(StoredResponse { status: Self::STATUS, body })
    }
}

#[derive(Serialize)]
struct Envelope<'a, T: ?Sized> {
    data: &'a T,
    meta: Meta<'a>,
}

#[derive(Serialize)]
struct Meta<'a> {
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<Option<&'a str>>,
}

/// 200
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Single<T>(pub T);

/// 201
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Created<T>(pub T);

/// 202
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Accepted<T>(pub T);

/// 200, one page of a list.
#[derive(Serialize)]
#[serde(transparent)]
pub struct List<T> {
    rows: Vec<T>,
    #[serde(skip)]
    next: Option<String>,
}

impl<T> List<T> {
    pub fn new(rows: Vec<T>, next: Option<String>) -> Self {
        Self { rows, next }
    }
}

impl<T: Serialize + JsonSchema> ResponseShape for Single<T> {
    const STATUS: u16 = 200;

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<T: Serialize + JsonSchema> ResponseShape for Created<T> {
    const STATUS: u16 = 201;

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<T: Serialize + JsonSchema> ResponseShape for Accepted<T> {
    const STATUS: u16 = 202;

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<T: Serialize + JsonSchema> ResponseShape for List<T> {
    const STATUS: u16 = 200;
    const PAGED: bool = true;

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<Vec<T>>()
    }

    fn next_cursor(&self) -> Option<&str> {
        self.next.as_deref()
    }
}
