//! Rails that fail while others take over, seen from one end; the test plays the peer.
//! `core/docs/rails-that-fail.md`: the documentation of each module names the heading.

mod cancel;
mod control;
mod counted;
mod fragments;
mod limits;
mod partial;
mod receives;
mod replace;

use polyrail_core::verbs::WcStatus;
use polyrail_core::virtual_qp::{ControlMessage, RailId, RailReport, RailState, ReportedState};
use polyrail_tests::rig::{Rig, Setup};

pub(super) const RAIL_0: RailId = RailId::Data(0);
pub(super) const RAIL_1: RailId = RailId::Data(1);

/// Two rails and a notify queue pair, fragments of 128 bytes.
pub(super) fn spray() -> Setup {
    Setup::spray(2).fragment(128).reroute()
}

/// Two rails, fragments of 128 bytes, 8 receives on each rail.
pub(super) fn dqplb() -> Setup {
    Setup::dqplb(2).fragment(128).depth(8).reroute()
}

fn news(rail: RailId, generation: u16, state: ReportedState, arrived: u32) -> ControlMessage {
    ControlMessage::Rail(RailReport {
        rail,
        generation,
        state,
        arrived,
        previous_arrived: 0,
        on_purpose: false,
    })
}

/// The peer reports Fenced, and how much arrived.
pub(super) fn fenced(rail: RailId, generation: u16, arrived: u32) -> ControlMessage {
    news(rail, generation, ReportedState::Fenced, arrived)
}

/// What this end sends for a rail of generation 0 that failed: at once, or after it was drained.
fn failed(rail: RailId) -> ControlMessage {
    news(rail, 0, ReportedState::Failed, 0)
}

/// The next send on this rail fails, and the rail is drained.
pub(super) fn fail(rig: &mut Rig, rail: usize, status: WcStatus) {
    rig.rails[rail].fail(status);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.qp.rail_state(RailId::Data(rail as u8)), Some(RailState::Fenced));
}

/// The peer is ready for the next generation of a rail.
pub(super) fn ready<const RAILS: usize, const DEPTH: usize, const WRS: usize>(
    rig: &mut Rig<RAILS, DEPTH, WRS>,
    rail: RailId,
    generation: u16,
) {
    rig.qp.control(news(rail, generation, ReportedState::Ready, 0)).unwrap();
    assert_eq!(rig.qp.rail_state(rail), Some(RailState::InService));
}

/// A new queue pair takes the place of one whose rail is down, and so it does at the peer.
pub(super) fn replace(rig: &mut Rig, rail: RailId) {
    rig.replace(rail, 1, 90);
    ready(rig, rail, 1);
}
