//! The `docket` binary once more: built with the tests, so that they never drive a stale one.

fn main() -> std::process::ExitCode {
    cli::main()
}
