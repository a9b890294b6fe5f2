//! The other ways to poll. The baseline has one way, which stands in each of these rows.

use super::single::{baseline_polling, engine_polling, floor_polling};
use super::{NullSender, Row, engine_single};
use crate::contender::prepared;
use crate::floor;
use crate::rig::Rig;
use crate::workload::OUTSTANDING;
use std::hint::black_box;

pub(super) const POLL_CQ: Row = Row {
    name: "poll_cq",
    work: "single_poll of one completion queue only",
    operations: OUTSTANDING,
    floor: || floor_polling(floor::Single::poll),
    baseline: baseline_polling,
    engine: || engine_polling(NullSender::poll_cq),
    instruction_limit: 1.47,
    time_limit: None,
    baseline_limit: None,
};

pub(super) const POLL_ONE: Row = Row {
    name: "poll_one",
    work: "single_poll, one completion a call",
    operations: OUTSTANDING,
    floor: || floor_polling(floor::Single::poll_one),
    baseline: baseline_polling,
    engine: || engine_polling(NullSender::poll_one),
    instruction_limit: 3.95,
    time_limit: None,
    baseline_limit: None,
};

pub(super) const FEED: Row = Row {
    name: "feed",
    work: "1 rail, completion that the caller has polled",
    operations: OUTSTANDING,
    floor: || {
        let single = floor::Single::new(Rig::single());
        prepared(single, floor::Single::complete, |single| {
            black_box(black_box(single).inspect());
        })
    },
    baseline: baseline_polling,
    engine: || {
        let sender = engine_single(Rig::single());
        prepared(sender, NullSender::complete, |sender| {
            black_box(black_box(sender).feed());
        })
    },
    instruction_limit: 2.33,
    time_limit: None,
    baseline_limit: None,
};
