//! The contenders do the work that they claim to do: counted, not timed.

use polyrail_benches::arrivals::{ARRIVALS, Arrivals, REQUESTS};
use polyrail_benches::counted::{Account, Counted, Work};
use polyrail_benches::message_rig::{self, MessageRig};
use polyrail_benches::null::{NullCq, NullQp, NullSrq};
use polyrail_benches::random::XorShift;
use polyrail_benches::rig::Rig;
use polyrail_benches::rows::ROWS;
use polyrail_benches::workload::{
    BUFFERS, DEPTH, FRAGMENT, FRAGMENTS, OUTSTANDING, POLL, RAILS, Reported, SMALL, TOGETHER,
    messages,
};
use polyrail_benches::{baseline, engine, floor, peers};
use polyrail_core::verbs::{Opcode, WcStatus};
use polyrail_core::virtual_qp::Scheme;
use std::sync::atomic::AtomicU64;
use std::thread;

type Qp = Counted<NullQp>;
type Cq = Counted<NullCq>;
type Srq = Counted<NullSrq>;

const LARGE: u32 = FRAGMENTS * FRAGMENT;
const BURST: u64 = OUTSTANDING as u64;
const BATCHES: u64 = BURST * RAILS as u64;
const SENDS: u64 = BURST * FRAGMENTS as u64;

/// The second of two bursts: the first may leave things behind.
fn work<C>(account: &Account, contender: &mut C, burst: impl Fn(&mut C) -> Reported) -> Work {
    burst(contender);
    account.take();
    burst(contender);
    account.take()
}

/// What a sender reports of a burst, whatever the length of its messages.
fn whole_burst() -> Reported {
    let mut reported = Reported::default();
    messages(SMALL).iter().for_each(|message| reported.note(message.wr_id, WcStatus::SUCCESS));
    reported
}

fn engine_work<const RAILS: usize>(rig: Rig, scheme: Scheme, length: u32, imm: bool) -> Work {
    let account = Account::default();
    let mut engine = engine::Sender::<_, _, RAILS>::new(rig.counted(&account), scheme, length);
    work(&account, &mut engine, |engine| {
        if imm {
            engine.post_writes_with_imm();
        } else {
            engine.post_writes();
        }
        let reported = engine.poll();
        assert_eq!(reported, whole_burst());
        reported
    })
}

fn floor_work(
    rig: Rig,
    length: u32,
    burst: impl Fn(&mut floor::Striped<Qp, Cq>) -> Reported,
) -> Work {
    let account = Account::default();
    let mut floor = floor::Striped::new(rig.counted(&account), length);
    work(&account, &mut floor, |floor| {
        let reported = burst(floor);
        assert_eq!(reported, whole_burst());
        reported
    })
}

fn baseline_work(rig: Rig, scheme: baseline::Scheme, opcode: Opcode, length: u32) -> Work {
    let account = Account::default();
    let rig = rig.counted(&account);
    let mut baseline = baseline::Sender::striped(rig, scheme, opcode, length);
    work(&account, &mut baseline, |baseline| {
        let reported = baseline.cycle();
        assert_eq!(reported, whole_burst());
        reported
    })
}

/// A burst of this many requests and batches, polled with as few polls as possible.
fn sends(sends: u64, batches: u64) -> Work {
    let polls = batches.div_ceil(POLL as u64);
    Work { sends, send_doorbells: batches, polls, completions: batches, ..Work::default() }
}

#[test]
fn single_rail_work_is_one_batch_a_request() {
    let account = Account::default();
    let mut floor = floor::Single::new(Rig::single().counted(&account));
    let floor = work(&account, &mut floor, |floor| {
        floor.post_writes();
        floor.poll()
    });
    assert_eq!(floor, sends(BURST, BURST));
    assert_eq!(engine_work::<1>(Rig::single(), Scheme::Spray, SMALL, false), floor);
    let scheme = baseline::Scheme::Spray;
    let baseline = baseline_work(Rig::single(), scheme, Opcode::RdmaWrite, SMALL);
    assert_eq!(baseline, Work { empty_polls: 1, ..floor });
}

