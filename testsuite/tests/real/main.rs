//! Each acceptance line of the spine as a test with real processes: the binary as users have it.
//!
//! | property | file |
//! |---|---|
//! | the first commands, addresses, errors for people | `first_steps.rs` |
//! | the submitter's environment, exact or refused | `environment.rs` |
//! | true exit codes, signals and start failures | `ends.rs` |
//! | each launch step fails in turn: by name, and by whose fault | `start_failures.rs` |
//! | output and input, byte for byte | `streams.rs` |
//! | followers: slow, cut off, early and late, and the last words of the dead | `followers.rs` |
//! | output that grows over its bound: cut in the middle, counted, said | `bounded_output.rs` |
//! | where output is kept: patterns, what is removed or away, links and other users' files | `kept_output.rs` |
//! | an acknowledged job survives everything (P1) and runs once | `durable.rs` |
//! | nobody misses an end while daemons are away (P3, P4) | `outage.rs` |
//! | two kinds of loss, two answers: killed, frozen, cut off, cloned, rebooted (P2-P7) | `finish/` |
//! | nothing of a cancelled job lives on (P7) | `cancel.rs` |
//! | what `set` changes of what runs and waits (J02), warnings before a limit | `set.rs` |
//! | dependencies and begin times: each job starts once, or ends at once (I01, I02, K01) | `dependencies.rs` |
//! | limits, what enforces them, what was used, ends of memory | `limits.rs` |
//! | users are kept apart (P10) | `users.rs` |
//! | stop, start again, second instance, repeated submits (P8) | `service.rs` |
//! | several on one data directory: one has it, the others are refused by name | `one_directory.rs` |
//! | a node's directory goes away while jobs wait: they wait on at no cost | `directory_away.rs` |
//! | a disk without room: refusals by name, true ends, restarts, and on by itself | `disk_full.rs` |
//! | leases with two nodes: never two at once (B, peer 4, 7) | `fences.rs` |
//! | a bad node among good ones, ten thousand submits, watchers of retries (G01, I10, K05) | `crowds.rs` |
//! | scripts of Slurm: done, said to be without effect, or refused (I11, I13) | `slurm_scripts.rs` |
//! | `retry`: again as it was, or only what failed | `again.rs` |
//! | `--dry-run`: whether, where and when, and nothing is submitted | `dry_run.rs` |
//! | a race, a portfolio, a training that goes on from its checkpoint | `patterns.rs` |
//! | a recorded workflow and the trace of a cluster | `replay.rs` |
//! | a real program: ffmpeg | `ffmpeg.rs` |
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

mod again;
mod arrays;
mod bounded_output;
mod cancel;
mod crowds;
mod dependencies;
mod directory_away;
mod disk_full;
mod drain;
mod dry_run;
mod durable;
mod ends;
mod environment;
mod fences;
mod ffmpeg;
mod finish;
mod first_steps;
mod followers;
mod kept_output;
mod limits;
mod one_directory;
mod order;
mod outage;
mod patterns;
mod replay;
mod resources;
mod retries;
mod service;
mod set;
mod slurm_scripts;
mod start_failures;
mod streams;
mod users;
