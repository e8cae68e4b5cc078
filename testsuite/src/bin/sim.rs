//! The simulator, also reached as `cargo run -p testsuite --bin sim`; it lives in `testsuite/sim`.

fn main() -> std::process::ExitCode {
    sim::main()
}
