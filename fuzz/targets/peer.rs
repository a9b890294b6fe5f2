//! Peers of a connection of the p2p protocol that send anything, beside a connection that is to go
//! on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::p2p::any_peer(bytes));
