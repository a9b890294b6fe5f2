//! Control messages: any bytes, and any message at any time to an end whose rails fail.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::control(bytes));
