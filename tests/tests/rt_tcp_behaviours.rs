//! The behaviours of every backend, over TCP: both ends in this process, on the loopback interface.

use polyrail::tcp::{Device, DeviceOptions, ProtectionDomain};
use polyrail_tests::allocations::CountingAllocator;
use polyrail_tests::behaviours::{self, Rails};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn domain(address: &str) -> ProtectionDomain {
    Device::open(address, &DeviceOptions::default()).unwrap().alloc_pd().unwrap()
}

#[test]
fn tcp_has_every_behaviour() {
    let [near, far] =
        [["127.0.1.1", "127.0.1.2"], ["127.0.2.1", "127.0.2.2"]].map(|end| end.map(domain).into());
    let failed = behaviours::run("tcp", &behaviours::list(), &Rails::new(near, far));
    assert!(failed.is_empty(), "{failed:?}");
}