/// Work of the engine's sender over `RAILS` rails; `burst` does one burst.
fn engine_burst<const RAILS: usize>(
    rig: Rig,
    burst: impl Fn(&mut engine::Sender<Qp, Cq, RAILS>) -> Reported,
) -> Work {
    let account = Account::default();
    let mut engine = engine::Sender::new(rig.counted(&account), Scheme::Spray, SMALL);
    work(&account, &mut engine, |engine| {
        let reported = burst(engine);
        assert_eq!(reported, whole_burst());
        reported
    })
}

#[test]
fn a_list_is_one_request_and_a_batch_of_requests_rings_each_rail_once() {
    let floor = floor_work(Rig::striped(), SMALL, |floor| floor.write_lists(BUFFERS));
    assert_eq!(floor, sends(BURST, BURST));
    let engine = engine_burst::<RAILS>(Rig::striped(), |engine| {
        engine.post_lists(BUFFERS);
        engine.poll()
    });
    assert_eq!(engine, floor);
    let floor = floor_work(Rig::striped(), SMALL, |floor| floor.write_together(TOGETHER));
    let doorbells = BURST / TOGETHER as u64 * RAILS as u64;
    assert_eq!(floor, Work { send_doorbells: doorbells, ..sends(BURST, BURST) });
    let engine = engine_burst::<RAILS>(Rig::striped(), |engine| {
        engine.post_together(TOGETHER);
        engine.poll()
    });
    assert_eq!(engine, floor);
}

/// Measures the work of the floor's single queue pair.
fn floor_burst(rig: Rig, burst: impl Fn(&mut floor::Single<Qp, Cq>) -> Reported) -> Work {
    let account = Account::default();
    let mut floor = floor::Single::new(rig.counted(&account));
    work(&account, &mut floor, |floor| {
        let reported = burst(floor);
        assert_eq!(reported, whole_burst());
        reported
    })
}

#[test]
fn what_passes_through_is_one_batch_a_request_on_the_first_rail() {
    let floor = floor_burst(Rig::striped(), |floor| {
        floor.post_sends();
        floor.poll()
    });
    assert_eq!(floor, sends(BURST, BURST));
    let engine = engine_burst::<RAILS>(Rig::striped(), |engine| {
        engine.post_sends();
        engine.poll()
    });
    assert_eq!(engine, floor);
}

#[test]
fn one_completion_queue_is_polled_as_seldom_as_all() {
    let engine = engine_burst::<1>(Rig::single(), |engine| {
        engine.post_writes();
        engine.poll_cq()
    });
    assert_eq!(engine, sends(BURST, BURST));
}

#[test]
fn one_completion_at_a_time_is_at_most_a_poll_for_each() {
    let floor = floor_burst(Rig::single(), |floor| {
        floor.post_writes();
        floor.poll_one()
    });
    assert_eq!(floor, Work { polls: BURST, ..sends(BURST, BURST) });
    let engine = engine_burst::<1>(Rig::single(), |engine| {
        engine.post_writes();
        engine.poll_one()
    });
    // It takes a batch at once, keeps what was not asked for, and looks for more each time.
    assert_eq!((engine.sends, engine.completions), (floor.sends, floor.completions));
    assert!(engine.polls + engine.empty_polls <= floor.polls, "{engine:?}");
}

#[test]
fn what_is_fed_is_polled_once_and_by_the_caller() {
    let floor = floor_burst(Rig::single(), |floor| {
        floor.complete();
        floor.inspect()
    });
    assert_eq!(floor, sends(BURST, BURST));
    let engine = engine_burst::<1>(Rig::single(), |engine| {
        engine.complete();
        engine.feed()
    });
    assert_eq!(engine, floor);
}

#[test]
fn many_queue_pairs_take_one_batch_a_request() {
    let targets = || (0..OUTSTANDING as u16).rev().chain([7; OUTSTANDING]).collect();
    let account = Account::default();
    let mut floor = floor::Many::new(Rig::many(OUTSTANDING).counted(&account), targets());
    let floor = work(&account, &mut floor, floor::Many::scattered);
    assert_eq!(floor, sends(BURST, BURST));
    let rig = Rig::many(OUTSTANDING).counted(&account);
    let mut engine = engine::Many::<_, _, 64>::new(rig, targets());
    assert_eq!(work(&account, &mut engine, engine::Many::scattered), floor);
}

