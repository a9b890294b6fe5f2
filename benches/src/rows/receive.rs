//! The receiving side.

use super::Row;
use crate::arrivals::{ARRIVALS, Arrivals};
use crate::contender::{Contender, prepared};
use crate::rig::Rig;
use crate::{baseline, engine, floor};
use std::hint::black_box;

pub(super) const DQPLB: Row = Row {
    name: "dqplb_recv_ooo",
    work: "DQPLB receiver, out of order, with repost, per completion",
    operations: ARRIVALS,
    floor: || {
        received(floor::Receiver::new, |receiver| {
            black_box(receiver.receive());
        })
    },
    baseline: || {
        received(baseline::Receiver::new, |receiver| {
            black_box(receiver.receive());
        })
    },
    engine: || {
        received(engine::Receiver::new, |receiver| {
            black_box(receiver.receive());
        })
    },
    instruction_limit: 2.56,
    time_limit: Some(2.2),
    baseline_limit: None,
};

/// Measures only the receiver, not the null device's work for the sender.
pub(super) fn received<R: 'static>(
    make: impl FnOnce(Rig) -> R,
    mut receive: impl FnMut(&mut R) + 'static,
) -> Box<dyn Contender> {
    let rig = Rig::striped();
    let arrivals = Arrivals::new(rig.wire.clone(), rig.inboxes.clone());
    let receiver = make(rig);
    prepared(
        (arrivals, receiver),
        |(arrivals, _)| arrivals.deliver(),
        move |(_, receiver)| receive(black_box(receiver)),
    )
}
