//! Modules that travel: pushed to a registry and pulled from it, loaded by digest, signed.

use std::path::Path;
use std::process::Output;

use culvert_wire::clock::Clock;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::host::{Engine, own_address};
use crate::support::policies::{Swapped, builtin};
use crate::support::program::Place;
use crate::support::receiver::{Authority, Reply};
use crate::support::registry::RegistryServer;

const MODULE: &str = "policies/dist/team-role.wasm";

fn said(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{error}").trim().to_owned()
}

/// An entry in front of the shipped modules.
fn configuration(entry: &str) -> String {
    format!("[[policy]]\nkind = \"team-role\"\n{entry}\n") + &builtin(&["plan-access", "validation"])
}

fn password() -> String {
    Clock::system().id().to_string()
}

/// Makes a pair of keys, with openssl alone: `<name>.key` and `<name>.pub`.
async fn make_keys(place: &Place, name: &str, options: &str) {
    let line =
        format!("openssl genpkey {options} -out {name}.key && openssl pkey -in {name}.key -pubout -out {name}.pub");
    place.shell(&line).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signed_module_is_pushed_pulled_and_loaded_by_digest() {
    let password = password();
    let place = Place::new(Engine::Sqlite).await;
    let folder = place.folder.path();
    let registry = RegistryServer::start(&folder.join("registry"), &password).await;
    std::fs::copy(MODULE, folder.join("ours.wasm")).unwrap();
    let name = format!("oci://{}/policies/ours:1.0.0", registry.name());

    let refused = place.run(&format!("culvert policy push ours.wasm {name}")).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        said(&refused).contains("the registry does not let us in; log in with `docker login`"),
        "{}",
        said(&refused)
    );

    registry.log_in(folder, &password);
    make_keys(&place, "policy", "-algorithm ed25519").await;
    let signed = place.run("culvert policy sign ours.wasm --key policy.key").await;
    assert_eq!(said(&signed), "ours.wasm.sig: signed ours.wasm");
    let pushed = place.json(&format!("culvert policy push ours.wasm {name}")).await;
    assert_eq!(pushed["signed"], true);
    let digested = pushed["module"].as_str().unwrap().to_owned();
    assert!(digested.starts_with(&format!("{name}@sha256:")), "{digested}");

    let pulled = place.json(&format!("culvert policy pull {name} --out pulled.wasm")).await;
    assert_eq!((&pulled["module"], &pulled["sha256"]), (&pushed["module"], &pushed["sha256"]));
    assert_eq!(std::fs::read(folder.join("pulled.wasm")).unwrap(), std::fs::read(MODULE).unwrap());
    let signature = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap().trim().to_owned();
    assert_eq!(signature("pulled.wasm.sig"), signature("ours.wasm.sig"));

    // A signature of another module does not stay beside one that has none.
    std::fs::rename(folder.join("ours.wasm.sig"), folder.join("aside.sig")).unwrap();
    let unsigned = name.replace(":1.0.0", ":2.0.0");
    assert_eq!(place.json(&format!("culvert policy push ours.wasm {unsigned}")).await["signed"], false);
    assert_eq!(place.json(&format!("culvert policy pull {unsigned} --out pulled.wasm")).await["signed"], false);
    assert!(!folder.join("pulled.wasm.sig").exists());

    // A tag can move, so a host wants the digest, and names it.
    let trusted = "[policies]\ntrusted_keys = [\"policy.pub\"]\n";
    let load = |module: &str| {
        std::fs::write(folder.join("culvert.toml"), configuration(&format!("module = \"{module}\"")) + trusted)
            .unwrap();
    };
    load(&name);
    let refused = place.run("culvert serve").await;
    let wanted = format!("policy[0].module: must end in the digest of its manifest, which now is `{digested}`");
    assert!(said(&refused).contains(&wanted), "{}", said(&refused));

    load(&format!("{digested}\"\nsha256 = \"00"));
    let refused = said(&place.run("culvert serve").await);
    assert!(refused.contains(&format!("policy[0].sha256: {digested} has the digest ")), "{refused}");

    load(&digested);
    let host = place.serve().await;
    assert!(said(&place.run("culvert policy status").await).contains(&digested));
    host.kill().await;
    // What was loaded is kept: a start needs no registry. Nor does another entry for it, while the folder has it.
    registry.stop().await;
    load(&format!("{digested}\"\ndeadline_ms = 40\nmode = \"enforce"));
    place.serve().await.kill().await;
    std::fs::remove_dir_all(folder.join("culvert-data/policy-modules")).unwrap();
    place.serve().await.kill().await;
    std::fs::remove_dir_all(folder.join("culvert-data/policy-modules")).unwrap();
    load(&digested);
    let refused = place.run("culvert serve").await;
    assert!(said(&refused).starts_with(&format!("culvert: policy[0].module: {digested}: ")), "{}", said(&refused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artefact_that_is_not_what_was_named_is_refused() {
    let password = password();
    let place = Place::new(Engine::Sqlite).await;
    let folder = place.folder.path();
    let registry = RegistryServer::start(&folder.join("registry"), &password).await;
    registry.log_in(folder, &password);
    std::fs::copy(MODULE, folder.join("ours.wasm")).unwrap();
    std::fs::write(folder.join("text.wasm"), "text").unwrap();
    let name = format!("oci://{}/ours", registry.name());
    let digest = "0".repeat(64);
    let mut lines = Vec::new();
    for line in [
        format!("culvert policy push text.wasm {name}:1"),
        format!("culvert policy push ours.wasm {name}@sha256:{digest}"),
        format!("culvert policy pull {name}@sha512:{digest}{digest}"),
        "culvert policy push ours.wasm ours:1".into(),
        "culvert policy push ours.wasm oci://".into(),
        format!("culvert policy pull {name}:1"),
        format!("culvert policy pull {name}@sha256:{digest}"),
    ] {
        let output = place.run(&line).await;
        assert!(!output.status.success(), "{line}");
        let line = said(&output).replace(&registry.name(), "registry");
        // What it waits for is said only where that takes longer than a second.
        let problem = line.lines().find(|line| line.starts_with("culvert: ") || line.starts_with("error: "));
        lines.push(problem.unwrap_or_default().to_owned());
    }
    insta::assert_snapshot!(lines.join("\n"), @r#"
    culvert: text.wasm: it is no WebAssembly component: failed to parse WebAssembly module: magic header not detected: bad magic number - expected=[ 0x0, 0x61, 0x73, 0x6d, ] actual=[ 0x74, 0x65, 0x78, 0x74, ] (at offset 0x0)
    culvert: oci://registry/ours@sha256:0000000000000000000000000000000000000000000000000000000000000000: a module is pushed to a tag, not to a digest
    culvert: oci://registry/ours@sha512:00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000: must be oci://registry/repository:tag or oci://registry/repository@sha256:…
    error: invalid value 'ours:1' for '<TO>': must begin with oci://
    culvert: oci://: must be oci://registry/repository:tag or oci://registry/repository@sha256:…
    culvert: oci://registry/ours:1: the registry has no such artefact
    culvert: oci://registry/ours@sha256:0000000000000000000000000000000000000000000000000000000000000000: the registry has no such artefact
    "#);
}

/// A registry that gives a token to whoever asks for one, and what it answers to requests with it.
struct OpenRegistry {
    token: &'static str,
    manifest: &'static str,
}

impl OpenRegistry {
    /// Answers until the test ends. What is empty has no end.
    async fn start(self) -> String {
        let listener = TcpListener::bind((own_address(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
                let challenge =
                    format!("www-authenticate: Bearer realm=\"http://{address}/token\",service=\"ours\"\r\n");
                let (status, more, body) =
                    if head.starts_with("get /token?scope=repository%3aours%3apull&service=ours ") {
                        ("200 OK", "", self.token)
                    } else if head.contains("authorization: bearer let-me-in\r\n") {
                        ("200 OK", "", self.manifest)
                    } else {
                        ("401 Unauthorized", challenge.as_str(), "{}")
                    };
                let head = format!("HTTP/1.1 {status}\r\n{more}connection: close\r\n\r\n{body}");
                stream.write_all(head.as_bytes()).await.unwrap();
                // Until the client hangs up, or there was enough.
                for _ in 0..if body.is_empty() { (64 << 20) / 4096 } else { 0 } {
                    if stream.write_all(&[b' '; 4096]).await.is_err() {
                        break;
                    }
                }
            }
        });
        address.to_string()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_registry_without_end_are_refused() {
    let (token, manifest) = (r#"{"token": "let-me-in"}"#, r#"{"schemaVersion": 2}"#);
    let place = Place::new(Engine::Sqlite).await;
    let mut lines = Vec::new();
    for registry in [
        OpenRegistry { token, manifest: "" },
        OpenRegistry { token: "", manifest },
        OpenRegistry { token: "{}", manifest },
        OpenRegistry { token, manifest },
    ] {
        let address = registry.start().await;
        let pulled = place.run(&format!("culvert policy pull oci://{address}/ours:1")).await;
        assert_eq!(pulled.status.code(), Some(1));
        lines.push(said(&pulled).replace(&address, "registry"));
    }
    insta::assert_snapshot!(lines.join("\n"), @"
    culvert: oci://registry/ours:1: its manifest: it has more than 262144 bytes
    culvert: oci://registry/ours:1: its token: it has more than 65536 bytes
    culvert: oci://registry/ours:1: its token: the answer has none
    culvert: oci://registry/ours:1: its manifest must have one layer of the type application/wasm
    ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn module_comes_from_web_server_by_its_digest() {
    let authority = Authority::new();
    let server = authority.receiver(&Clock::system()).await;
    let wasm = std::fs::read(MODULE).unwrap();
    let digest = hex::encode(Sha256::digest(&wasm));
    server.reply(Reply::File(wasm.into()));
    let place = Place::new(Engine::Sqlite).await;
    let roots = place.folder.path().join("roots.pem");
    std::fs::write(&roots, authority.pem()).unwrap();
    let place = place.set("SSL_CERT_FILE", roots.to_str().unwrap());
    let url = format!("{}ours.wasm", server.url());
    let settings = place.folder.path().join("culvert.toml");
    let configure = |more: &str| {
        let entry = format!("module = \"{url}\"\n{more}");
        std::fs::write(&settings, configuration(&entry)).unwrap();
    };
    configure("");
    let refused = said(&place.run("culvert serve").await);
    assert!(
        refused.contains(&format!(
            "policy[0].sha256: is required for a module that is not built in; this one's is {digest}"
        )),
        "{refused}"
    );
    configure(&format!("sha256 = \"{}\"", "0".repeat(64)));
    let refused = said(&place.run("culvert serve").await);
    assert!(refused.contains(&format!("policy[0].sha256: {url} has the digest {digest}, not 000")), "{refused}");
    configure(&format!("sha256 = \"{digest}\""));
    place.serve().await.kill().await;
    let connections = server.connections();
    place.serve().await.kill().await;
    assert_eq!(server.connections(), connections, "it was kept");
    // Without the authority nobody is believed. What was loaded is in the database.
    std::fs::write(&roots, Authority::new().pem()).unwrap();
    let modules = place.folder.path().join("culvert-data/policy-modules");
    std::fs::remove_dir_all(&modules).unwrap();
    place.serve().await.kill().await;
    std::fs::remove_dir_all(&modules).unwrap();
    configure(&format!("sha256 = \"{digest}\"\ndeadline_ms = 40"));
    let refused = said(&place.run("culvert serve").await);
    assert!(refused.starts_with(&format!("culvert: policy[0].module: {url}: ")), "{refused}");
}

/// A signature that is not accepted any more is asked for again, so that a key can be replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn module_of_web_server_can_be_signed_anew() {
    let authority = Authority::new();
    let server = authority.receiver(&Clock::system()).await;
    let wasm = std::fs::read(MODULE).unwrap();
    let place = Place::new(Engine::Sqlite).await;
    let folder = place.folder.path().to_owned();
    std::fs::write(folder.join("roots.pem"), authority.pem()).unwrap();
    std::fs::write(folder.join("ours.wasm"), &wasm).unwrap();
    let place = place.set("SSL_CERT_FILE", folder.join("roots.pem").to_str().unwrap());
    let digest = hex::encode(Sha256::digest(&wasm));
    for key in ["former", "present"] {
        make_keys(&place, key, "-algorithm ed25519").await;
        place.run(&format!("culvert policy sign ours.wasm --key {key}.key")).await;
        let signature = std::fs::read(folder.join("ours.wasm.sig")).unwrap();
        server.reply_first([Reply::File(wasm.clone().into()), Reply::File(signature.into())]);
        let entry = format!("module = \"{}ours.wasm\"\nsha256 = \"{digest}\"", server.url());
        let trusted = format!("[policies]\ntrusted_keys = [\"{key}.pub\"]\n");
        std::fs::write(folder.join("culvert.toml"), configuration(&entry) + &trusted).unwrap();
        place.serve().await.kill().await;
    }
}

/// A host that trusts keys, and a copy of a module to sign.
async fn trusting(place: &Place, keys: &[&str]) -> Swapped {
    let keys = keys.iter().map(|key| place.folder.path().join(format!("{key}.pub")).display().to_string()).collect();
    Swapped::start(|config| config.policies.trusted_keys = keys).await
}

async fn load(swapped: &Swapped, module: &Path, more: &str) -> Result<u64, String> {
    let digest = hex::encode(Sha256::digest(std::fs::read(module).unwrap()));
    let entry = format!("module = \"{}\"\nsha256 = \"{digest}\"\n{more}", module.display());
    swapped.configure(&configuration(&entry));
    swapped.reload().await
}

/// The signatures of the tools that people have are accepted, raw and in base64.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signatures_of_openssl_are_accepted() {
    let place = Place::new(Engine::Sqlite).await;
    let module = place.folder.path().join("ours.wasm");
    std::fs::copy(MODULE, &module).unwrap();
    make_keys(&place, "ed", "-algorithm ed25519").await;
    make_keys(&place, "ec", "-algorithm EC -pkeyopt ec_paramgen_curve:P-256").await;
    let swapped = trusting(&place, &["ed", "ec"]).await;
    let mut generation = 1;
    for sign in [
        "openssl pkeyutl -sign -rawin -inkey ed.key -in ours.wasm -out ours.wasm.sig",
        "openssl dgst -sha256 -sign ec.key -out ours.wasm.sig ours.wasm",
        "openssl dgst -sha256 -sign ec.key ours.wasm | base64 > ours.wasm.sig",
        "openssl pkeyutl -sign -rawin -inkey ed.key -in ours.wasm | base64 -w0 > ours.wasm.sig",
    ] {
        place.shell(sign).await;
        generation += 1;
        assert_eq!(load(&swapped, &module, "").await, Ok(generation), "{sign}");
    }
    for key in ["ed", "ec"] {
        let signed = place.run(&format!("culvert policy sign ours.wasm --key {key}.key")).await;
        assert!(signed.status.success(), "{}", said(&signed));
        generation += 1;
        assert_eq!(load(&swapped, &module, "").await, Ok(generation), "{key}");
        let modules = swapped.status().await["modules"].clone();
        let signed: Vec<_> = modules.as_array().unwrap().iter().map(|module| &module["signed"]).collect();
        assert_eq!(signed.iter().filter(|signed| **signed == true).count(), 1, "all but the built-in ones: {modules}");
        // openssl accepts ours as well.
        let verify = if key == "ed" {
            "base64 -d ours.wasm.sig > raw.sig && openssl pkeyutl -verify -rawin -pubin -inkey ed.pub -in ours.wasm -sigfile raw.sig"
        } else {
            "base64 -d ours.wasm.sig > raw.sig && openssl dgst -sha256 -verify ec.pub -signature raw.sig ours.wasm"
        };
        place.shell(verify).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn module_without_valid_signature_is_refused_with_one_line() {
    let place = Place::new(Engine::Sqlite).await;
    let module = place.folder.path().join("ours.wasm");
    let beside = place.folder.path().join("ours.wasm.sig");
    std::fs::copy(MODULE, &module).unwrap();
    make_keys(&place, "ours", "-algorithm ed25519").await;
    make_keys(&place, "theirs", "-algorithm ed25519").await;
    make_keys(&place, "rsa", "-algorithm RSA -pkeyopt rsa_keygen_bits:2048").await;
    let swapped = trusting(&place, &["ours"]).await;
    let missing = "policy[0].signature: is missing, and policies.trusted_keys asks for one; `culvert policy sign` makes the \
                   file .sig beside the module";
    let wrong = "policy[0].signature: no key in policies.trusted_keys has made it for this module; load the module that \
                 was signed, or sign this one";
    assert_eq!(load(&swapped, &module, "").await, Err(missing.into()));
    place.run("culvert policy sign ours.wasm --key theirs.key").await;
    assert_eq!(load(&swapped, &module, "").await, Err(wrong.into()));
    std::fs::write(&beside, "nonsense").unwrap();
    assert_eq!(load(&swapped, &module, "").await, Err(wrong.into()));
    place.run("culvert policy sign ours.wasm --key ours.key").await;
    let signature = std::fs::read_to_string(&beside).unwrap();
    // Another module beside the signature of this one.
    std::fs::copy("policies/dist/team-role@1.0.0.wasm", &module).unwrap();
    assert_eq!(load(&swapped, &module, "").await, Err(wrong.into()));
    std::fs::copy(MODULE, &module).unwrap();
    std::fs::remove_file(&beside).unwrap();
    assert_eq!(load(&swapped, &module, "signature = \"?\"").await, Err("policy[0].signature: must be base64".into()));
    assert_eq!(load(&swapped, &module, &format!("signature = \"{}\"", signature.trim())).await, Ok(2));
    // Built-in modules came with the program.
    swapped.configure(&builtin(&["plan-access", "team-role", "validation"]));
    assert_eq!(swapped.reload().await, Ok(3));
    // What was rolled back to is held to the keys as well, by the signature that is kept with it.
    assert_eq!(swapped.rollback().await, Ok(4));

    let refused = async |line: &str| said(&place.run(line).await);
    assert_eq!(
        refused("culvert policy sign ours.wasm --key rsa.key").await,
        "culvert: rsa.key: must be a key for ECDSA P-256 or Ed25519"
    );
    assert_eq!(
        refused("culvert policy sign ours.wasm --key ours.pub").await,
        "culvert: ours.pub: must be a private key in PKCS #8 (`BEGIN PRIVATE KEY`), not encrypted; \
         `openssl pkcs8 -topk8 -nocrypt` makes one"
    );
    for (key, problem) in [
        ("rsa.pub", "must be a key for ECDSA P-256 or Ed25519"),
        ("ours.key", "must be the PEM text of a public key (`BEGIN PUBLIC KEY`), or the name of a file with one"),
        ("none.pub", "No such file or directory (os error 2)"),
    ] {
        std::fs::write(place.folder.path().join("culvert.toml"), format!("[policies]\ntrusted_keys = [\"{key}\"]\n"))
            .unwrap();
        let line = said(&place.run("culvert serve").await);
        assert!(line.contains(&format!("policies.trusted_keys[0]: {problem}")), "{line}");
    }
}
