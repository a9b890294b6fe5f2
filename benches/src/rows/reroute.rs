//! What re-routing costs while nothing fails: the engine with it, and as the floor without.

use super::cycle::{LARGE, engine_cycle};
use super::receive::received;
use super::{NullSender, Row, cycle, receive};
use crate::engine;
use crate::rig::Rig;
use crate::workload::FRAGMENT;
use polyrail_core::virtual_qp::Scheme;
use std::hint::black_box;

/// At most this many times the instructions of the same row without re-routing: nothing is to be
/// paid while no rail fails.
const LIMIT: f64 = 1.03;

/// A row whose floor is the engine without re-routing.
const fn beside(row: Row, name: &'static str, work: &'static str, engine: super::Make) -> Row {
    Row {
        name,
        work,
        floor: row.engine,
        engine,
        instruction_limit: LIMIT,
        time_limit: None,
        baseline_limit: None,
        ..row
    }
}

pub(super) const MULTI1: Row =
    beside(cycle::MULTI1, "reroute_multi1", "multi1_cycle with re-routing / without", || {
        let sender = NullSender::rerouting(Rig::striped(), Scheme::Spray, FRAGMENT);
        engine_cycle(sender, NullSender::post_writes)
    });

pub(super) const MULTI16: Row =
    beside(cycle::MULTI16, "reroute_multi16", "multi16_cycle with re-routing / without", || {
        let sender = NullSender::rerouting(Rig::striped(), Scheme::Spray, LARGE);
        engine_cycle(sender, NullSender::post_writes)
    });

pub(super) const SPRAY: Row =
    beside(cycle::SPRAY, "reroute_spray16", "spray_imm16_cycle with re-routing / without", || {
        let sender = NullSender::rerouting(Rig::striped_with_notify(), Scheme::Spray, LARGE);
        engine_cycle(sender, NullSender::post_writes_with_imm)
    });

pub(super) const DQPLB: Row =
    beside(cycle::DQPLB, "reroute_dqplb16", "dqplb_imm16_cycle with re-routing / without", || {
        let sender = NullSender::rerouting(Rig::striped(), Scheme::Dqplb, LARGE);
        engine_cycle(sender, NullSender::post_writes_with_imm)
    });

pub(super) const DQPLB_RECEIVER: Row = beside(
    receive::DQPLB,
    "reroute_dqplb_recv",
    "dqplb_recv_ooo with re-routing / without",
    || {
        received(engine::Receiver::rerouting, |receiver| {
            black_box(receiver.receive());
        })
    },
);