#[test]
fn one_fragment_is_one_batch_on_one_rail() {
    let floor = floor_work(Rig::striped(), FRAGMENT, floor::Striped::write);
    assert_eq!(floor, sends(BURST, BURST));
    assert_eq!(engine_work::<RAILS>(Rig::striped(), Scheme::Spray, FRAGMENT, false), floor);
}

#[test]
fn sixteen_fragments_are_four_batches() {
    let floor = floor_work(Rig::striped(), LARGE, floor::Striped::write);
    assert_eq!(floor, sends(SENDS, BATCHES));
    assert_eq!(engine_work::<RAILS>(Rig::striped(), Scheme::Spray, LARGE, false), floor);
}

#[test]
fn spray_adds_a_batch_of_notifies_for_each_poll() {
    let floor = floor_work(Rig::striped_with_notify(), LARGE, floor::Striped::write_and_notify);
    let polls = BATCHES / POLL as u64;
    assert_eq!(floor, sends(SENDS + BURST, BATCHES + polls));
    let rig = Rig::striped_with_notify();
    assert_eq!(engine_work::<RAILS>(rig, Scheme::Spray, LARGE, true), floor);
}

#[test]
fn numbering_fragments_changes_no_count() {
    let floor = floor_work(Rig::striped(), LARGE, floor::Striped::write_numbered);
    assert_eq!(floor, sends(SENDS, BATCHES));
    assert_eq!(engine_work::<RAILS>(Rig::striped(), Scheme::Dqplb, LARGE, true), floor);
}

#[test]
fn the_baseline_rings_and_completes_for_every_fragment() {
    let spray = baseline::Scheme::Spray;
    let writes = baseline_work(Rig::striped(), spray, Opcode::RdmaWrite, LARGE);
    assert_eq!(writes, Work { empty_polls: 1, ..sends(SENDS, SENDS) });
    let rig = Rig::striped_with_notify();
    let spray = baseline_work(rig, spray, Opcode::RdmaWriteWithImm, LARGE);
    // The first notify is in flight while data completes; from then on one at a time.
    let counts = (spray.sends, spray.send_doorbells, spray.completions);
    assert_eq!(counts, (SENDS + BURST, SENDS + BURST, SENDS + BURST));
    let dqplb = baseline::Scheme::Dqplb;
    let dqplb = baseline_work(Rig::striped(), dqplb, Opcode::RdmaWriteWithImm, LARGE);
    assert_eq!(dqplb, Work { empty_polls: 1, ..sends(SENDS, SENDS) });
}

/// Work of several bursts of arrivals, summed.
fn receive_work<R>(
    make: impl FnOnce(Rig<Qp, Cq>) -> R,
    receive: impl Fn(&mut R) -> Reported,
    reported: usize,
) -> Work {
    let account = Account::default();
    let rig = Rig::striped();
    let mut arrivals = Arrivals::new(rig.wire.clone(), rig.inboxes.clone());
    let mut receiver = make(rig.counted(&account));
    assert_eq!(account.take().recvs, (RAILS * DEPTH) as u64);
    for _ in 0..20 {
        arrivals.deliver();
        assert_eq!(receive(&mut receiver).count(), reported);
    }
    account.take()
}

#[test]
fn receivers_post_again_what_arrives_in_the_same_batches() {
    let floor = receive_work(floor::Receiver::new, |floor| floor.receive().0, ARRIVALS);
    assert_eq!(floor.completions, 20 * ARRIVALS as u64);
    assert_eq!(floor.polls, floor.completions / POLL as u64);
    assert!(floor.recvs + (RAILS * DEPTH / 4) as u64 > floor.completions);
    assert!(floor.recvs / floor.recv_doorbells >= DEPTH as u64 / 4);
    let engine = receive_work(engine::Receiver::new, engine::Receiver::receive, REQUESTS);
    assert_eq!(engine, floor);
    let baseline = receive_work(baseline::Receiver::new, baseline::Receiver::receive, REQUESTS);
    assert_eq!(baseline.recv_doorbells, baseline.completions);
    assert_eq!(baseline.completions, floor.completions);
}

