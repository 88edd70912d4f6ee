//! What the service is about, as plain values and pure functions: no HTTP, no SQL, no WebAssembly.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

pub mod access;
pub mod account;
pub mod action;
pub mod audit_log;
pub mod caller;
pub mod certificate;
pub mod connection;
pub mod custom_domain;
pub mod device;
pub mod error;
pub mod event;
pub mod facts;
pub mod field_path;
pub mod fleet;
pub mod key;
pub mod lease;
pub mod local_service;
pub mod mail;
pub mod node;
pub mod node_request;
pub mod operation;
pub mod page;
pub mod permission;
pub mod plan;
pub mod policy_fact;
pub mod port;
pub mod preset;
pub mod protocol;
pub mod refusal;
pub mod refused_by;
pub mod session;
pub mod sign_in;
pub mod string_enum;
pub mod team;
pub mod text;
pub mod tunnel;
pub mod tunnel_devices;
pub mod usage;
pub mod webhook;
