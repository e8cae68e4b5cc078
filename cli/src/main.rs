//! The `docket` binary.

fn main() -> std::process::ExitCode {
    cli::main()
}
