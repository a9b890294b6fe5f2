//! How work is spread over the rails: turns, least finish time, shares, boundaries, and rails that
//! differ. `core/docs/architecture.md`, "Rails and batches".

use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::SendFlags;
use polyrail_core::virtual_qp::{
    BuildError, Config, MAX_RAILS, PostSendError, RailChoice, RailId, Scheme,
};
use polyrail_tests::rig::{self, Rig, Setup, TestQp};
use polyrail_tests::scripted::{LIMITS, Nic, ScriptedQp};

/// Fragments in flight on each rail.
fn loads<const R: usize, const D: usize, const W: usize>(rig: &Rig<R, D, W>) -> Vec<usize> {
    rig.rails.iter().map(|rail| rail.sends().len()).collect()
}

#[test]
fn single_fragments_go_round() {
    let mut rig = Setup::spray(4).fragment(128).rig();
    for round in 1..=3 {
        for rail in 0..4 {
            rig.post([rig::write(1, 128)]);
            let expected: Vec<_> = (0..4).map(|r| round - usize::from(r > rail)).collect();
            assert_eq!(loads(&rig), expected);
        }
    }
    assert_eq!(rig.run_dry().len(), 12);
}

#[test]
fn a_request_is_split_into_one_contiguous_share_for_each_rail() {
    for (fragments, expected) in
        [(4, [1, 1, 1, 1]), (5, [2, 2, 1, 0]), (8, [2, 2, 2, 2]), (16, [4, 4, 4, 4])]
    {
        let mut rig = Setup::spray(4).fragment(128).rig();
        rig.post([rig::write(1, fragments * 128)]);
        assert_eq!(loads(&rig), expected, "{fragments} fragments");
        for (rail, fragments) in rig.rails.iter().zip(expected) {
            let doorbells = rail.take_doorbells().len();
            assert_eq!(doorbells, usize::from(fragments > 0), "one doorbell a rail");
        }
    }
}

#[test]
fn a_rail_just_freed_is_next() {
    let mut rig = Setup::spray(4).fragment(128).depth(1).rig();
    rig.post((0..4).map(|id| rig::write(id, 128)));
    rig.post([rig::write(4, 128)]);
    rig.rails[2].complete(1);
    rig.poll();
    assert_eq!(loads(&rig), [1, 1, 1, 1], "request 4 is on rail 2");
    rig.rails[1].complete(1);
    rig.poll();
    rig.rails[3].complete(1);
    rig.poll();
    rig.post([rig::write(5, 128)]);
    assert_eq!(loads(&rig), [1, 0, 1, 1], "rail 3 was freed last");
    assert_eq!(rig.run_dry().len(), 6);
}

/// Rails 0 and 1 on device 0, rails 2 and 3 on device 1: turns go 0, 2, 1, 3.
#[test]
fn turns_interleave_devices() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 10), nic.cq(1, 1 << 10)];
    let (rails, handles): (Vec<ScriptedQp>, Vec<_>) =
        (0..4).map(|rail| nic.qp(10 + rail, &cqs[rail as usize / 2], LIMITS)).unzip();
    let config = Config { max_msg_size: 128, ..Config::default() };
    let mut qp = TestQp::<4, 16, 32>::new(config, rails, None).unwrap();
    for expected in [0, 2, 1, 3] {
        qp.post_send(&rig::write(1, 128)).unwrap();
        assert_eq!(handles[expected].take_doorbells().len(), 1, "rail {expected}");
    }
}

/// Every boundary of a request lies on a multiple of the fragment size, itself a multiple of 128.
#[test]
fn fragment_boundaries_are_multiples_of_128_whatever_is_full() {
    let mut rig: Rig<3, 8, 8> = Setup::spray(3).fragment(384).build();
    for length in [1u32, 127, 128, 383, 384, 385, 3 * 384, 20_000, 65_537] {
        rig.post([rig::write(1, length)]);
        let mut ends = vec![0];
        while rig.qp.unreported_sends() > 0 {
            for rail in 0..3 {
                for piece in rig.pieces(rail).concat() {
                    assert_eq!(piece.offset % 384, 0);
                    ends.push(piece.offset + u64::from(piece.length));
                }
                rig.rails[rail].complete_all();
            }
            rig.poll();
        }
        ends.sort_unstable();
        let expected: Vec<_> = (0..length.div_ceil(384))
            .map(|at| u64::from(at * 384))
            .chain([length.into()])
            .collect();
        assert_eq!(ends, expected, "{length} bytes");
    }
}

