//! Culvert's host: the REST API, the agents' gateway, a node for their traffic, and the policies in
//! WebAssembly that decide what each caller may do.
//!
//! # The path of a request
//!
//! A row of [`http::routes`] → trace → key → rate limit ([`http::middleware`]) → scope, body, repeated or
//! not ([`http::endpoint`]) → the handler → [`gate`]: facts, then three [`policy`] decisions, then a
//! permit → [`store`]: one transaction with the change, its events and the stored answer → [`ticker`]:
//! the [`gateway`] to the agents, the [`node`] for the visitors, [`webhook`] for the events.

#![deny(unsafe_code)]

pub mod admin;
pub mod app;
pub mod bucket;
pub mod cli;
pub mod config;
pub mod deliveries;
pub mod domain_checks;
pub mod gate;
pub mod gateway;
pub mod http;
pub mod keyed_mutex;
pub mod metrics;
pub mod node;
pub mod policies;
pub mod record;
pub mod secret;
pub mod store;
pub mod ticker;
