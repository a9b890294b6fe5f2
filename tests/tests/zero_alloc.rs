//! Nothing allocates after set-up: post, poll and completion of every kind of request, on both
//! sides, over the software NIC.

use polyrail::backend::ConnectOptions;
use polyrail::nic::{Fabric, connect_pair};
use polyrail_core::verbs::{DeviceKeys, RecvWr, SendWr};
use polyrail_core::virtual_qp::{
    Config, PostError, RailChoice, RailFailure, RailId, RailState, Scheme,
};
use polyrail_tests::allocations::{CountingAllocator, allocations, expect_counting};
use polyrail_tests::endpoint::{Side, connect};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Two connected sides and how much was reported.
struct Traffic {
    near: Side,
    far: Side,
    keys: Vec<DeviceKeys>,
    far_keys: Vec<DeviceKeys>,
    reported: [u64; 2],
}

/// Bytes of a request: five fragments, more than there are rails.
const LENGTH: u32 = 5 * 1024;

impl Traffic {
    fn new(config: Config) -> Self {
        let config = Config { max_msg_size: 1024, ..config };
        let (near, far) = connect(&Fabric::threaded(), 4, 2, config, 1 << 16);
        let keys = near.keys_toward(&far);
        let far_keys = far.keys_toward(&near);
        Self { near, far, keys, far_keys, reported: [0; 2] }
    }

    /// Posts until the ring refuses, then polls until everything is reported.
    fn burst(&mut self, post: impl Fn(&mut Self, u64) -> Result<(), PostError>) {
        let mut posted = 0;
        loop {
            match post(self, posted) {
                Ok(()) => posted += 1,
                Err(error) if error.is_back_pressure() => break,
                Err(error) => panic!("{error}"),
            }
        }
        let end = self.reported[0] + posted;
        while self.reported[0] < end {
            for (side, reported) in
                [&mut self.near, &mut self.far].into_iter().zip(&mut self.reported)
            {
                let polled = side.cq.poll(&mut *side.qp, 32, |event| {
                    let wc = event.completion().expect("every queue pair is attached");
                    assert!(wc.status.is_success(), "{wc:?}");
                    *reported += 1;
                });
                assert_eq!(polled.error, None);
            }
        }
    }

    /// Allocations of ten bursts, after two to warm up.
    fn allocations(&mut self, post: impl Fn(&mut Self, u64) -> Result<(), PostError>) -> u64 {
        (0..2).for_each(|_| self.burst(&post));
        let before = allocations();
        (0..10).for_each(|_| self.burst(&post));
        allocations() - before
    }
}

fn write(traffic: &mut Traffic, wr_id: u64) -> Result<(), PostError> {
    let local = traffic.near.memory.local(0, LENGTH).expect("within the buffer");
    let wr = SendWr::write(wr_id, local, traffic.far.memory.addr(), &traffic.keys);
    Ok(traffic.near.qp.post_send(&wr)?)
}

fn write_with_imm(traffic: &mut Traffic, wr_id: u64) -> Result<(), PostError> {
    // The receiver's ring may be full while the sender's is not: then this burst ends.
    traffic.far.qp.post_recv(&RecvWr::notification(wr_id))?;
    let local = traffic.near.memory.local(0, LENGTH).expect("within the buffer");
    let wr = SendWr::write_with_imm(wr_id, local, traffic.far.memory.addr(), 7, &traffic.keys);
    Ok(traffic.near.qp.post_send(&wr)?)
}

fn read(traffic: &mut Traffic, wr_id: u64) -> Result<(), PostError> {
    let local = traffic.near.memory.local(0, LENGTH).expect("within the buffer");
    let wr = SendWr::read(wr_id, local, traffic.far.memory.addr(), &traffic.keys);
    Ok(traffic.near.qp.post_send(&wr)?)
}

fn send(traffic: &mut Traffic, wr_id: u64) -> Result<(), PostError> {
    let into = traffic.far.memory.local(0, LENGTH).expect("within the buffer");
    traffic.far.qp.post_recv(&RecvWr::data(wr_id, into, &traffic.far_keys))?;
    let local = traffic.near.memory.local(0, LENGTH).expect("within the buffer");
    Ok(traffic.near.qp.post_send(&SendWr::send(wr_id, local, &traffic.keys))?)
}

fn fetch_add(traffic: &mut Traffic, wr_id: u64) -> Result<(), PostError> {
    let local = traffic.near.memory.local(0, 8).expect("within the buffer");
    let wr = SendWr::fetch_add(wr_id, local, traffic.far.memory.addr(), 1, &traffic.keys);
    Ok(traffic.near.qp.post_send(&wr)?)
}

