//! The commands: one small file each.

/// Runs the command that argv names.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
