//! The rows of the report: what is measured, and the limits of the engine.

mod any;
mod cycle;
mod messages;
mod polling;
mod receive;
mod reroute;
mod routes;
mod single;

use crate::contender::{Contender, whole};
use crate::null::{NullCq, NullQp};
use crate::rig::Rig;
use crate::workload::{RAILS, SMALL};
use crate::{baseline, engine};
use polyrail_core::verbs::Opcode;
use polyrail_core::virtual_qp::Scheme;
use std::hint::black_box;

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// What one operation is.
    pub work: &'static str,
    /// Operations of one burst.
    pub operations: usize,
    /// The same physical work done raw; of `any_software_nic`, the backend's own types; of
    /// `routes_idle_4096`, the engine with the smaller table; of `list_long_cycle`, the engine without
    /// lists; and of the rows of re-routing, the engine without it.
    pub floor: Make,
    /// The baseline: the design that the engine replaces.
    pub baseline: Make,
    /// Ours.
    pub engine: Make,
    /// At most this many times the instructions of the floor.
    pub instruction_limit: f64,
    /// At most this many times the time of the floor, if the row has a limit in time.
    pub time_limit: Option<f64>,
    /// At most this part of the baseline's time.
    pub baseline_limit: Option<f64>,
}

/// Makes a contender.
pub type Make = fn() -> Box<dyn Contender>;

impl Row {
    /// The contenders by name, in the order in which they run.
    pub const fn contenders(&self) -> [(&'static str, Make); 3] {
        [("floor", self.floor), ("baseline", self.baseline), ("engine", self.engine)]
    }
}

/// All rows, in the order in which they are printed.
pub const ROWS: [Row; 28] = [
    single::POST,
    single::POLL,
    single::CYCLE,
    cycle::MULTI1,
    cycle::MULTI16,
    cycle::SPRAY,
    cycle::DQPLB,
    cycle::PASS_THROUGH,
    cycle::LIST4,
    cycle::LIST_LONG,
    cycle::BATCH16,
    receive::DQPLB,
    polling::POLL_CQ,
    polling::POLL_ONE,
    polling::FEED,
    routes::IDLE,
    routes::RANDOM,
    reroute::MULTI1,
    reroute::MULTI16,
    reroute::SPRAY,
    reroute::DQPLB,
    reroute::DQPLB_RECEIVER,
    messages::SMALL_1,
    messages::LARGE_2,
    messages::LARGE_4,
    messages::SENDER,
    messages::RECEIVER,
    any::SOFTWARE,
];

type NullSender<const RAILS: usize> = engine::Sender<NullQp, NullCq, RAILS>;
type NullBaseline = baseline::Sender<NullQp, NullCq>;

fn engine_single(rig: Rig) -> NullSender<1> {
    engine::Sender::new(rig, Scheme::Spray, SMALL)
}

fn engine_striped(rig: Rig, scheme: Scheme, length: u32) -> NullSender<RAILS> {
    engine::Sender::new(rig, scheme, length)
}

fn baseline_writes(rig: Rig, length: u32) -> NullBaseline {
    baseline::Sender::striped(rig, baseline::Scheme::Spray, Opcode::RdmaWrite, length)
}

fn baseline_cycle(mut sender: NullBaseline) -> Box<dyn Contender> {
    whole(move || {
        black_box(black_box(&mut sender).cycle());
    })
}
