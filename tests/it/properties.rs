//! Properties of what strangers and other programs send: frames, JSON, cursors, questions to policies.

use std::net::IpAddr;

use culvert_api_types::json_tree::JsonTree;
use culvert_domain::page::CursorPosition;
use culvert_policy::engine::engines::Engines;
use culvert_policy::engine::sandbox::Limits;
use culvert_policy::load::component::Module;
use culvert_policy::load::dynamic::{CallError, UntypedModule};
use culvert_service::cursors::ListId;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{ToAgent, ToHost};
use culvert_wire::data::{self, Attach, Visit};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::node::{
    AssignedPort, Assignment, BasicAuth, Certificate, Challenge, Route, RouteName, TlsIdentity, ToNode, Transport,
};
use culvert_wire::unproven::{Entry, Unproven};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::support::artefacts;
use crate::support::host::{Engine, TestHost};

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("JSON has neither infinity nor NaN", |number| number.is_finite())
            .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn now<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn canonical(text: &str) -> String {
    serde_json::from_str::<JsonTree>(text).unwrap().canonical()
}

proptest! {
    /// Connections come, are held and go; those that are open never exceed the limits, and a held one is never evicted.
    #[test]
    fn held_connection_is_never_evicted(steps in prop::collection::vec((0..3_u8, 0..3_u8), 0..60)) {
        let unproven = Unproven::new(5, 3, || {});
        let mut entries: Vec<(u8, Entry, bool)> = Vec::new();
        for (step, number) in steps {
            let picked = entries.iter().position(|(address, _, held)| *address == number && !held);
            match (step, picked) {
                (0, _) => {
                    entries.push((number, unproven.enter(IpAddr::from([198, 51, 100, number])), false));
                }
                (1, Some(picked)) => {
                    entries[picked].1.hold();
                    entries[picked].2 = true;
                }
                _ if !entries.is_empty() => {
                    entries.remove(usize::from(number) % entries.len());
                }
                _ => {}
            }
            prop_assert!(entries.iter().all(|(_, entry, held)| !held || !entry.evicted.is_cancelled()));
            entries.retain(|(_, entry, _)| !entry.evicted.is_cancelled());
            prop_assert!(entries.iter().filter(|(_, _, held)| !held).count() <= 5);
            for address in 0..3 {
                prop_assert!(entries.iter().filter(|(own, ..)| *own == address).count() <= 3);
            }
        }
    }

    /// Spaces, the order of keys and escapes do not matter; the canonical text is its own canonical text.
    #[test]
    fn json_tree_canonical_text_is_stable(value in json_value()) {
        let compact = canonical(&value.to_string());
        prop_assert_eq!(&canonical(&serde_json::to_string_pretty(&value).unwrap()), &compact);
        prop_assert_eq!(canonical(&compact), compact);
    }

    #[test]
    fn json_tree_parser_answers_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        // An error or a tree, and no panic; an object is one for serde_json as well.
        if let Ok(JsonTree::Object(_)) = JsonTree::parse(&bytes) {
            prop_assert!(serde_json::from_slice::<Map<String, Value>>(&bytes).is_ok());
        }
    }

    #[test]
    fn data_frames_round_trip_and_end_exactly(
        (tunnel_id, epoch, token) in (any::<u128>(), any::<i64>(), prop::collection::vec(any::<u8>(), 0..200)),
        (visitor, port_id, waiting) in (any::<std::net::SocketAddr>(), any::<Option<u128>>(), any::<usize>()),
        rest in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let attach = Attach { tunnel_id: Uuid::from_u128(tunnel_id), epoch, token: Base64Bytes(token) };
        let visit = Visit { visitor, port_id: port_id.map(Uuid::from_u128), waiting };
        let mut bytes = Vec::new();
        now(data::write_frame(&mut bytes, &attach)).unwrap();
        now(data::write_frame(&mut bytes, &visit)).unwrap();
        bytes.extend(&rest);
        let mut stream = &bytes[..];
        let first: Attach = now(data::read_frame(&mut stream)).unwrap();
        let second: Visit = now(data::read_frame(&mut stream)).unwrap();
        prop_assert_eq!(format!("{first:?}{second:?}"), format!("{attach:?}{visit:?}"));
        prop_assert_eq!(stream, &rest[..]);
    }

    #[test]
    fn data_frame_reader_answers_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = now(data::read_frame::<Attach>(&mut &bytes[..]));
        let _ = now(data::read_frame::<Visit>(&mut &bytes[..]));
    }

    /// A newer program may send frames and fields that this one does not know. It must not break the connection.
    #[test]
    fn unknown_frames_and_fields_are_ignored(name in "[a-z_]{1,20}", fields in json_value()) {
        let known = ["welcome", "hello", "renew", "goodbye", "consent"];
        prop_assume!(!known.contains(&name.as_str()));
        let frame = json!({"type": format!("later_{name}"), "fields": fields}).to_string();
        prop_assert!(matches!(serde_json::from_str::<ToHost>(&frame), Ok(ToHost::Unknown)));
        prop_assert!(matches!(serde_json::from_str::<ToAgent>(&frame), Ok(ToAgent::Unknown)));
        let renew = json!({"type": "renew", "sequence": 7, "lease_ids": [], format!("later_{name}"): fields});
        let read: ToHost = serde_json::from_value(renew).unwrap();
        prop_assert_eq!(read, ToHost::Renew { sequence: 7, lease_ids: Vec::new() });
    }

    #[test]
    fn node_frames_round_trip(
        (ids, epoch, revision) in (any::<[u128; 5]>(), any::<i64>(), any::<u64>()),
        ports in prop::collection::vec((any::<u16>(), any::<Option<u128>>()), 0..5),
        (name, idle, buffer) in (any::<String>(), any::<u32>(), any::<u32>()),
    ) {
        let [tunnel_id, session_id, scope_id, device_id, boot_id] = ids.map(Uuid::from_u128);
        let port = |(port, id): (u16, Option<u128>)| {
            AssignedPort { port, transport: Transport::Tcp, port_id: id.map(Uuid::from_u128) }
        };
        let assignment = Assignment {
            tunnel_id,
            session_id,
            epoch,
            device_id,
            boot_id,
            scope_id,
            name: name.clone(),
            protocol: "tcp".into(),
            ready: true,
            ports: ports.into_iter().map(port).collect(),
            idle_timeout_seconds: idle,
            flow_idle_timeout_seconds: idle,
            buffer_size_bytes: buffer,
            target_version: 0,
            access_version: 0,
            firewall: Vec::new(),
            countries: Vec::new(),
        };
        let route = Route {
            tunnel_id,
            names: vec![RouteName { name: "a.example".into(), port_id: Some(scope_id), tls: true }],
            https: false,
            suspended_until: Some(chrono::DateTime::UNIX_EPOCH),
            basic_auth: Some(BasicAuth { user: "ada".into(), password_hash: "$argon2id$".into() }),
            host_header: None,
            h2c: false,
            names_visitors: true,
            tls_passthrough: false,
        };
        let certificate = Certificate { names: vec!["a.example".into()], chain: name, key: Base64Bytes(vec![1, 2]) };
        let challenge = Challenge {
            name: "a.example".into(),
            kind: "http-01".into(),
            token: "a".into(),
            key_authorization: "a.b".into(),
        };
        let identity =
            TlsIdentity { owner_id: tunnel_id, certificates: vec![certificate], challenges: vec![challenge] };
        let frame = ToNode::Change {
            from: revision,
            revision,
            put: vec![assignment],
            drop: vec![tunnel_id],
            put_routes: vec![route],
            drop_routes: vec![tunnel_id],
            put_identities: vec![identity],
            drop_identities: vec![tunnel_id],
        };
        let text = serde_json::to_string(&frame).unwrap();
        prop_assert_eq!(serde_json::from_str::<ToNode>(&text).unwrap(), frame);
    }

    /// A word that is not known is kept as it is.
    #[test]
    fn failure_codes_keep_unknown_words(word in any::<String>()) {
        let code = FailureCode::from(word.clone());
        prop_assert_eq!(serde_json::to_value(&code).unwrap(), json!(word));
        prop_assert_eq!(serde_json::from_value::<FailureCode>(json!(word)).unwrap(), code);
    }
}

