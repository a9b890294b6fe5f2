//! Sizes and layouts that users and bindings count on.

use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{Completion, DeviceKeys, Sge};
use polyrail_core::virtual_cq::VirtualWc;
use polyrail_core::virtual_qp::VirtualQp;

/// A handle of realistic size: what the software NIC needs.
type Qp = polyrail::nic::QueuePair;

const fn size<Q: QueuePair, const RAILS: usize>() -> usize {
    size_of::<VirtualQp<Q, RAILS, 128, 256>>()
}

#[test]
fn a_virtual_queue_pair_of_four_rails_fits_67_kib() {
    assert!(size::<Qp, 4>() <= 67 << 10, "{} bytes", size::<Qp, 4>());
    assert!(size::<Qp, 2>() < size::<Qp, 4>() && size::<Qp, 4>() < size::<Qp, 8>());
    // What each endpoint of the library has, whatever the number of its rails.
    assert!(size::<Qp, 8>() <= 87 << 10, "{} bytes", size::<Qp, 8>());
}

#[test]
fn records_have_the_sizes_of_their_verbs_structs() {
    assert_eq!(size_of::<Completion>(), 48);
    assert_eq!(size_of::<Sge>(), 16);
    assert_eq!(size_of::<DeviceKeys>(), 12);
    assert!(size_of::<VirtualWc>() <= 32);
}

#[test]
fn a_virtual_queue_pair_returns_how_many_completions_it_can_need() {
    type Four = VirtualQp<Qp, 4, 128, 256>;
    const PER_QP: u32 = Four::cq_entries_per_qp();
    // Four rails and the notify queue pair, each with a send and a receive queue.
    assert_eq!((PER_QP, Four::cq_entries()), (256, 5 * 256));
}
