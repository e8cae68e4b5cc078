//! The messages of docket: log entries, the agent session, the keeper's wire, the public services.
//! It never holds logic: generated code, id newtypes, and conversions that are pure field mapping.
//! Begin reading with `docket/v1/common.proto`, then [`id`].

pub mod digest;
mod id;
pub mod mutants;

pub use id::{AttemptId, BadAttemptRef, JobId, OrderId, Seq, TaskId};

/// Generated from `docket/v1/*.proto`; the docs of each message stand there.
#[allow(missing_docs, clippy::all, clippy::pedantic, clippy::unwrap_used, clippy::too_many_lines)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/docket.v1.rs"));
}

/// The encoded `FileDescriptorSet` of every file, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

/// What was compiled in beyond the product, by name; empty in what users get. `docket --version`
/// tells it.
pub const FEATURES: &[&str] = if cfg!(feature = "mutants") { &["mutants"] } else { &[] };

/// Version of the session protocol that this build speaks (design 5, Versions).
pub const PROTOCOL: u32 = 1;

/// Highest level of log entries that this build can apply (design 2, "Same entry, same state").
pub const LEVEL: u32 = 1;
