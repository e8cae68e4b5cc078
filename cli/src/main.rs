//! The docket binary.
fn main() {}
