//! Connection cards of a peer that sends anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::card(bytes));
