//! The `expedite` binary: argv to one command, nothing else.

/// Of the binary alone: a test may bring an allocator that counts.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    expedite::cli::main()
}
