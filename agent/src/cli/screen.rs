//! What a command in the foreground prints: one live line on a terminal, plain lines in a pipe, or JSON.

use std::io::{self, IsTerminal, Write};

use serde_json::json;

use super::Output;
use crate::ipc::{ForegroundState, ForegroundStatus, TunnelStatus};

/// Characters of the live line. It must not wrap.
const LINE: usize = 79;

pub(super) struct Screen {
    output: Output,
    is_terminal: bool,
    /// The public address that was printed.
    address: Option<String>,
    /// The last line that was printed.
    last: String,
    has_live_line: bool,
}

impl Screen {
    pub(super) fn new(output: Output) -> Self {
        let is_terminal = io::stdout().is_terminal() && output == Output::Text;
        Self { output, is_terminal, address: None, last: String::new(), has_live_line: false }
    }

    /// Shows what has changed.
    ///
    /// # Errors
    ///
    /// If nobody takes the output any longer.
    pub(super) fn show(&mut self, status: ForegroundStatus) -> io::Result<()> {
        if self.output == Output::Json {
            return self.line(json(&status).to_string());
        }
        if !self.is_terminal {
            return self.line(plain(&status));
        }
        if let Some(tunnel) = &status.tunnel
            && self.address.as_ref() != Some(&tunnel.public_address)
        {
            self.print("\r\x1b[K", &tunnel.way(), "\n")?;
            self.address = Some(tunnel.public_address.clone());
        }
        let line: String = live(&status).chars().take(LINE).collect();
        self.has_live_line = true;
        self.print("\r\x1b[K", &line, "")
    }

    /// Says something that the agent does not say.
    pub(super) fn say(&mut self, text: &str) {
        let status = ForegroundStatus {
            state: ForegroundState::Waiting,
            tunnel_id: None,
            creation_id: None,
            tunnel: None,
            problem: Some(text.into()),
        };
        // If nobody takes it, the next line ends the command.
        let _ = self.show(status);
    }

    /// Ends the live line.
    pub(super) fn close(&mut self) {
        if self.has_live_line {
            let _ = self.print("", "", "\n");
        }
    }

    /// Prints a line, unless it says what the last one said.
    fn line(&mut self, line: String) -> io::Result<()> {
        if line != self.last {
            self.print("", &line, "\n")?;
            self.last = line;
        }
        Ok(())
    }

    /// Prints a text, of which parts come from the server: without control characters, but for those of this program.
    fn print(&mut self, begin: &str, text: &str, end: &str) -> io::Result<()> {
        let text = printable(text);
        let mut out = io::stdout().lock();
        write!(out, "{begin}{text}{end}")?;
        out.flush()
    }
}

/// A text, parts of which come from others, as a terminal may show it: without control characters, and without those that
/// change the direction of what follows (Unicode Standard Annex 9).
pub(super) fn printable(text: &str) -> String {
    let is_shown = |c: char| !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if is_shown(c) { c } else { ' ' }).collect()
}

/// The same for several lines.
pub(super) fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

fn json(status: &ForegroundStatus) -> serde_json::Value {
    let ForegroundStatus { state, tunnel_id, tunnel, problem, .. } = status;
    json!({ "state": state, "tunnel_id": tunnel_id, "tunnel": tunnel, "problem": problem })
}

/// Without numbers: a line for each change of the state.
fn plain(status: &ForegroundStatus) -> String {
    let mut text = word(status.state).to_owned();
    if let Some(tunnel) = &status.tunnel {
        text += &format!(": {}", tunnel.way());
    }
    with_problem(text, status.problem.as_deref())
}

fn live(status: &ForegroundStatus) -> String {
    let mut text = word(status.state).to_owned();
    if let Some(TunnelStatus { visitors, bytes_in, bytes_out, .. }) = &status.tunnel {
        let (bytes_in, bytes_out) = (bytes(*bytes_in), bytes(*bytes_out));
        text += &format!(" · connections {visitors} · in {bytes_in} · out {bytes_out}");
    }
    with_problem(text, status.problem.as_deref())
}

fn with_problem(text: String, problem: Option<&str>) -> String {
    match problem {
        Some(problem) => format!("{text} · {problem}"),
        None => text,
    }
}

fn word(state: ForegroundState) -> &'static str {
    match state {
        ForegroundState::Starting => "starting",
        ForegroundState::Running => "running",
        ForegroundState::Waiting => "waiting",
    }
}

/// Bytes in units of 1,000.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_decimal_units() {
        let shown = [0, 999, 1000, 1_234_567, 5_000_000_000_000].map(bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 TB"]);
    }

    #[test]
    fn what_others_say_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b]52;c;YQ\x07b\nc\u{202e}d"), "a ]52;c;YQ b c d");
        assert_eq!(printable_lines("one\x1b[2J\ntwo"), "one [2J\ntwo");
    }
}