#[test]
fn the_baseline_reports_in_posting_order_whatever_order_rails_complete_in() {
    let rig = Rig::striped_with_notify();
    let wire = rig.wire.clone();
    let scheme = baseline::Scheme::Spray;
    let config =
        baseline::Config { virtual_qp_num: 1, scheme, max_msg_size: 4096, max_msgs_per_qp: 3 };
    let mut qps = [baseline::VirtualQp::new(config, rig.rails, rig.notify)];
    let mut cq = baseline::VirtualCq::new(vec![rig.cq]);
    cq.register(0, &qps[0]);
    let mut random = XorShift::new();
    let mut posted = 0;
    let mut reported = 0;
    while reported < 1000 {
        while posted < reported + 20 {
            let opcode = if posted % 3 == 0 { Opcode::RdmaWriteWithImm } else { Opcode::RdmaWrite };
            let length = 1 + random.below(40_000) as u32;
            let request = baseline::request(&messages(length)[0], opcode);
            qps[0].post_send(&baseline::SendWr { wr_id: posted, ..request }).unwrap();
            posted += 1;
        }
        wire.shuffle(&mut random);
        for wc in cq.poll_cq(&mut qps).unwrap() {
            assert_eq!(wc.wr_id, reported);
            reported += 1;
        }
    }
}

/// What several bursts of messages are: the work, and all that was posted.
fn messages_work<M>(
    words: &'static [AtomicU64],
    (rails, length): (u8, u32),
    make: impl FnOnce(MessageRig<Qp, Cq, Srq>) -> M,
    receive: impl Fn(&mut M) -> Reported,
    send: impl Fn(&mut M) -> Reported,
) -> (Work, u64) {
    let account = Account::default();
    let (rig, mut link) = MessageRig::over(words, rails, length);
    let mut ends = make(rig.counted(&account));
    assert_eq!((receive(&mut ends), send(&mut ends)), Default::default());
    for burst in 0..20 {
        link.carry();
        let numbers = burst * BURST + 1..=(burst + 1) * BURST;
        let sum = |each: u64| numbers.clone().map(|number| number + each).sum::<u64>();
        let received = receive(&mut ends);
        assert_eq!((received.count(), received.wr_ids), (OUTSTANDING, sum(u64::from(length))));
        let sent = send(&mut ends);
        assert_eq!((sent.count(), sent.wr_ids), (OUTSTANDING, sum(0)));
    }
    (account.take(), account.posted())
}

#[test]
fn messages_are_the_same_requests_on_floor_and_engine() {
    for (rails, length) in [(1, 8), (2, LARGE), (4, LARGE)] {
        // Shared by both, so that their requests have the same addresses.
        let words = message_rig::words();
        let floor = messages_work(
            words,
            (rails, length),
            |rig| floor::Messages::new(rig, length),
            floor::Messages::receive,
            floor::Messages::send,
        );
        let engine = messages_work(
            words,
            (rails, length),
            |rig| engine::Messages::new(rig, length),
            engine::Messages::receive,
            engine::Messages::send,
        );
        assert_eq!(engine, floor, "{rails} rails");
        // Two requests for the offers of a burst.
        let (offers, shares) = (21 * 2, 21 * BURST * u64::from(rails));
        assert_eq!((floor.0.sends, floor.0.send_doorbells), (offers + shares, offers + shares));
        assert!(floor.0.recvs / floor.0.recv_doorbells >= 64, "{:?}", floor.0);
    }
}

/// Every row's contenders run, and the engine's do not stall or panic over many bursts.
#[test]
fn every_row_runs() {
    for row in ROWS {
        for (_, make) in row.contenders() {
            make().time(20);
        }
    }
}

/// What `benches/docs/figures.md` says of an end of a peer that messages are exchanged with.
#[test]
fn an_end_of_a_peer_registers_entries_and_records_of_64_slots() {
    assert_eq!(peers::MESSAGE_ENDS.map(|end| end.registered), [40_960, 41_024]);
}

#[test]
fn many_peers_are_made_used_and_closed() {
    // Without optimization, the largest routing table is copied on the stack: see
    // `EndpointSet::with_routes`, which promises that this is enough.
    let large = thread::Builder::new().stack_size(12 << 20);
    let measure = || peers::measure(101, 10).map_err(|error| error.to_string());
    let measured = large.spawn(measure).unwrap().join().unwrap().unwrap();
    assert_eq!(measured.count, 101);
    assert_eq!(measured.active.iter().map(|active| active.peers).collect::<Vec<_>>(), [1, 100]);
}
