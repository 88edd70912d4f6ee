//! The tests of the whole, in one binary: by resource, through the front door.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod account;
mod agents;
mod attacks;
mod authorization;
mod authors;
mod bad_input;
mod cli;
mod conformance;
mod connections;
mod crash;
mod crates;
mod decisions;
mod deliveries;
mod docs;
mod domains;
mod events;
mod failures;
mod generated;
mod guards;
mod guide;
mod idempotency;
mod keys;
mod limits;
mod moves;
mod newcomer;
mod nodes;
mod openapi;
mod operations;
mod order;
mod pages;
mod parity;
mod policy;
mod ports;
mod reload;
mod sandbox;
mod support;
mod targets;
mod tidy;
mod traffic;
mod tunnels;
mod upgrade;
mod visitors;
mod webhooks;
