//! The program `sim`.

fn main() -> std::process::ExitCode {
    sim::main()
}
