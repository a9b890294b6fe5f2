//! The behaviours of every backend, on devices of any backend: over rails of the software NIC, over
//! rails of TCP, and over one of each.

use polyrail::any::{OpenOptions, open_devices};
use polyrail_tests::allocations::CountingAllocator;
use polyrail_tests::behaviours::{self, Rails};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn check(title: &str, near: [&str; 2], far: [&str; 2]) {
    let [near, far] =
        [near, far].map(|names| open_devices(&names, &OpenOptions::default()).unwrap());
    let failed = behaviours::run(title, &behaviours::list(), &Rails::new(near, far));
    assert!(failed.is_empty(), "{title}: {failed:?}");
}

#[test]
fn devices_of_any_backend_behave_as_the_backend_does() {
    // One after the other: some behaviours count all allocations of the process.
    check("software", ["software:n0", "software:n1"], ["software:f0", "software:f1"]);
    check("tcp", ["tcp:127.2.1.1", "tcp:127.2.1.2"], ["tcp:127.2.2.1", "tcp:127.2.2.2"]);
    check("mixed", ["software:n2", "tcp:127.2.1.3"], ["software:f2", "tcp:127.2.2.3"]);
    check("mixed, tcp first", ["tcp:127.2.1.4", "software:n3"], ["tcp:127.2.2.4", "software:f3"]);
}
