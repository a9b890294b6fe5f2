//! Messages over two rails: endpoints for them on real verbs, also while a link goes down and comes
//! up.

use crate::fixture::{GID_INDEX, Rails};
use polyrail::memory::RegisteredBuffer;
use polyrail::p2p::{
    CallError, End, NotNow, P2pBuilder, P2pEndpoint, Received, RecvBuffer, RecvHandle, SendHandle,
    connect_endpoints,
};
use polyrail::rdma::{OpenOptions, VerbsDomain, VerbsRegion, open_devices};
use polyrail::virtual_qp::{RailFailure, RailState};
use polyrail_core::verbs::{AccessFlags, DeviceKeys};
use polyrail_ffi::PostMode;
use polyrail_tests::behaviours::{Fixture, LIMIT};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of the longest message.
pub(super) const MOST: u32 = 1 << 20;

/// Where messages are.
pub(super) type Memory = RegisteredBuffer<VerbsRegion>;

/// The two devices of an end.
pub(super) fn domains_at(end: &str) -> Vec<VerbsDomain> {
    let names = [0, 1].map(|rail| format!("rxe{end}{rail}").parse().unwrap());
    open_devices(&names, &OpenOptions { gid_index: Some(GID_INDEX), ..OpenOptions::default() })
        .unwrap()
}

/// Memory for the longest message.
pub(super) fn memory_at(domains: &[VerbsDomain]) -> Memory {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    RegisteredBuffer::new(MOST as usize, access, &domains.iter().collect::<Vec<_>>()).unwrap()
}

/// One end, with the memory that its messages are in.
struct Side {
    endpoint: P2pEndpoint<VerbsDomain>,
    memory: Memory,
    keys: Vec<DeviceKeys>,
}

impl Side {
    fn new(end: &str, builder: &P2pBuilder) -> Self {
        let domains = domains_at(end);
        let endpoint = builder.build(&domains.iter().collect::<Vec<_>>()).unwrap();
        let memory = memory_at(&domains);
        let keys = memory.own_keys();
        Self { endpoint, memory, keys }
    }
}

struct Ends {
    near: Side,
    far: Side,
}

impl Ends {
    fn new(builder: &P2pBuilder) -> Self {
        let [mut near, mut far] = ["A", "B"].map(|end| Side::new(end, builder));
        connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
        Self { near, far }
    }

    fn poll(&mut self) {
        let Self { near, far } = self;
        near.endpoint.poll(16).check().unwrap();
        far.endpoint.poll(16).check().unwrap();
    }

    /// Tries again, polling, until it is not "not now".
    fn until<T>(&mut self, mut call: impl FnMut(&mut Self) -> Result<T, CallError>) -> T {
        let begin = Instant::now();
        loop {
            match call(self) {
                Err(CallError::NotNow(reason)) => assert!(begin.elapsed() < LIMIT, "{reason}"),
                done => return done.unwrap(),
            }
            self.poll();
        }
    }

    fn offer(&mut self, buffers: &[(usize, u32, u32)]) -> RecvHandle {
        self.until(|Self { far, .. }| {
            let offered: Vec<_> = buffers
                .iter()
                .map(|(at, length, tag)| RecvBuffer {
                    local: far.memory.local(*at, *length).unwrap(),
                    tag: *tag,
                    keys: &far.keys,
                })
                .collect();
            far.endpoint.irecv(&offered)
        })
    }

    fn send(&mut self, at: usize, length: u32, tag: u32) -> SendHandle {
        self.until(|Self { near, .. }| {
            let local = near.memory.local(at, length).unwrap();
            near.endpoint.isend(local, tag, &near.keys)
        })
    }

    fn sent(&mut self, handle: SendHandle) {
        self.until(|ends| match ends.near.endpoint.test_send(handle)? {
            true => Ok(()),
            false => Err(NotNow::NoCredits.into()),
        });
    }

    fn received(&mut self, handle: RecvHandle) -> Received {
        self.until(|ends| {
            ends.far.endpoint.test_recv(handle)?.ok_or(CallError::NotNow(NotNow::NoCredits))
        })
    }

