//! The `expedite` binary: argv to one command, nothing else.

fn main() -> std::process::ExitCode {
    expedite::cli::main()
}
