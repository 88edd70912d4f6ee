//! Culvert's host: the REST API, the agents' gateway, nodes for their traffic, and the composition of it all.
//!
//! # The path of a request
//!
//! A row of [`http::routes`] → middleware: trace, key, rate limit ([`http::middleware`]) → scope, body, Idempotency-Key
//! ([`http::endpoint`]) → the handler → [`gate`]: facts, three policy decisions, a permit → [`culvert_store`]: one transaction
//! with the change, its events and the stored response → [`jobs::ticker`]: the [`gateway`] to the agents,
//! [`service::nodes`] to the nodes for the visitors, [`jobs::deliveries`] for the events.

#![deny(unsafe_code)]

pub mod admin;
pub mod app;
pub mod bucket;
pub mod cli;
pub mod config;
pub mod embedded;
pub mod gate;
pub mod gateway;
pub mod http;
pub mod jobs;
pub mod keyed_mutex;
pub mod metrics;
pub mod passwords;
pub mod policies;
pub mod record;
pub mod secret;
pub mod service;
