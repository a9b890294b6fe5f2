//! Connections of the p2p protocol whose rails fail, with every step chosen by the bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    polyrail_tests::search::run_bytes::<polyrail_tests::p2p::Shape>(bytes);
});
