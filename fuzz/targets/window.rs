//! DQPLB's receive window beside a map.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::window(bytes));
