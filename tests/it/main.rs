//! The tests of the whole, in one binary: by resource, through the front door.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]
#![allow(clippy::too_many_lines, reason = "a test is one story, told in its order")]
#![allow(clippy::float_cmp, reason = "gauges and percentages are exact here")]
#![allow(clippy::large_stack_arrays, clippy::format_collect, reason = "tests make large inputs as it is easiest")]

mod account;
mod acme;
mod agents;
mod attacks;
mod audit;
mod authorization;
mod authors;
mod bad_input;
mod cli;
mod conformance;
mod connections;
mod crash;
mod crates;
mod data_connections;
mod datagrams;
mod decisions;
mod deliveries;
mod docs;
mod domains;
mod events;
mod examples;
mod facts;
mod failures;
mod foreground;
mod generated;
mod guards;
mod guide;
mod idempotency;
mod keys;
mod limits;
mod liveness;
mod local_services;
mod moves;
mod newcomer;
mod nodes;
mod openapi;
mod operations;
mod order;
mod pages;
mod parity;
mod paths;
mod plan;
mod policy;
mod ports;
mod properties;
mod quic;
mod registry;
mod reload;
mod rules;
mod sandbox;
mod slow_policies;
mod smuggling;
mod statements;
mod support;
mod targets;
mod tidy;
mod tls;
mod traffic;
mod tunnels;
mod two_hosts;
mod udp;
mod udp_tools;
mod upgrade;
mod visitors;
mod web;
mod web_proxies;
mod web_scanners;
mod web_timeouts;
mod web_tools;
mod webhooks;
