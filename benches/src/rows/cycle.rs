//! Several rails, from the post to the reported completion.

use super::{NullSender, Row, baseline_cycle, baseline_writes, engine_striped};
use crate::contender::{Contender, whole};
use crate::null::{NullCq, NullQp};
use crate::rig::Rig;
use crate::workload::{
    BUFFERS, FRAGMENT, FRAGMENTS, OUTSTANDING, RAILS, Reported, SMALL, TOGETHER,
};
use crate::{baseline, floor};
use polyrail_core::verbs::Opcode;
use polyrail_core::virtual_qp::Scheme;
use std::hint::black_box;

/// Bytes of a request of 16 fragments.
pub(super) const LARGE: u32 = FRAGMENTS * FRAGMENT;

pub(super) const MULTI1: Row = Row {
    name: "multi1_cycle",
    work: "4 rails, 1 fragment, post to reported completion",
    operations: OUTSTANDING,
    floor: || floor_cycle(Rig::striped(), FRAGMENT, floor::Striped::write),
    baseline: || baseline_cycle(baseline_writes(Rig::striped(), FRAGMENT)),
    engine: || {
        let sender = engine_striped(Rig::striped(), Scheme::Spray, FRAGMENT);
        engine_cycle(sender, NullSender::post_writes)
    },
    instruction_limit: 2.25,
    time_limit: None,
    baseline_limit: Some(1.0 / 5.0),
};

pub(super) const MULTI16: Row = Row {
    name: "multi16_cycle",
    work: "4 rails, 1 MiB in 16 fragments",
    operations: OUTSTANDING,
    floor: || floor_cycle(Rig::striped(), LARGE, floor::Striped::write),
    baseline: || baseline_cycle(baseline_writes(Rig::striped(), LARGE)),
    engine: || {
        let sender = engine_striped(Rig::striped(), Scheme::Spray, LARGE);
        engine_cycle(sender, NullSender::post_writes)
    },
    // Beyond the floor: the request's slot, checks and report, and for each of the four batches its
    // tag, record, credits and turn, about 45.
    instruction_limit: 1.71,
    time_limit: None,
    baseline_limit: Some(1.0 / 6.0),
};

pub(super) const SPRAY: Row = Row {
    name: "spray_imm16_cycle",
    work: "the same with imm and notify",
    operations: OUTSTANDING,
    floor: || floor_cycle(Rig::striped_with_notify(), LARGE, floor::Striped::write_and_notify),
    baseline: || {
        let rig = Rig::striped_with_notify();
        baseline_imm(rig, baseline::Scheme::Spray)
    },
    engine: || {
        let sender = engine_striped(Rig::striped_with_notify(), Scheme::Spray, LARGE);
        engine_cycle(sender, NullSender::post_writes_with_imm)
    },
    instruction_limit: 1.83,
    time_limit: None,
    baseline_limit: Some(1.0 / 6.0),
};

pub(super) const DQPLB: Row = Row {
    name: "dqplb_imm16_cycle",
    work: "the same, DQPLB sender",
    operations: OUTSTANDING,
    floor: || floor_cycle(Rig::striped(), LARGE, floor::Striped::write_numbered),
    baseline: || baseline_imm(Rig::striped(), baseline::Scheme::Dqplb),
    engine: || {
        let sender = engine_striped(Rig::striped(), Scheme::Dqplb, LARGE);
        engine_cycle(sender, NullSender::post_writes_with_imm)
    },
    // As `MULTI16`; numbers themselves cost 30 more than the floor's.
    instruction_limit: 1.73,
    time_limit: None,
    baseline_limit: Some(1.0 / 6.0),
};

pub(super) const PASS_THROUGH: Row = Row {
    name: "pass_through_4",
    work: "4 rails, 4 KiB SEND, post to reported completion",
    operations: OUTSTANDING,
    floor: || {
        let mut single = floor::Single::new(Rig::striped());
        whole(move || {
            let single = black_box(&mut single);
            single.post_sends();
            black_box(single.poll());
        })
    },
    baseline: || {
        let scheme = baseline::Scheme::Spray;
        baseline_cycle(baseline::Sender::striped(Rig::striped(), scheme, Opcode::Send, SMALL))
    },
    engine: || {
        let sender = engine_striped(Rig::striped(), Scheme::Spray, SMALL);
        engine_cycle(sender, NullSender::post_sends)
    },
    // Beyond the floor: the checks of the order and of rail 0, and the batch that records the request,
    // as much as a request of one fragment has in `MULTI1`, without its place in the ring.
    instruction_limit: 2.45,
    time_limit: None,
    baseline_limit: None,
};

