//! `culvert`: the host and its operator's command line.

fn main() -> std::process::ExitCode {
    culvert::cli::main()
}
