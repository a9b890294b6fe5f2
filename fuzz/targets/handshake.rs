//! What a peer sends over TCP before the rails are connected.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::handshake(bytes));
