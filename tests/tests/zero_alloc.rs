//! Nothing allocates after set-up: post, poll and completion of every kind of request, on both
//! sides, over the software NIC.

use polyrail::nic::Fabric;
use polyrail_core::verbs::{DeviceKeys, RecvWr, SendWr};
use polyrail_core::virtual_qp::{Config, PostError, RailChoice, Scheme};
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
