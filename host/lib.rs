//! Culvert's host: composition root, command line, configuration and the operators' listener. What it serves is in
//! crates of their own: the API in `culvert-http`, the agents' control channel in `culvert-gateway`, the use cases
//! in `culvert-service`, the nodes in `culvert-node`.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod admin;
pub mod app;
mod claim;
pub mod cli;
pub mod config;
mod database;
pub mod embedded;
pub mod policies;
mod policy_plan;
mod site;
