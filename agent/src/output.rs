//! What commands print as their result.

use std::io::{ErrorKind, Result, Write};

/// Prints a result and a line break.
pub fn print_line(program: &str, text: &str) {
    let mut out = std::io::stdout().lock();
    ensure_written(program, writeln!(out, "{text}"));
}

/// Ends the program with exit code 1 if its result could not be written. A reader that has gone, such as `head`, has what it
/// wanted.
pub fn ensure_written(program: &str, written: Result<()>) {
    if let Err(problem) = written
        && problem.kind() != ErrorKind::BrokenPipe
    {
        eprintln!("{program}: the result could not be written: {problem}");
        std::process::exit(1);
    }
}