pub(super) const LIST4: Row = Row {
    name: "list4_cycle",
    work: "4 rails, 4 KiB from a list of 4 buffers, post to reported completion",
    operations: OUTSTANDING,
    floor: list_floor,
    baseline: list_floor,
    engine: || {
        let sender = engine_striped(Rig::striped(), Scheme::Spray, SMALL);
        engine_cycle(sender, |sender| sender.post_lists(black_box(BUFFERS)))
    },
    // Beyond `MULTI1`: each buffer is counted, its key is looked up, and it is copied for the driver,
    // about 20 each; and the bench makes the list, about 70.
    instruction_limit: 3.5,
    time_limit: None,
    baseline_limit: None,
};

/// Bytes of a request of half as many fragments as there are credits.
const LONG: u32 = 256 * FRAGMENT;

pub(super) const LIST_LONG: Row = Row {
    name: "list_long_cycle",
    work: "4 rails, 16 MiB in 256 fragments, from a list of 4 buffers / from one",
    operations: OUTSTANDING,
    floor: without_list,
    baseline: without_list,
    engine: || {
        let sender = engine_striped(Rig::striped(), Scheme::Spray, LONG);
        engine_cycle(sender, |sender| sender.post_lists(black_box(BUFFERS)))
    },
    // Each fragment's buffers are gathered one by one. To count fragments, and to measure batches,
    // takes a step for each buffer, however many fragments it is cut into: 20 times the floor
    // otherwise, and more the longer the request is.
    instruction_limit: 9.3,
    time_limit: None,
    baseline_limit: None,
};

fn without_list() -> Box<dyn Contender> {
    let sender = engine_striped(Rig::striped(), Scheme::Spray, LONG);
    engine_cycle(sender, NullSender::post_writes)
}

pub(super) const BATCH16: Row = Row {
    name: "batch16_cycle",
    work: "4 rails, 1 fragment, 16 requests with one call",
    operations: OUTSTANDING,
    floor: batch_floor,
    baseline: batch_floor,
    engine: || {
        let sender = engine_striped(Rig::striped(), Scheme::Spray, FRAGMENT);
        engine_cycle(sender, |sender| sender.post_together(black_box(TOGETHER)))
    },
    // A slot, checks and a report for each request, as in `MULTI1`, where the floor rings 4 times
    // as often.
    instruction_limit: 4.5,
    time_limit: None,
    baseline_limit: None,
};

fn list_floor() -> Box<dyn Contender> {
    floor_cycle(Rig::striped(), SMALL, |striped| striped.write_lists(black_box(BUFFERS)))
}

fn batch_floor() -> Box<dyn Contender> {
    floor_cycle(Rig::striped(), FRAGMENT, |striped| striped.write_together(black_box(TOGETHER)))
}

fn floor_cycle(
    rig: Rig,
    length: u32,
    burst: impl Fn(&mut floor::Striped<NullQp, NullCq>) -> Reported + 'static,
) -> Box<dyn Contender> {
    let mut striped = floor::Striped::new(rig, length);
    whole(move || {
        black_box(burst(black_box(&mut striped)));
    })
}

pub(super) fn engine_cycle(
    mut sender: NullSender<RAILS>,
    post: impl Fn(&mut NullSender<RAILS>) + 'static,
) -> Box<dyn Contender> {
    whole(move || {
        let sender = black_box(&mut sender);
        post(sender);
        black_box(sender.poll());
    })
}

fn baseline_imm(rig: Rig, scheme: baseline::Scheme) -> Box<dyn Contender> {
    baseline_cycle(baseline::Sender::striped(rig, scheme, Opcode::RdmaWriteWithImm, LARGE))
}
