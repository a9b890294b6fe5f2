//! Endpoints with rails of RDMA and of TCP.

use super::healing::{Ends, LENGTH, WINDOW};
use crate::fixture::{GID_INDEX, Rails};
use polyrail::any::{AnyDomain, OpenOptions, open_devices};
use polyrail::virtual_qp::{QpState, RailId, RailState, Scheme};
use polyrail_ffi::PostMode;
use polyrail_tests::behaviours::Fixture;
use std::thread;

/// Rails 0 and 1 are of RDMA.
const OVER_TCP: RailId = RailId::Data(2);
const OVER_RDMA: [RailId; 2] = [RailId::Data(0), RailId::Data(1)];

/// Opens the RDMA devices of one end, and an address of the loopback interface.
fn devices(end: &str, number: u8) -> Vec<AnyDomain> {
    let rdma = [0, 1].map(|rail| format!("rxe{end}{rail}@{GID_INDEX}"));
    let names = rdma.into_iter().chain([format!("tcp:127.6.0.{number}")]);
    open_devices(names, &OpenOptions::default()).unwrap()
}

fn bytes(ends: &Ends<AnyDomain>, rail: RailId) -> u64 {
    ends.near.endpoint.virtual_qp().counters(rail).unwrap().bytes
}

/// Runs requests until the rail has carried more bytes.
fn run_over(ends: &mut Ends<AnyDomain>, what: &str, rail: RailId) {
    let before = bytes(ends, rail);
    ends.run_until(what, |ends| bytes(ends, rail) > before + 3 * u64::from(LENGTH));
}

/// Checks what requests write, which is always the same.
fn check_bytes(ends: &mut Ends<AnyDomain>, seed: u8) {
    let pattern: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8 ^ seed).collect();
    ends.near.memory.write_at(0, &pattern).unwrap();
    // Those in flight may have read the bytes before.
    let done = ends.near.done;
    ends.run_until("requests", |ends| ends.near.done > done + 2 * WINDOW);
    let mut arrived = vec![0; LENGTH as usize];
    ends.far.memory.read_at(0, &mut arrived).unwrap();
    assert!(arrived == pattern, "seed {seed}");
}

pub(super) fn tcp_carries_on_while_rdma_links_are_down(rails: &Rails) {
    if rails.post_mode() != PostMode::Classic {
        // Endpoints choose for themselves.
        return;
    }
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut ends = Ends::new([devices("A", 1), devices("B", 2)], scheme);
        for rail in [OVER_RDMA[0], OVER_RDMA[1], OVER_TCP] {
            run_over(&mut ends, "traffic", rail);
        }
        check_bytes(&mut ends, 1);
        thread::scope(|scope| {
            scope.spawn(|| (0..2).for_each(|rail| rails.set_link(rail, false)));
            let is_away = |ends: &mut Ends<AnyDomain>| {
                let state = |rail| ends.near.endpoint.virtual_qp().rail_state(rail);
                let is_left = ends.near.endpoint.virtual_qp().rails_in_service().eq([OVER_TCP]);
                // Rail 0 may be over TCP by now.
                state(OVER_RDMA[1]) != Some(RailState::InService)
                    && (is_left || ends.near.endpoint.device_of(OVER_RDMA[0]).starts_with("tcp:"))
            };
            ends.run_until("failures", is_away);
        });
        run_over(&mut ends, "traffic over TCP", OVER_TCP);
        check_bytes(&mut ends, 2);
        (0..2).for_each(|rail| rails.set_link(rail, true));
        ends.run_until("return", |ends| {
            [&ends.near, &ends.far].iter().all(|side| {
                let is_home = |rail| side.endpoint.device_of(rail).starts_with("rxe");
                side.endpoint.state() == QpState::Ready && OVER_RDMA.into_iter().all(is_home)
            })
        });
        for rail in [OVER_RDMA[0], OVER_RDMA[1], OVER_TCP] {
            run_over(&mut ends, "traffic after the return", rail);
        }
        check_bytes(&mut ends, 3);
        println!("  {scheme:?}: {:?}", ends.near.endpoint.rail_reports());
    }
}
