//! The real programs, in processes of their own.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::host::{Engine, TestHost, own_address, within};
use super::postgres::new_database;
use super::share_artefacts;

/// A folder to work in, an address to listen on, and what the programs are told of both by their
/// environment.
pub struct Place {
    pub folder: TempDir,
    pub address: IpAddr,
    environment: Vec<(String, String)>,
    /// Where its programs are.
    programs: PathBuf,
}

/// A program that goes on running. Dropped, it is killed.
pub struct Program {
    child: Child,
    /// What it says; read at once, so that it is never held up by what nobody waits for.
    lines: mpsc::UnboundedReceiver<String>,
}

/// One of the programs, as `cargo build -p culvert -p culvert-agent` leaves them beside each other.
fn binary(programs: &Path, name: &str) -> PathBuf {
    let path = programs.join(name);
    assert!(path.exists(), "{} is not there; build it: cargo build -p culvert -p culvert-agent", path.display());
    path
}

/// The library that a program reads a wrong time from: libfaketime, of Debian.
fn wrong_clock() -> PathBuf {
    let found = std::fs::read_dir("/usr/lib").unwrap().flatten().map(|entry| entry.path().join(WRONG_CLOCK));
    found.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{WRONG_CLOCK}: tests/setup installs it"))
}

const WRONG_CLOCK: &str = "faketime/libfaketimeMT.so.1";

/// A script of `tests/web`, with what `tests/setup` installs for it.
pub fn python(script: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let interpreter = root.join("target/tools/web/bin/python");
    assert!(interpreter.exists(), "tests/setup installs {}", interpreter.display());
    let mut python = Command::new(interpreter);
    python.arg(root.join("tests/web").join(script)).kill_on_drop(true);
    python
}

