//! Tags: every field survives, and any number is read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::tag(bytes));
