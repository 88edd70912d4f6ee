//! A real registry (Debian's docker-registry) on loopback, which lets in who logs in.

use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::process::{Child, Command};

use super::host::own_address;

pub struct RegistryServer {
    child: Child,
    address: IpAddr,
}

impl RegistryServer {
    /// Starts a registry that keeps its data in a folder, and waits until it answers.
    pub async fn start(folder: &Path, password: &str) -> Self {
        let address = own_address();
        std::fs::create_dir_all(folder).unwrap();
        // htpasswd comes with a web server; Python can make the same hash.
        let hash = "import crypt, sys; print('ada:' + crypt.crypt(sys.argv[1], crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))";
        let hashed = Command::new("python3").args(["-W", "ignore", "-c", hash, password]).output().await.unwrap();
        assert!(hashed.status.success(), "{}", String::from_utf8_lossy(&hashed.stderr));
        std::fs::write(folder.join("htpasswd"), hashed.stdout).unwrap();
        let config = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": folder.join("data")}},
            "http": {"addr": format!("{address}:5000")},
            "auth": {"htpasswd": {"realm": "tests", "path": folder.join("htpasswd")}},
        });
        // JSON is YAML.
        std::fs::write(folder.join("config.yml"), config.to_string()).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(folder.join("config.yml")).kill_on_drop(true);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Self { child: child.expect("docker-registry; tests/setup installs it"), address };
        while reqwest::get(format!("http://{}/v2/", server.name())).await.is_err() {
            assert_eq!(server.child.try_wait().unwrap(), None, "the registry has ended");
            tokio::task::yield_now().await;
        }
        server
    }

    /// As it stands in names of artefacts.
    pub fn name(&self) -> String {
        format!("{}:5000", self.address)
    }

    /// Writes docker's configuration for a person of this home, as `docker login` does.
    pub fn log_in(&self, home: &Path, password: &str) {
        let auth = STANDARD.encode(format!("ada:{password}"));
        let config = json!({"auths": {self.name(): {"auth": auth}}});
        std::fs::create_dir_all(home.join(".docker")).unwrap();
        std::fs::write(home.join(".docker/config.json"), config.to_string()).unwrap();
    }

    pub async fn stop(mut self) {
        self.child.kill().await.unwrap();
    }
}
