//! The routing table beside a hash map.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::routing(bytes));
