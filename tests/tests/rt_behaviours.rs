//! The behaviours of every backend, on the software NIC.

use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail_tests::allocations::CountingAllocator;
use polyrail_tests::behaviours::{self, Rails, Wrapped};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Two rails of software NICs.
fn rails(fabric: &Fabric) -> Rails<ProtectionDomain> {
    let domain = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
    let [near, far] = [["near0", "near1"], ["far0", "far1"]].map(|end| end.map(domain).into());
    Rails::new(near, far)
}

#[test]
fn the_software_nic_behaves() {
    let failed = behaviours::run("software", &behaviours::list(), &rails(&Fabric::threaded()));
    assert_eq!(failed, [""; 0]);
}

#[test]
fn a_wrapper_without_faults_behaves_as_what_is_inside() {
    let software = rails(&Fabric::threaded());
    let failed = behaviours::run("wrapped", &behaviours::list(), &Wrapped::new(&software));
    assert_eq!(failed, [""; 0]);
}

/// A fabric that draws the order in which requests are executed and completions appear.
#[test]
fn physical_queue_pairs_of_the_software_nic_behave_in_any_order() {
    for seed in 0..4 {
        let fabric = Fabric::deterministic(seed);
        let software = rails(&fabric);
        let is_over = AtomicBool::new(false);
        let failed = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if fabric.step().is_none() {
                        thread::yield_now();
                    }
                }
            });
            let failed = behaviours::run("stepped", &behaviours::physical(), &software);
            is_over.store(true, Ordering::Relaxed);
            failed
        });
        assert_eq!(failed, [""; 0], "seed {seed}");
    }
}
