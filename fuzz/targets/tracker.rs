//! The ring of requests beside the seeds' three structures.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::tracker(bytes));