/// A cursor opens for its own list alone, and only unchanged.
#[tokio::test]
async fn cursors_are_bound_to_their_list_and_unforgeable() {
    let host = TestHost::start(Engine::Sqlite).await;
    let service = &host.app.service;
    let cases =
        (any::<u128>(), any::<u128>(), "/v2/[a-z]{1,12}", 0_i64..=4_102_444_800_000_000, any::<prop::sample::Index>());
    let mut runner = proptest::test_runner::TestRunner::default();
    let property = |(scope, id, path, micros, at): (u128, u128, String, i64, prop::sample::Index)| {
        let list = ListId { scope_id: Uuid::from_u128(scope), path: &path };
        let at_time = chrono::DateTime::from_timestamp_micros(micros).unwrap();
        let position = CursorPosition { at: at_time, id: Uuid::from_u128(id) };
        let cursor = service.cursor(list, position);
        prop_assert_eq!(service.open_cursor(list, &cursor), Some(position));
        let other = ListId { scope_id: Uuid::from_u128(!scope), ..list };
        prop_assert_eq!(service.open_cursor(other, &cursor), None);
        prop_assert_eq!(service.open_cursor(ListId { path: "/v2/other/list", ..list }, &cursor), None);
        let mut bytes = cursor.clone().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(bytes).unwrap();
        prop_assert_eq!(service.open_cursor(list, &forged), None);
        prop_assert_eq!(service.open_cursor(list, &cursor[..at]), None);
        Ok(())
    };
    runner.run(&cases, property).unwrap();
}

/// Whatever JSON an author asks a module with: an answer, or an error that says where the question is wrong.
#[test]
fn policy_question_of_arbitrary_json_is_answered_or_refused() {
    let engines = Engines::new(1).unwrap();
    let wasm = std::fs::read("policies/dist/validation.wasm").unwrap();
    let module = Module::read(&engines, &artefacts(), wasm, None).unwrap();
    let configured = module.configure(&engines, &artefacts(), &Map::new(), Limits::generous()).unwrap();
    let module = UntypedModule::new(&engines, &configured).unwrap();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(64));
    let property = |question: Value| match module.ask(None, &question) {
        Ok(_) | Err(CallError::PolicyRequest(_)) => Ok(()),
        Err(CallError::Failed(failure)) => Err(TestCaseError::fail(failure.to_string())),
    };
    runner.run(&json_value(), property).unwrap();
    let create = json_value().prop_map(|value| json!({"input": {"tunnel-create": value}, "facts": {}}));
    runner.run(&create, property).unwrap();
}
