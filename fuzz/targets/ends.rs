//! Two virtual queue pairs whose rails fail and return, with every step chosen by the bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    polyrail_tests::search::run_bytes::<polyrail_tests::ends::Shape>(bytes);
});