fn spray() -> Config {
    Config { scheme: Scheme::Spray, ..Config::default() }
}

fn dqplb() -> Config {
    Config { scheme: Scheme::Dqplb, ..Config::default() }
}

#[test]
fn the_counter_counts() {
    expect_counting();
}

#[test]
fn spray_does_not_allocate() {
    let mut traffic = Traffic::new(spray());
    assert_eq!(traffic.allocations(write), 0, "WRITE");
    assert_eq!(traffic.allocations(write_with_imm), 0, "WRITE_WITH_IMM");
    assert_eq!(traffic.allocations(read), 0, "READ");
    assert_eq!(traffic.allocations(fetch_add), 0, "FETCH_ADD");
    assert_eq!(traffic.allocations(send), 0, "SEND");
}

#[test]
fn dqplb_does_not_allocate() {
    let mut traffic = Traffic::new(dqplb());
    assert_eq!(traffic.allocations(write_with_imm), 0, "WRITE_WITH_IMM");
    assert_eq!(traffic.allocations(write), 0, "WRITE");
}

#[test]
fn least_finish_time_does_not_allocate() {
    let bandwidth_mbps = [100, 400, 200, 50, 1, 1, 1, 1];
    let rail_choice = RailChoice::LeastFinishTime { bandwidth_mbps };
    let mut traffic = Traffic::new(Config { rail_choice, ..spray() });
    assert_eq!(traffic.allocations(write), 0, "WRITE");
}

/// Carries the messages between the ends, and polls both.
fn poll_and_carry(traffic: &mut Traffic) {
    let Traffic { near, far, reported, .. } = traffic;
    for (side, reported) in [&mut *near, &mut *far].into_iter().zip(reported) {
        let polled = side.cq.poll(&mut *side.qp, 32, |event| {
            let wc = event.completion().expect("every queue pair is attached");
            assert!(wc.status.is_success(), "{wc:?}");
            *reported += 1;
        });
        assert_eq!(polled.error, None);
    }
    while let Some(message) = near.qp.next_control() {
        far.qp.control(message).expect("a correct peer");
    }
    while let Some(message) = far.qp.next_control() {
        near.qp.control(message).expect("a correct peer");
    }
}

fn poll_until(traffic: &mut Traffic, rail: RailId, state: RailState) {
    while [&traffic.near, &traffic.far].iter().any(|side| side.qp.rail_state(rail) != Some(state)) {
        poll_and_carry(traffic);
    }
}

/// Allocations while a rail fails with requests in flight, and returns.
fn allocations_of_a_failure(
    traffic: &mut Traffic,
    (rail, generation): (RailId, u16),
    post: impl Fn(&mut Traffic, u64) -> Result<(), PostError>,
) -> u64 {
    let at = if let RailId::Data(rail) = rail { rail.into() } else { 0 };
    let [near, far] = [&mut traffic.near, &mut traffic.far].map(|side| side.queue_pair(at));
    connect_pair(&near, &far, &ConnectOptions::default()).expect("fresh queue pairs");
    let before = allocations();
    let posted = (0..).find(|wr_id| post(traffic, *wr_id).is_err()).unwrap_or_default();
    let end = traffic.reported[0] + posted;
    assert!(traffic.near.qp.fail_rail(rail));
    poll_until(traffic, rail, RailState::Down);
    let Traffic { near: here, far: there, .. } = traffic;
    let old = [(here, near), (there, far)].map(|(side, queue_pair)| {
        side.qp.replace_rail(&mut side.cq, 0, rail, generation, queue_pair).expect("it fits")
    });
    poll_until(traffic, rail, RailState::InService);
    while traffic.reported[0] < end {
        poll_and_carry(traffic);
    }
    let allocations = allocations() - before;
    drop(old);
    allocations
}

#[test]
fn rails_that_fail_and_return_do_not_allocate() {
    let reroute = |config| Config { rail_failure: RailFailure::Reroute, ..config };
    for config in [spray(), dqplb()] {
        let mut traffic = Traffic::new(reroute(config));
        let notify = config.scheme.uses_notify_qp().then_some(RailId::Notify);
        let rails = (0..4).map(RailId::Data).chain(notify);
        for (generation, rail) in (1..=3).flat_map(|round| rails.clone().map(move |id| (round, id)))
        {
            let failed = (rail, generation);
            assert_eq!(allocations_of_a_failure(&mut traffic, failed, write_with_imm), 0, "{rail}");
        }
        assert_eq!(traffic.near.qp.duplicates() + traffic.far.qp.duplicates(), 0);
    }
}
