//! Strangers that connect to the listener of a TCP NIC and send anything.
#![no_main]

#[path = "../../std-shim/tcp-nic/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| support::fuzz::first_frames(bytes));
