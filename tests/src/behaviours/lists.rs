//! Requests with lists of buffers, and several requests with one call, through the engine.

use super::engine::{Engines, Side};
use super::pair::pattern;
use super::{Fixture, Memory, Retries};
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::{
    DeviceKeys, LocalBuffer, LocalPart, RecvWr, SendWr, WcOpcode, WcStatus,
};
use polyrail_core::virtual_qp::{RailId, Scheme};

/// Buffers as offsets and lengths: neither in order nor adjacent, with one of a byte and one of
/// none.
const FROM: [(usize, u32); 4] = [(40_000, 9_000), (100, 1), (30_000, 0), (60_000, 20_000)];
/// Others for as many bytes.
const INTO: [(usize, u32); 3] = [(500_000, 8_193), (700_000, 808), (600_000, 20_000)];
/// All of them.
const BYTES: u32 = 29_001;
/// Where they are in one piece at the other end.
const WHOLE: usize = 200_000;

fn list<'k, F: Fixture>(
    memory: &F::Memory,
    keys: &'k [DeviceKeys],
    places: &[(usize, u32)],
) -> Vec<LocalPart<'k>> {
    let part = |&(at, length): &(usize, u32)| {
        let local = if length == 0 { LocalBuffer::EMPTY } else { memory.local(at, length) };
        LocalPart { local, keys }
    };
    places.iter().map(part).collect()
}

impl<F: Fixture> Side<F> {
    /// Posts a receive with a list.
    fn post_recv_list(&mut self, wr_id: u64, places: &[(usize, u32)]) {
        let Self { qp, memory, keys, .. } = self;
        qp.post_recv_list(wr_id, &list::<F>(memory, keys, places)).expect("room");
    }

    /// Posts a request with a list.
    fn post_list(&mut self, wr: &SendWr<'_>, places: &[(usize, u32)]) {
        let Self { qp, memory, keys, .. } = self;
        qp.post_list(wr, &list::<F>(memory, keys, places)).expect("room");
    }

    fn read(&self, places: &[(usize, u32)]) -> Vec<u8> {
        let read = |&(at, length): &(usize, u32)| self.memory.read(at, length as usize);
        places.iter().flat_map(read).collect()
    }

    fn write(&self, places: &[(usize, u32)], mut bytes: &[u8]) {
        for &(at, length) in places {
            let (first, behind) = bytes.split_at(length as usize);
            self.memory.write(at, first);
            bytes = behind;
        }
    }
}

/// Whether requests that are not cut can have the lists; prints a line if not. A driver may
/// miscount lists, and then its queue pairs have requests of one buffer only.
fn takes_lists<F: Fixture>(side: &Side<F>, what: &str) -> bool {
    let most = side.qp.rails().map(|qp| qp.limits().max_send_sge).min().expect("rails");
    let takes = most as usize >= FROM.len() - 1;
    if !takes {
        println!("skipped: {what} with lists, for a request has {most} buffer at most here");
    }
    takes
}

fn gathered_and_scattered<F: Fixture>(fixture: &F, rails: usize, scheme: Scheme) {
    let Engines { mut near, mut far } = Engines::new(fixture, rails, scheme, Retries::MANY);
    if rails == 1 && !takes_lists(&near, "writes and reads over one rail") {
        return;
    }
    let data = pattern(BYTES as usize, 5);
    near.write(&FROM, &data);
    let keys = near.keys.clone();
    let to = far.memory.addr() + WHOLE as u64;
    far.qp.post_recv(&RecvWr::notification(1)).expect("room");
    near.post_list(&SendWr::write_with_imm(7, LocalBuffer::EMPTY, to, 9, &keys), &FROM);
    let mut ends = Engines { near, far };
    let [sent, received] = ends.reports(1, 1);
    assert_eq!((sent[0].wr_id, sent[0].status), (7, WcStatus::SUCCESS));
    // Over one rail the driver's, and verbs leaves it undefined for a WRITE.
    assert!(rails == 1 || sent[0].byte_len == BYTES, "{sent:?}");
    assert_eq!((received[0].wr_id, received[0].opcode), (1, WcOpcode::RECV_RDMA_WITH_IMM));
    assert_eq!(ends.far.memory.read(WHOLE, BYTES as usize), data);

    ends.near.post_list(&SendWr::read(8, LocalBuffer::EMPTY, to, &keys), &INTO);
    let [read, _] = ends.reports(1, 0);
    assert_eq!((read[0].wr_id, read[0].status), (8, WcStatus::SUCCESS));
    assert_eq!(ends.near.read(&INTO), data);

    if (rails > 1 && scheme == Scheme::Dqplb) || !takes_lists(&ends.near, "sends") {
        return;
    }
    ends.far.post_recv_list(2, &INTO);
    ends.near.post_list(&SendWr::send(10, LocalBuffer::EMPTY, &[]), &FROM);
    let [sent, received] = ends.reports(1, 1);
    assert_eq!((sent[0].wr_id, sent[0].status), (10, WcStatus::SUCCESS));
    assert_eq!((received[0].wr_id, received[0].byte_len), (2, BYTES));
    assert_eq!(ends.far.read(&INTO), data);
}

pub(super) fn lists_are_gathered_and_scattered_over_two_rails<F: Fixture>(fixture: &F) {
    gathered_and_scattered(fixture, 2, Scheme::Spray);
    gathered_and_scattered(fixture, 2, Scheme::Dqplb);
}

pub(super) fn lists_are_gathered_and_scattered_over_one_rail<F: Fixture>(fixture: &F) {
    gathered_and_scattered(fixture, 1, Scheme::Spray);
}

pub(super) fn a_batch_of_requests_rings_each_rail_once<F: Fixture>(fixture: &F) {
    const LENGTH: u32 = 10_000;
    let mut ends = Engines::new(fixture, 2, Scheme::Spray, Retries::MANY);
    let data = pattern(8 * LENGTH as usize, 6);
    ends.near.memory.write(0, &data);
    let keys = ends.near.keys.clone();
    let write = |at: usize| {
        let offset = at * LENGTH as usize;
        let local = ends.near.memory.local(offset, LENGTH);
        SendWr::write(at as u64, local, ends.far.memory.addr() + offset as u64, &keys)
    };
    let wrs: Vec<_> = (0..8).map(write).collect();
    ends.near.qp.post_many(&wrs).expect("room");
    for rail in [0, 1] {
        let counters = ends.near.qp.counters(RailId::Data(rail)).expect("a rail");
        assert_eq!((counters.doorbells, counters.send_requests), (1, 8));
    }
    let [sent, _] = ends.reports(8, 0);
    let ids: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(ids, (0..8).map(|id| (id, WcStatus::SUCCESS)).collect::<Vec<_>>());
    assert_eq!(ends.far.memory.read(0, data.len()), data);
}
