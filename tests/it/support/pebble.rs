//! An ACME authority that nobody here wrote: Pebble, with its DNS server.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::host::{own_address, within};

/// How long a program may take to start, in seconds.
const SOON: u64 = 30;

/// The ports at which the authority looks at nodes.
pub const HTTP_PORT: u16 = 8081;
pub const HTTPS_PORT: u16 = 8443;

pub struct Pebble {
    address: IpAddr,
    folder: TempDir,
    _programs: [Child; 2],
}

impl Pebble {
    /// Starts an authority for which every name leads to a node, and which refuses every second nonce. It looks for
    /// TLS-ALPN-01 at `https_port`.
    pub async fn start(node: IpAddr, https_port: u16) -> Self {
        Self::asking(node, https_port, None).await
    }

    /// The same, which asks another DNS server.
    pub async fn asking(node: IpAddr, https_port: u16, resolver: Option<SocketAddr>) -> Self {
        let (address, folder) = (own_address(), tempfile::tempdir().unwrap());
        let own = rcgen::generate_simple_self_signed([address.to_string()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), own.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), own.signing_key.serialize_pem()).unwrap();
        let config = json!({"pebble": {
            "listenAddress": format!("{address}:14000"),
            "managementListenAddress": format!("{address}:15000"),
            "certificate": folder.path().join("cert.pem"),
            "privateKey": folder.path().join("key.pem"),
            "httpPort": HTTP_PORT,
            "tlsPort": https_port,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
        }});
        let config_file = folder.path().join("pebble.json");
        std::fs::write(&config_file, config.to_string()).unwrap();
        let mut dns = program("pebble-challtestsrv");
        let off = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""];
        dns.args(off).args(["-defaultIPv4", &node.to_string(), "-dns01", &format!("{address}:8053")]);
        dns.args(["-management", &format!("{address}:8055")]);
        let dns = started(dns, "Starting management server").await;
        let mut pebble = program("pebble");
        let resolver = resolver.unwrap_or(SocketAddr::new(address, 8053)).to_string();
        pebble.args(["-strict", "-dnsserver", &resolver, "-config"]).arg(config_file);
        pebble.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "50");
        // Every order is proved anew.
        pebble.env("PEBBLE_AUTHZREUSE", "0");
        let pebble = started(pebble, "Listening on").await;
        Self { address, folder, _programs: [dns, pebble] }
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    pub fn directory(&self) -> String {
        format!("https://{}:14000/dir", self.address)
    }

    /// What the directory's own certificate is trusted by.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// The DNS server, which the authority and the host ask.
    pub fn dns(&self) -> SocketAddr {
        SocketAddr::new(self.address, 8053)
    }

    /// Writes the root of the certificates that it issues into a file.
    pub async fn root(&self) -> PathBuf {
        let path = self.folder.path().join("root.pem");
        let url = format!("https://{}:15000/roots/0", self.address);
        let fetched = Command::new("curl").args(["-sSf", "--cacert"]).arg(self.certificate()).arg(url).output();
        std::fs::write(&path, fetched.await.unwrap().stdout).unwrap();
        path
    }

    pub async fn set_cname(&self, host: &str, target: &str) {
        self.tell("set-cname", json!({"host": format!("{host}."), "target": format!("{target}.")})).await;
    }

    /// Has a name lead to the node again.
    pub async fn clear_address(&self, host: &str) {
        self.tell("clear-a", json!({"host": format!("{host}.")})).await;
    }

    /// Has a name lead to an address.
    pub async fn set_address(&self, host: &str, address: &str) {
        self.tell("add-a", json!({"host": format!("{host}."), "addresses": [address]})).await;
    }

    /// A program for `acme.dns_command`.
    pub fn dns_command(&self) -> PathBuf {
        let path = self.folder.path().join("dns.sh");
        let url = format!("http://{}:8055", self.address);
        let script = format!(
            "#!/bin/sh\nexec curl -sSf -d \"{{\\\"host\\\": \\\"$2.\\\", \\\"value\\\": \\\"$3\\\"}}\" {url}/$1-txt >&2\n"
        );
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    async fn tell(&self, what: &str, body: serde_json::Value) {
        let url = format!("http://{}:8055/{what}", self.address);
        let told = Command::new("curl").args(["-sSf", "-d", &body.to_string(), &url]).status();
        assert!(told.await.unwrap().success());
    }
}

fn program(name: &str) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin").join(name);
    assert!(path.exists(), "tests/setup installs {}", path.display());
    let mut program = Command::new(path);
    program.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::inherit());
    program
}

/// Starts a program, and waits until it says something.
async fn started(mut program: Command, word: &str) -> Child {
    let mut program = program.spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    within(SOON, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            said.push(line);
            if said.last().is_some_and(|line| line.contains(word)) {
                return;
            }
        }
        panic!("it has ended: {said:#?}");
    })
    .await;
    // The pipe must not fill.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    program
}
