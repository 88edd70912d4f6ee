//! A PostgreSQL server of a test's own, which it can kill, restart, and replace by its standby.

use std::net::IpAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Output;

use tempfile::TempDir;
use tokio::process::Command;

use super::host::own_address;

/// A server that listens on TCP, at an address of its own.
pub struct Server {
    pub address: IpAddr,
    data: PathBuf,
    _folder: TempDir,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// As `kill -9`: what was not written is recovered at the next start.
    Immediate,
    /// Sessions are ended.
    Fast,
}

const OPTIONS: &str = "-c port=5432 -c max_connections=200 -c wal_level=replica -c shared_buffers=32MB \
    -c max_wal_size=256MB -c synchronous_commit=on -c hot_standby=on -c wal_receiver_status_interval=1";

impl Server {
    /// A server with an empty database `culvert`.
    pub async fn start() -> Self {
        let server = Self::folder();
        let data = server.data.display().to_string();
        program("initdb", &["-D", &data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]).await;
        server.again("").await;
        let address = server.address.to_string();
        program("createdb", &["-h", &address, "-U", "postgres", "culvert"]).await;
        server
    }

    /// A copy of this server that follows it, and that each commit waits for.
    pub async fn standby(&self) -> Self {
        let standby = Self::folder();
        let (from, data) = (self.address.to_string(), standby.data.display().to_string());
        program("pg_basebackup", &["-h", &from, "-U", "postgres", "-D", &data, "-R", "-X", "stream", "-c", "fast"])
            .await;
        standby.again("").await;
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        self.sql("SELECT pg_reload_conf()").await;
        standby
    }

    fn folder() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        if let Some(user) = postgres_user() {
            chown(path, Some(user), None).unwrap();
        }
        Self { address: own_address(), data: path.join("data"), _folder: folder }
    }

    /// Starts it, after a stop as well.
    pub async fn again(&self, options: &str) {
        let sockets = self.data.parent().unwrap().display();
        let options =
            format!("{OPTIONS} -c listen_addresses={} -c unix_socket_directories={sockets} {options}", self.address);
        let (data, log) = (self.data.display().to_string(), format!("{sockets}/log"));
        program("pg_ctl", &["-w", "-t", "60", "-D", &data, "-l", &log, "-o", &options, "start"]).await;
    }

    pub async fn stop(&self, how: Stop) {
        let mode = match how {
            Stop::Immediate => "immediate",
            Stop::Fast => "fast",
        };
        program("pg_ctl", &["-w", "-D", &self.data.display().to_string(), "-m", mode, "stop"]).await;
    }

    /// Makes a standby the server that writes.
    pub async fn promote(&self) {
        program("pg_ctl", &["-w", "-D", &self.data.display().to_string(), "promote"]).await;
    }

    /// What the database holds now.
    pub async fn dump(&self) -> PathBuf {
        let file = self.data.parent().unwrap().join("dump");
        let (from, to) = (self.address.to_string(), file.display().to_string());
        program("pg_dump", &["-h", &from, "-U", "postgres", "-Fc", "-f", &to, "culvert"]).await;
        file
    }

    /// Has the database hold what it held then. Nobody may be connected to it.
    pub async fn restore(&self, dump: &Path) {
        let (to, from) = (self.address.to_string(), dump.display().to_string());
        program("dropdb", &["-h", &to, "-U", "postgres", "culvert"]).await;
        program("createdb", &["-h", &to, "-U", "postgres", "culvert"]).await;
        program("pg_restore", &["-h", &to, "-U", "postgres", "-d", "culvert", &from]).await;
    }

    /// Runs a statement by a tool of PostgreSQL's own.
    pub async fn sql(&self, sql: &str) -> String {
        let address = self.address.to_string();
        let output = program("psql", &["-h", &address, "-U", "postgres", "-d", "culvert", "-Atc", sql]).await;
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The address of the database, seen from a host.
    pub fn url_at(address: impl std::fmt::Display) -> String {
        format!("postgres://postgres@{address}/culvert?sslmode=disable")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        if let Some(pid) = pid.lines().next() {
            let _ = std::process::Command::new("kill").args(["-QUIT", pid]).status();
        }
    }
}

/// PostgreSQL refuses to run as root.
pub fn postgres_user() -> Option<u32> {
    let own = std::process::Command::new("id").arg("-u").output().unwrap().stdout;
    let other = std::process::Command::new("id").args(["-u", "postgres"]).output().unwrap().stdout;
    (own == b"0\n").then(|| String::from_utf8(other).unwrap().trim().parse().unwrap())
}

/// Where Debian keeps the newest version of them.
pub fn postgres_programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").unwrap().map(|version| version.unwrap().path());
    let number = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap_or(0);
    versions.max_by_key(number).unwrap().join("bin")
}

async fn program(name: &str, arguments: &[&str]) -> Output {
    let program = postgres_programs().join(name);
    let mut command = match postgres_user() {
        Some(_) => Command::new("runuser"),
        None => Command::new(&program),
    };
    if postgres_user().is_some() {
        command.args(["-u", "postgres", "--"]).arg(&program);
    }
    // The server that `pg_ctl` starts keeps what it was given.
    let log = tempfile::NamedTempFile::new().unwrap();
    let ended = command.args(arguments).current_dir(Path::new("/")).kill_on_drop(true);
    let output = if arguments.last() == Some(&"start") {
        let status = ended.stdout(log.reopen().unwrap()).stderr(log.reopen().unwrap()).status().await.unwrap();
        let said = std::fs::read(log.path()).unwrap();
        Output { status, stdout: said, stderr: Vec::new() }
    } else {
        ended.output().await.unwrap()
    };
    let said = [&*output.stdout, &*output.stderr].concat();
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&said));
    output
}
