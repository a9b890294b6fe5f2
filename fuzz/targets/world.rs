//! A whole world of virtual queue pairs, whose shape, traffic and faults the bytes choose. Checks
//! for allocations too.
#![no_main]

use polyrail_tests::allocations::{CountingAllocator, expect_counting};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

libfuzzer_sys::fuzz_target!(init: expect_counting(), |bytes: &[u8]| {
    polyrail_tests::simulation::run_bytes(bytes);
});
