//! `culvert-agent`: the agent as a program of its own.

fn main() -> std::process::ExitCode {
    culvert_agent::cli::main()
}
