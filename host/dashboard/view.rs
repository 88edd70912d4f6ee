//! Pieces of pages. They know neither the store nor HTTP.

pub(crate) mod advice;
pub(crate) mod badge;
pub(crate) mod bytes;
pub(crate) mod field;
pub(crate) mod list;
pub(crate) mod notice;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod refusal;
pub(crate) mod sample;
pub(crate) mod secret;
pub(crate) mod time;
