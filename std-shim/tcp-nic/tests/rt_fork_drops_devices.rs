//! A child drops the devices of its parent while it uses its own.

#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;
mod support;

use in_fork::in_fork;
use support::{exchange, pair};

/// The C library gives the child's threads the stacks of the parent's, and with them their names.
#[test]
fn devices_of_the_parent_that_a_child_drops_cost_its_own_nothing() {
    let (mut near, mut far) = pair("127.5.7.1", "127.5.7.2");
    exchange(&mut near, &mut far, 1);
    in_fork(|| {
        let (mut own, mut other) = pair("127.5.7.3", "127.5.7.4");
        assert!(!near.qp.is_connected());
        drop((near, far));
        exchange(&mut own, &mut other, 2);
        drop((own, other));
    });
}