impl Place {
    pub async fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = own_address();
        let mut environment = vec![
            ("CULVERT_LISTEN".into(), format!("{address}:8080")),
            ("CULVERT_ADMIN_LISTEN".into(), format!("{address}:9180")),
            ("CULVERT_NODE__LISTEN".into(), format!("{address}:7835")),
            ("CULVERT_NODE__BIND".into(), address.to_string()),
            ("CULVERT_NODE__HTTP_LISTEN".into(), format!("{address}:8081")),
            ("CULVERT_NODE__HTTPS_LISTEN".into(), format!("{address}:8443")),
            ("CULVERT_NODE__HOSTNAME".into(), address.to_string()),
            // The API's address is the node's as well.
            ("CULVERT_DASHBOARD__URL".into(), "http://localhost:8080/dashboard".into()),
        ];
        if engine == Engine::Postgres {
            environment.push(("CULVERT_DATABASE_URL".into(), new_database().await));
        }
        let place = Self { folder, address, environment, programs: Self::programs() };
        for data_dir in ["culvert-data", "culvert-dev"] {
            let data_dir = place.folder.path().join(data_dir);
            share_artefacts(&data_dir);
        }
        place
    }

    /// A place for another host on the same database, with the same keys.
    pub async fn beside(first: &Self) -> Self {
        let keys = first.folder.path().join("culvert-data/secret.key");
        let place = Self::new(Engine::Sqlite).await;
        place.set("CULVERT_DATABASE_URL", &first.database_url()).set("CULVERT_SECRET_KEY_FILE", keys.to_str().unwrap())
    }

    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    pub fn url(&self) -> String {
        format!("http://{}:8080", self.address)
    }

    /// Where the host keeps its data.
    pub fn database_url(&self) -> String {
        let set = self.environment.iter().find(|(name, _)| name == "CULVERT_DATABASE_URL");
        let file = || format!("sqlite:{}", self.folder.path().join("culvert-data/culvert.db").display());
        set.map_or_else(file, |(_, url)| url.clone())
    }

    /// Where the programs of this version are.
    pub fn programs() -> PathBuf {
        Path::new(env!("CARGO_BIN_EXE_culvert")).parent().unwrap().into()
    }

    /// Its programs are those of this folder.
    pub fn with_programs(self, programs: PathBuf) -> Self {
        Self { programs, ..self }
    }

    /// Where programs of an earlier version are, with which hosts and agents of this one have to work; none, if the tests are not
    /// to be run with them. `tests/previous` builds them.
    pub fn earlier_programs() -> Option<PathBuf> {
        std::env::var_os("TEST_PREVIOUS").map(PathBuf::from)
    }

    /// Waits until a file in the folder holds a text.
    pub async fn until_written(&self, file: &str, text: &str) {
        let path = self.folder.path().join(file);
        while !std::fs::read_to_string(&path).unwrap_or_default().contains(text) {
            tokio::task::yield_now().await;
        }
    }

    /// One of ours, or any other.
    fn command(&self, program: &str) -> Command {
        if program.starts_with("culvert") {
            self.command_of(binary(&self.programs, program))
        } else {
            self.command_of(program)
        }
    }

    /// Any program, with what this place's programs are told by their environment.
    pub fn command_of(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).env_clear().env("HOME", self.folder.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(self.environment.iter().cloned()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs a command line, as `culvert key list`, to its end.
    pub async fn run(&self, line: &str) -> Output {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap();
        self.command(program).args(words).output().await.unwrap()
    }

    /// What a command line prints with `--json`.
    pub async fn json(&self, line: &str) -> Value {
        let output = self.run(&format!("{line} --json")).await;
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs a line in a shell, as a person would paste it; what it prints.
    pub async fn shell(&self, line: &str) -> String {
        let mut shell = Command::new("sh");
        let output = shell.arg("-c").arg(line).current_dir(self.folder.path()).output().await.unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a program, and reads what it prints for people.
    pub fn start(&self, line: &str) -> Program {
        self.start_with(line, Stdio::null())
    }

    /// As [`Place::start`], with a file of the folder as what is typed.
    pub fn start_reading(&self, line: &str, file: &str) -> Program {
        self.start_with(line, File::open(self.folder.path().join(file)).unwrap().into())
    }

    fn start_with(&self, line: &str, input: Stdio) -> Program {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().unwrap());
        let mut child = command.args(words).stdin(input).stdout(Stdio::piped()).spawn().unwrap();
        let lines = read(child.stdout.take().unwrap());
        Program { child, lines }
    }

    /// Starts a program, and reads its log.
    pub fn start_logged(&self, line: &str) -> Program {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().unwrap());
        command.args(words);
        self.spawn_logged(command)
    }

    fn spawn_logged(&self, mut command: Command) -> Program {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = read_into(child.stderr.take().unwrap(), Some(self.log()));
        Program { child, lines }
    }

    /// What its programs have logged so far.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Starts the host, and waits until it takes requests.
    pub async fn serve(&self) -> Program {
        self.serve_by(&self.programs, 0).await
    }

    /// As [`Place::serve`], by the programs of this folder, and with a wall clock that is so many seconds ahead.
    pub async fn serve_by(&self, programs: &Path, seconds_ahead: i64) -> Program {
        let mut command = self.command_of(binary(programs, "culvert"));
        command.arg("serve");
        if seconds_ahead != 0 {
            command.env("LD_PRELOAD", wrong_clock()).env("FAKETIME", format!("{seconds_ahead:+}"));
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let mut host = self.spawn_logged(command);
        host.until("ready address").await;
        host
    }

    /// Starts the host as [`Place::serve`] does, under this umask.
    pub async fn serve_under(&self, umask: &str) -> Program {
        let mut command = self.command_of("sh");
        let script = format!("umask {umask}; exec \"$0\" serve");
        let mut child = command
            .arg("-c")
            .arg(script)
            .arg(binary(&self.programs, "culvert"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = read(child.stderr.take().unwrap());
        let mut host = Program { child, lines };
        host.until("ready address").await;
        host
    }
}

fn read(output: impl AsyncRead + Send + Unpin + 'static) -> mpsc::UnboundedReceiver<String> {
    read_into(output, None)
}

/// Reads lines, and adds them to a file.
fn read_into(
    output: impl AsyncRead + Send + Unpin + 'static,
    file: Option<PathBuf>,
) -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    let mut file = file.map(|file| File::options().create(true).append(true).open(file).unwrap());
    tokio::spawn(async move {
        let mut output = BufReader::new(output).lines();
        while let Ok(Some(line)) = output.next_line().await {
            if let Some(file) = &mut file {
                writeln!(file, "{line}").unwrap();
            }
            let _ = sender.send(line);
        }
    });
    lines
}

impl Program {
    /// The next line that holds a text.
    pub async fn until(&mut self, text: &str) -> String {
        self.lines_until(text).await.pop().unwrap()
    }

    /// All lines until one holds a text, with that one.
    pub async fn lines_until(&mut self, text: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            match self.lines.recv().await {
                Some(line) => lines.push(line),
                None => panic!("it ended without saying `{text}`:\n{}", lines.join("\n")),
            }
            if lines.last().is_some_and(|line| line.contains(text)) {
                return lines;
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Has it read its configuration again.
    pub async fn hang_up(&self) {
        let sent = Command::new("kill").args(["-HUP", &self.id().to_string()]).status().await.unwrap();
        assert!(sent.success());
    }

    /// Ends it as a power cut would.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Ends it as Ctrl-C does; the exit code.
    pub async fn interrupt(self) -> Option<i32> {
        self.end_by("-INT").await
    }

    /// Ends it as a supervisor does; the exit code.
    pub async fn terminate(self) -> Option<i32> {
        self.end_by("-TERM").await
    }

    /// The exit code of one that ends by itself.
    pub async fn ended(mut self) -> Option<i32> {
        self.child.wait().await.unwrap().code()
    }

    /// Sends it a signal: `-STOP`.
    pub async fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.id().to_string()]).status().await.unwrap();
        assert!(sent.success());
    }

    async fn end_by(self, signal: &str) -> Option<i32> {
        self.signal(signal).await;
        self.ended().await
    }
}

/// What a command says that must fail: its exit code and the last line of its standard error.
pub async fn fails(place: &Place, line: &str) -> String {
    let output = within(60, place.run(line)).await;
    let said = String::from_utf8(output.stderr).unwrap();
    format!("{}: {}", output.status.code().unwrap(), said.trim_end().lines().last().unwrap_or_default())
}

/// What `culvert` says on the machine of a host that runs in this process.
pub async fn command_at(host: &TestHost, arguments: &[&str]) -> String {
    let output = run_at(host, arguments).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// As [`command_at`], where it must fail.
pub async fn fails_at(host: &TestHost, arguments: &[&str]) -> String {
    let output = run_at(host, arguments).await;
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

async fn run_at(host: &TestHost, arguments: &[&str]) -> Output {
    let config = host.config();
    let output = Command::new(binary(&Place::programs(), "culvert"))
        .args(arguments)
        .env("CULVERT_DATA_DIR", &config.data_dir)
        .env("CULVERT_DATABASE_URL", config.database_url())
        .env("CULVERT_SECRET_KEY_FILE", config.secret_key_file())
        .output();
    within(60, output).await.unwrap()
}
