//! Bytes as a segment file, with and without right checksums: looking, opening and repairing.
#![no_main]

#[path = "../body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|input: &[u8]| body::judge(input));
