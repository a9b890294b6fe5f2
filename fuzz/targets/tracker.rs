//! The ring of requests beside a map and two queues, which the reference implementation has for it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| polyrail_tests::model::tracker(bytes));
