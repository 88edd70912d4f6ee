//! haproxy and nginx: proxies in front of a node, and services behind a tunnel.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::host::{own_address, within};

/// A program with a configuration of its own. Dropped, it is killed.
pub struct Proxy {
    /// Where it listens, at the ports that its configuration says.
    pub address: IpAddr,
    pub folder: TempDir,
    _child: Child,
}

impl Proxy {
    /// haproxy with these sections; `ADDRESS` in them is its address.
    pub async fn haproxy(sections: &str, port: u16) -> Self {
        let config = format!("defaults\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n{sections}");
        Self::start(&config, port, |file| {
            let mut haproxy = Command::new(program("haproxy"));
            haproxy.args(["-db", "-q", "-f"]).arg(file);
            haproxy
        })
        .await
    }

    /// nginx with a server that listens as said and answers with `answer`.
    pub async fn nginx(listen: &str, port: u16, answer: &str) -> Self {
        let config = format!(
            "pid nginx.pid; events {{}} http {{ access_log off; ssl_certificate cert.pem; ssl_certificate_key key.pem; \
             client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; \
             scgi_temp_path scgi; server {{ listen ADDRESS:{port} {listen}; location / {{ default_type text/plain; \
             return 200 '{answer}'; }} }} }}"
        );
        Self::start(&config, port, |file| {
            let mut nginx = Command::new(program("nginx"));
            nginx.args(["-g", "daemon off; master_process off;", "-e", "stderr", "-p"]);
            nginx.arg(file.parent().unwrap()).arg("-c").arg(file);
            nginx
        })
        .await
    }

    async fn start(config: &str, port: u16, command: impl FnOnce(&Path) -> Command) -> Self {
        let (folder, address) = (tempfile::tempdir().unwrap(), own_address());
        let certified =
            rcgen::generate_simple_self_signed(["service.internal".to_owned(), SERVICE.to_owned()]).unwrap();
        std::fs::write(folder.path().join("cert.pem"), certified.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), certified.signing_key.serialize_pem()).unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, config.replace("ADDRESS", &address.to_string())).unwrap();
        let child = command(&file).stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
        let proxy = Self { address, folder, _child: child };
        within(20, async {
            while TcpStream::connect(proxy.at(port)).await.is_err() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        proxy
    }

    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    /// Its certificate, good for [`SERVICE`].
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }
}

/// A public name that the certificate of a service is good for.
pub const SERVICE: &str = "own.tunnel.localhost";

fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin").join(name);
    assert!(path.exists(), "tests/setup installs {}", path.display());
    path
}
