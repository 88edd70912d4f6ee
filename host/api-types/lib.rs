//! What clients and the API exchange: request bodies, answers and event payloads, with their schemas. A type's
//! doc comment is its description in the OpenAPI document.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod access;
pub mod account;
pub mod address;
pub mod catalog;
pub mod custom_domain;
pub mod deleted;
pub mod device;
pub mod event;
pub mod json_tree;
pub mod operation;
mod patterns;
pub mod port;
pub mod read;
mod recorded;
pub mod requests;
pub mod tunnel;
pub mod webhook;
