//! The keeper with real processes. This binary is its own keeper and guard: `launch` executes
//! /proc/self/exe, so there is no test harness in between (`harness = false`); see `runner.rs`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bounded;
mod client;
mod crash;
mod fuse;
mod kill;
mod lease;
mod limits;
mod lost;
mod moved;
mod pace;
mod places;
mod program;
mod runner;
mod spawn;
mod strangers;
mod upgrade;
mod usage;
mod world;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use program::Fault;
use worker_agent::keeper;

/// This program as keeper or guard, with the version and the fault that its file carries.
fn as_keeper(args: &[OsString]) -> u8 {
    let (version, fault) = program::own();
    let checks = args.iter().any(|arg| arg == "--check");
    if fault == Fault::DiesAtOnce && !checks {
        return 70;
    }
    let code = keeper::main(args.iter().cloned(), version) as u8;
    if fault == Fault::NotExecutable && checks {
        let none = fs::Permissions::from_mode(0o644);
        fs::set_permissions(std::env::current_exe().unwrap(), none).unwrap();
    }
    code
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first() {
        Some(first) if keeper::is_command(first) => ExitCode::from(as_keeper(&args)),
        Some(first) if first == "launch" => match keeper::launch(Path::new(&args[1])) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
        // A job that starts one process after the other, as `make` does: parents wait in vfork.
        Some(first) if first == "spawn-loop" => loop {
            let _ = std::process::Command::new("/bin/true").env_clear().status();
        },
        _ => {
            let tests = [
                spawn::TESTS,
                kill::TESTS,
                pace::TESTS,
                lease::TESTS,
                limits::TESTS,
                usage::TESTS,
                crash::TESTS,
                upgrade::TESTS,
                places::TESTS,
                bounded::TESTS,
                lost::TESTS,
                moved::TESTS,
                strangers::TESTS,
                client::TESTS,
            ];
            let code = runner::run(&tests.concat());
            world::remove_program();
            code
        }
    }
}
