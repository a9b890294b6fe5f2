//! A whole world of virtual queue pairs, whose shape, traffic and faults the bytes choose.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    polyrail_tests::simulation::run_bytes(bytes);
});