fn least_finish_time(mbps: &[u32]) -> Setup {
    let mut bandwidth_mbps = [0; MAX_RAILS];
    bandwidth_mbps[..mbps.len()].copy_from_slice(mbps);
    let choice = RailChoice::LeastFinishTime { bandwidth_mbps };
    Setup::spray(mbps.len()).fragment(128).config(move |config| config.rail_choice = choice)
}

#[test]
fn least_finish_time_deals_by_bandwidth() {
    let mut rig: Rig<4, 64, 8> = least_finish_time(&[400_000, 200_000, 100_000, 100_000]).build();
    rig.post([rig::write(1, 64 * 128)]);
    assert_eq!(loads(&rig), [32, 16, 8, 8]);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn least_finish_time_counts_what_is_in_flight() {
    let mut rig: Rig<2, 64, 16> = least_finish_time(&[100_000, 100_000]).build();
    rig.post([rig::write(1, 8 * 128)]);
    assert_eq!(loads(&rig), [4, 4]);
    rig.rails[1].complete_all();
    rig.poll();
    rig.post([rig::write(2, 4 * 128)]);
    assert_eq!(loads(&rig), [4, 4], "rail 0 still has its backlog");
    rig.post([rig::write(3, 128), rig::write(4, 128)]);
    assert_eq!(loads(&rig), [5, 5]);
    assert_eq!(rig.run_dry().len(), 4);
}

#[test]
fn least_finish_time_goes_elsewhere_when_credits_run_out() {
    let mut rig: Rig<2, 8, 8> = least_finish_time(&[1_000_000, 1]).depth(8).build();
    rig.post([rig::write(1, 12 * 128)]);
    assert_eq!(loads(&rig), [8, 4], "a slow rail is better than none");
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn least_finish_time_leaves_out_rails_out_of_service() {
    let mut rig: Rig<2, 8, 8> = least_finish_time(&[1_000_000, 1]).build();
    assert!(rig.qp.set_rail_in_service(0, false));
    rig.post([rig::write(1, 4 * 128)]);
    assert_eq!(loads(&rig), [0, 4]);
    assert_eq!(rig.run_dry().len(), 1);
}

#[test]
fn least_finish_time_needs_every_bandwidth() {
    let setup = least_finish_time(&[10, 0]);
    let nic = Nic::new();
    let cq = nic.cq(0, 64);
    let rails = [nic.qp(1, &cq, LIMITS).0, nic.qp(2, &cq, LIMITS).0];
    let built = TestQp::<2, 8, 8>::new(setup.config, rails, None).map(|_| ());
    assert_eq!(built, Err(BuildError::Bandwidth { rail: 1 }));
}

/// The choice of a rail changes while requests are in flight, in both directions.
#[test]
fn the_choice_of_a_rail_may_change() {
    let mut rig: Rig<4, 64, 16> = Setup::spray(4).fragment(128).build();
    rig.post([rig::write(1, 16 * 128)]);
    assert_eq!(loads(&rig), [4, 4, 4, 4]);
    let bandwidth_mbps = [400, 400, 100, 100, 0, 0, 0, 0];
    let choice = RailChoice::LeastFinishTime { bandwidth_mbps };
    assert_eq!(rig.qp.set_rail_choice(choice), Ok(()));
    rig.post([rig::write(2, 24 * 128)]);
    assert_eq!(loads(&rig), [16, 16, 4, 4], "what is in flight counts");
    let unknown = RailChoice::LeastFinishTime { bandwidth_mbps: [1, 1, 0, 1, 1, 1, 1, 1] };
    assert_eq!(rig.qp.set_rail_choice(unknown), Err(BuildError::Bandwidth { rail: 2 }));
    assert_eq!(rig.qp.config().rail_choice, choice, "nothing changed");
    assert_eq!(rig.qp.set_rail_choice(RailChoice::RoundRobin), Ok(()));
    rig.post([rig::write(3, 4 * 128)]);
    assert_eq!(loads(&rig), [17, 17, 5, 5]);
    assert_eq!(rig.run_dry().len(), 3);
}

#[test]
fn eight_rails_share_evenly_over_time() {
    let mut rig: Rig<8, 16, 64> = Setup::spray(8).fragment(128).build();
    for round in 0..100u32 {
        rig.post([rig::write(1, 128 * (1 + round * 7 % 40))]);
        assert_eq!(rig.run_dry().len(), 1);
    }
    let counts: Vec<_> =
        (0..8).map(|rail| rig.qp.counters(RailId::Data(rail)).unwrap().send_requests).collect();
    let least = counts.iter().min().unwrap();
    let most = counts.iter().max().unwrap();
    assert!(most - least <= most / 3, "{counts:?}");
}

/// Waiting requests go to the rail whose completion came last, whichever rail that is, and then to
/// the following ones.
#[test]
fn waiting_requests_begin_with_the_rail_freed_last() {
    for order in [[0, 2], [2, 0], [1, 3], [3, 1], [2, 3], [3, 2]] {
        let mut rig = Setup::spray(4).fragment(128).depth(1).rig();
        rig.post((0..4).map(|id| rig::write(id, 128)));
        rig.post([rig::write(4, 128)]);
        order.iter().for_each(|rail| rig.rails[*rail].complete(1));
        rig.poll();
        let expected = [0, 1, 2, 3].map(|rail| usize::from(rail != order[0]));
        assert_eq!(loads(&rig), expected, "rail {} was freed last", order[1]);
        rig.run_dry();
    }
}

/// A request that gives each rail its share leaves the turn where it was.
#[test]
fn turns_go_on_after_a_request_over_all_rails() {
    for first in 0..4 {
        let mut rig: Rig<4, 16, 64> = Setup::spray(4).fragment(128).build();
        rig.post((0..first).map(|id| rig::write(id, 128)));
        rig.post([rig::write(8, 4 * 128), rig::write(9, 8 * 128)]);
        rig.rails.iter().for_each(|rail| drop(rail.take_doorbells()));
        for step in 0..6 {
            rig.post([rig::write(10, 128)]);
            let rung = |rail: &usize| !rig.rails[*rail].take_doorbells().is_empty();
            let expected = (first as usize + step) % 4;
            assert_eq!((0..4).filter(rung).collect::<Vec<_>>(), [expected]);
        }
    }
}

/// Rails with different limits, on devices with different capabilities.
fn uneven() -> Setup {
    let mut setup = Setup::spray(3).devices(2).fragment(128);
    let limits = |send, recv, inline| QpLimits {
        max_send_wr: send,
        max_recv_wr: recv,
        max_inline_data: inline,
        max_msg_size: 1 << 20,
        ..LIMITS
    };
    setup.rail_limits = vec![limits(4, 9, 200), limits(1, 3, 16), limits(2, 5, 64)];
    setup
}

#[test]
fn an_inline_request_fits_every_rail() {
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    for rotation in 0..3 {
        let mut setup = uneven();
        setup.rail_limits.rotate_left(rotation);
        let mut rig = setup.rig();
        for id in 0..3 {
            rig.post([rig::write(id, 16).with_flags(inline)]);
            let long = rig.qp.post_send(&rig::write(9, 17).with_flags(inline));
            assert_eq!(long, Err(PostSendError::InlineTooLong { length: 17, max: 16 }));
        }
        // SENDs go to rail 0 alone.
        rig.run_dry();
        let max = setup.rail_limits[0].max_inline_data;
        rig.post([rig::send(4, max).with_flags(inline)]);
        assert_eq!((rig.run_dry().len(), rig.nic.invalid()), (1, 0));
    }
}

#[test]
fn a_fragment_fits_every_rail() {
    for short in 0..3 {
        let nic = Nic::new();
        let cq = nic.cq(0, 64);
        let limit = |rail| if rail == short { 128 } else { 1 << 20 };
        let rails = |size: u32| {
            let limits = |rail| QpLimits { max_msg_size: limit(rail), ..LIMITS };
            let rails = (0..3).map(|rail| nic.qp(rail, &cq, limits(rail)).0);
            let config = Config { max_msg_size: size, ..Config::default() };
            TestQp::<4, 8, 8>::new(config, rails, None).map(|_| ())
        };
        let refused = BuildError::RailMsgSize { rail: short as u8, bytes: 256, limit: 128 };
        assert_eq!((rails(128), rails(256)), (Ok(()), Err(refused)));
    }
}

#[test]
fn each_rail_has_as_many_requests_in_flight_as_it_was_granted() {
    let mut rig = uneven().rig();
    rig.post([rig::write(1, 20 * 128)]);
    assert_eq!(loads(&rig), [4, 1, 2]);
    rig.rails[1].complete_all();
    assert!(rig.poll().is_empty());
    assert_eq!(loads(&rig), [4, 1, 2]);
    assert_eq!(rig.run_dry().len(), 1);
    for (at, rail) in rig.rails.iter().enumerate() {
        assert_eq!(rig.qp.counters(RailId::Data(at as u8)), Some(rail.counters()));
    }
}

/// The sender leaves room for what the receiver's NIC has taken and its software has not seen: on
/// each rail as much as its deepest receive queue holds.
#[test]
fn the_card_states_the_deepest_receive_queue() {
    for rotation in 0..3 {
        let mut setup = uneven();
        setup.notify = false;
        setup.config.scheme = Scheme::Dqplb;
        setup.rail_limits.rotate_left(rotation);
        let mut rig = setup.rig();
        assert_eq!(rig.qp.window().receives_per_rail, 9);
        rig.qp.prepare_receives().unwrap();
        let posted: Vec<_> = rig.rails.iter().map(|rail| rail.recvs().len() as u32).collect();
        let granted: Vec<_> = setup.rail_limits.iter().map(|limits| limits.max_recv_wr).collect();
        assert_eq!(posted, granted);
    }
}

/// What a driver did not take was not handed to its device.
#[test]
fn counters_give_back_what_a_driver_refuses() {
    for refusal in [Refusal::QueueFull, Refusal::Driver(5)] {
        for (taken, length) in [(0, 128), (0, 512), (1, 512)] {
            let mut rig = Setup::spray(2).fragment(128).rig();
            rig.rails[0].refuse_next(taken, refusal);
            let _ = rig.qp.post_send(&rig::write(1, length));
            rig.rails[0].refuse_next(0, Refusal::Driver(5));
            rig.poll();
            for (at, rail) in rig.rails.iter().enumerate() {
                let counters = rig.qp.counters(RailId::Data(at as u8));
                assert_eq!(counters, Some(rail.counters()), "rail {at}, {taken}, {refusal}");
            }
        }
    }
}

/// For rail 0 where it shares a device with another rail.
#[test]
fn a_reserved_rail_carries_what_no_other_can() {
    let mut rig: Rig<2, 8, 8> = Setup::spray(2).fragment(128).build();
    assert!(rig.qp.reserve_rail(0, true) && !rig.qp.reserve_rail(2, true));
    rig.post([rig::write(1, 4 * 128)]);
    assert_eq!(loads(&rig), [0, 4]);
    rig.post([rig::send(2, 64)]);
    assert_eq!(loads(&rig), [0, 4], "it stays behind the write");
    assert_eq!(rig.run_dry().len(), 2);
    rig.post([rig::send(3, 64)]);
    assert_eq!(loads(&rig), [1, 0]);
    assert_eq!(rig.run_dry().len(), 1);
    // It takes only the fragments that no other rail can.
    assert!(rig.qp.set_rail_in_service(1, false));
    rig.post([rig::write(4, 2 * 128)]);
    assert_eq!(loads(&rig), [2, 0]);
    assert!(rig.qp.set_rail_in_service(1, true));
    rig.post([rig::write(5, 2 * 128)]);
    assert_eq!(loads(&rig), [2, 2]);
    assert!(rig.qp.reserve_rail(0, false));
    rig.post([rig::write(6, 2 * 128)]);
    assert_eq!(loads(&rig), [3, 3]);
    assert_eq!(rig.run_dry().len(), 3);
}

/// A peer whose fragments are shorter: none is longer than its, and each is of a length that
/// fragments can have.
#[test]
fn fragments_are_no_longer_than_the_peers() {
    for (peer, agreed) in [(u32::MAX, 512), (512, 512), (300, 256), (128, 128)] {
        let mut rig = Setup::spray(2).fragment(512).rig();
        rig.qp.limit_max_msg_size(peer).unwrap();
        assert_eq!(rig.qp.config().max_msg_size, agreed);
        rig.qp.post_many(&[rig::write(1, 1024), rig::write(2, 1000)]).unwrap();
        let mut lengths: Vec<_> = (0..2).flat_map(|rail| rig.pieces(rail).concat()).collect();
        lengths.retain(|piece| piece.length != agreed);
        assert!(lengths.len() <= 1 && lengths.iter().all(|piece| piece.length == 1000 % agreed));
        assert_eq!(rig.run_dry().len(), 2);
    }
}
