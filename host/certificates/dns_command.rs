//! A command of the operator's that sets and clears TXT records, for DNS-01 (RFC 8555, section 8.4).

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use culvert_wire::clock::Clock;
use tokio::process::Command;

/// How long the command may take.
const WITHIN: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
pub struct DnsCommand {
    program: PathBuf,
    clock: Clock,
}

impl DnsCommand {
    pub fn new(program: PathBuf, clock: Clock) -> Self {
        Self { program, clock }
    }

    /// Runs `<program> set|clear <name> <value>`. No shell is between.
    ///
    /// # Errors
    ///
    /// If it cannot be started, does not end in a minute, or ends with another code than 0.
    pub async fn run(&self, action: &str, name: &str, value: &str) -> Result<(), String> {
        let program = self.program.display();
        let mut command = Command::new(&self.program);
        command.args([action, name, value]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.kill_on_drop(true).spawn().map_err(|e| format!("acme.dns_command: {program}: {e}"))?;
        let ended = self.clock.timeout(WITHIN, child.wait_with_output()).await;
        let output = ended.map_err(|_| format!("acme.dns_command: {program} did not end within a minute"))?;
        let output = output.map_err(|e| format!("acme.dns_command: {program}: {e}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        Err(format!("acme.dns_command: {program} {action} ended with {}: {last}", output.status))
    }
}
