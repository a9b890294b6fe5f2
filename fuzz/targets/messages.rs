//! What a peer of the p2p protocol sends, value by value: immediates, control messages, entries.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::messages(bytes));