    /// Sends a pattern, and checks what arrives.
    fn exchange(&mut self, length: u32, seed: u32) {
        let pattern: Vec<u8> =
            (0..length).map(|at| (at.wrapping_mul(seed | 1) >> 7) as u8).collect();
        self.near.memory.write_at(0, &pattern).unwrap();
        self.far.memory.fill(0, MOST as usize, 0xee).unwrap();
        let receive = self.offer(&[(0, MOST, 5)]);
        let send = self.send(0, length, 5);
        assert_eq!(self.received(receive).sizes(), [length]);
        self.sent(send);
        let mut bytes = vec![0; MOST as usize];
        self.far.memory.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..length as usize] == pattern, "{length} bytes");
        assert!(bytes[length as usize..].iter().all(|byte| *byte == 0xee), "{length} bytes");
    }

    /// Whether all queue pairs are in service.
    fn is_whole(&self) -> bool {
        let in_service = |state: Option<(RailState, u16)>| {
            state.is_some_and(|(state, _)| state == RailState::InService)
        };
        [&self.near, &self.far].iter().all(|side| {
            let state = |end, at| side.endpoint.queue_pair_state(end, at);
            (0..2).all(|at| {
                in_service(state(End::Sender, at)) && in_service(state(End::Receiver, at))
            })
        })
    }
}

/// Endpoints choose how requests are posted, so once is enough.
pub(super) fn is_second_time(rails: &Rails) -> bool {
    rails.post_mode() != PostMode::Classic
}

pub(super) fn messages_of_all_sizes_arrive_over_two_rails(rails: &Rails) {
    if is_second_time(rails) {
        return;
    }
    for builder in [P2pBuilder::new(), P2pBuilder::new().separate_signal(1)] {
        let mut ends = Ends::new(&builder.flushes(true));
        for length in [0, 1, 8, 127, 128, 129, 65_536, 65_537, 300_001, MOST] {
            ends.exchange(length, length);
        }
        let buffers: Vec<_> = (0..8).map(|at| (at << 10, 1024, at as u32)).collect();
        let receive = ends.offer(&buffers);
        let sends: Vec<_> = (0..8).rev().map(|at| ends.send(0, 100 * at, at)).collect();
        let received = ends.received(receive);
        assert_eq!(received.sizes(), [0, 100, 200, 300, 400, 500, 600, 700]);
        sends.into_iter().for_each(|send| ends.sent(send));
        let flush = ends.until(|ends| ends.far.endpoint.flush(&received));
        ends.until(|ends| match ends.far.endpoint.test_flush(&flush)? {
            true => Ok(()),
            false => Err(NotNow::NoCredits.into()),
        });
    }
}

/// Each of the two links goes down while a message is under way, and comes up again.
pub(super) fn messages_survive_a_link_that_goes_down_and_up(rails: &Rails) {
    if is_second_time(rails) {
        return;
    }
    let mut ends = Ends::new(&P2pBuilder::new().rail_failure(RailFailure::Reroute));
    for number in [1, 0] {
        ends.exchange(MOST, 3);
        let receive = ends.offer(&[(0, MOST, 1)]);
        let send = ends.send(0, MOST, 1);
        let begin = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| rails.set_link(number, false));
            assert_eq!(ends.received(receive).sizes(), [MOST]);
            ends.sent(send);
            while ends.is_whole() {
                ends.poll();
                assert!(begin.elapsed() < LIMIT);
            }
            for length in [0, 100, 300_000] {
                ends.exchange(length, 5);
            }
        });
        let without = begin.elapsed();
        rails.set_link(number, true);
        let up = Instant::now();
        while !ends.is_whole() {
            ends.poll();
            assert!(up.elapsed() < LIMIT + Duration::from_secs(10));
        }
        println!(
            "  link {number} down: messages over the other one within {without:.1?}; whole {:.1?} after it was up",
            up.elapsed()
        );
        ends.exchange(MOST, 7);
    }
}
