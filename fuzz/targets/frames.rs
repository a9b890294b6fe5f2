//! Peers of a queue pair of the TCP NIC that have proved their key and send any frames.
#![no_main]

#[path = "../../std-shim/tcp-nic/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::fuzz::frames(bytes));
