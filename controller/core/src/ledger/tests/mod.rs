//! Tests of the ledger as a whole.
