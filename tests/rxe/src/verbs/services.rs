//! Services beside RC, extended completion queues, and a send queue that is drained.

use crate::fixture::{PORT, Rails};
use crate::memory::Buffer;
use polyrail_core::hardware::{ReceiveQueue as _, RecvBatch as _, SendBatch as _};
use polyrail_core::verbs::{
    AccessFlags, Completion, DeviceKeys, Imm, Opcode, RecvWr, SendFlags, SendRequest, SendWr, Sge,
    WcFlags, WcOpcode, WcStatus,
};
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{Config, RailId, Scheme, VirtualQp};
use polyrail_ffi::{
    AsyncEvent, ChangeInit, ChangeRts, ChangeSqd, CompletionQueue, CqInit, DatagramToInit,
    DatagramToRtr, ExtendedCompletionQueue, Mtu, QpCap, QpInit, QueuePair, Resume, Route, Service,
    Timestamps, ToInit, ToSqd, Uc, Ud, UnreliableToRtr, UnreliableToRts,
};
use polyrail_tests::behaviours::pair::{pattern, poll, recv};
use polyrail_tests::behaviours::{
    ALL_ACCESS, End, Fixture, LIMIT, Memory, Pair, QUIET, Retries, Side,
};
use std::time::{Duration, Instant};

const CAP: QpCap = QpCap { max_send_sge: 3, max_recv_sge: 3, ..QpCap::new(16, 16, 64) };

/// Bytes that precede a received datagram: the global routing header.
const GRH_BYTES: usize = 40;

const QKEY: u32 = 0x1111_1111;

/// One end of a service, with a queue for all completions.
struct Plain<S: Service> {
    cq: CompletionQueue,
    qp: QueuePair<S>,
    memory: Buffer,
}

impl<S: Service> Plain<S> {
    fn new(rails: &Rails, end: End) -> Self {
        let cq = rails.create_cq(end, 0, 64);
        let init = QpInit { post_mode: rails.post_mode(), ..QpInit::new(&cq, CAP) };
        let qp = rails.domain(end, 0).create_qp(&init).unwrap();
        Self { qp, cq, memory: rails.memory(end, 65536, ALL_ACCESS) }
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        self.memory.local(offset, length).sge(self.memory.lkey(0))
    }

    fn wait(&mut self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = poll(&mut self.cq).pop() {
                return completion;
            }
            assert!(start.elapsed() < LIMIT, "no completion");
        }
    }
}

fn datagrams(rails: &Rails, end: End) -> Plain<Ud> {
    let side = Plain::<Ud>::new(rails, end);
    side.qp.modify(&DatagramToInit { port_num: PORT, pkey_index: 0, qkey: QKEY }).unwrap();
    side.qp.modify(&DatagramToRtr).unwrap();
    side.qp.modify(&UnreliableToRts { sq_psn: 1 }).unwrap();
    side
}

pub(super) fn datagrams_go_where_their_address_handle_points(rails: &Rails) {
    let mut near = datagrams(rails, End::Near);
    let mut far = datagrams(rails, End::Far);
    let handle = rails.domain(End::Near, 0).create_ah(&rails.path_from(End::Near, 0)).unwrap();
    near.memory.write(0, b"datagram");
    let into = far.sge(0, 100);
    recv(&mut far.qp, 11, into).unwrap();
    let request = SendRequest {
        wr_id: 7,
        opcode: Opcode::SendWithImm,
        flags: SendFlags::SIGNALED,
        imm: Imm::from_number(3),
        sge: near.sge(0, 8),
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
    };
    let to = far.qp.qp_num();
    let send = |near: &mut Plain<Ud>, qkey| {
        let mut batch = near.qp.start_datagrams();
        batch.add(&request, &handle, to, qkey);
        batch.commit().unwrap();
        assert_eq!(near.wait().status, WcStatus::SUCCESS);
    };
    send(&mut near, QKEY + 1);
    std::thread::sleep(QUIET);
    assert_eq!(poll(&mut far.cq), [], "datagrams with another Q_Key are dropped");
    send(&mut near, QKEY);
    let arrived = far.wait();
    assert_eq!(
        (arrived.wr_id, arrived.status, arrived.opcode),
        (11, WcStatus::SUCCESS, WcOpcode::RECV)
    );
    assert_eq!((arrived.byte_len, arrived.src_qp), (8 + GRH_BYTES as u32, near.qp.qp_num()));
    assert!(arrived.wc_flags.contains(WcFlags::GRH));
    assert_eq!(arrived.imm(), Some(Imm::from_number(3)));
    assert_eq!(far.memory.read(GRH_BYTES, 8), b"datagram");
    handle.close().unwrap();
}

/// Both ends of an unreliable connection.
fn unreliable(rails: &Rails) -> [Plain<Uc>; 2] {
    let [near, far] = [End::Near, End::Far].map(|end| Plain::<Uc>::new(rails, end));
    let connect = |qp: &QueuePair<Uc>, end, dest_qp_num| {
        qp.modify(&ToInit { port_num: PORT, pkey_index: 0, access: ALL_ACCESS }).unwrap();
        let path = rails.path_from(end, 0);
        let path_mtu = Mtu::Mtu1024;
        qp.modify(&UnreliableToRtr { path, path_mtu, dest_qp_num, rq_psn: 9 }).unwrap();
        qp.modify(&UnreliableToRts { sq_psn: 9 }).unwrap();
    };
    connect(&near.qp, End::Near, far.qp.qp_num());
    connect(&far.qp, End::Far, near.qp.qp_num());
    [near, far]
}

pub(super) fn lists_of_buffers_are_gathered_and_scattered(rails: &Rails) {
    let [mut near, mut far] = unreliable(rails);
    for (flags, length) in [(SendFlags::SIGNALED, 2_000), (SendFlags::INLINE, 20)] {
        let bytes = pattern(3 * length, length as u64);
        // Neither in order nor adjacent, and split elsewhere at the other end.
        let places = [4096, 0, 8192];
        let lengths = [length / 2, 2 * length, length / 2];
        let mut parts = Vec::new();
        for (part, place) in bytes.chunks(length).zip(places) {
            near.memory.write(place, part);
            parts.push(near.sge(place, length as u32));
        }
        let into: Vec<_> = places
            .iter()
            .zip(lengths)
            .map(|(&place, length)| far.sge(place, length as u32))
            .collect();
        let mut batch = far.qp.start_recv();
        batch.add_list(11, &into);
        batch.commit().unwrap();
        let request = SendRequest {
            wr_id: 7,
            opcode: Opcode::Send,
            flags: flags | SendFlags::SIGNALED,
            imm: Imm::from_number(0),
            sge: Sge::EMPTY,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
        };
        let mut batch = near.qp.start_send();
        batch.add_list(&request, &parts);
        batch.commit().unwrap();
        assert_eq!(near.wait().status, WcStatus::SUCCESS);
        let arrived = far.wait();
        assert_eq!((arrived.wr_id, arrived.byte_len), (11, 3 * length as u32));
        let read =
            places.iter().zip(lengths).map(|(&place, length)| far.memory.read(place, length));
        assert_eq!(read.collect::<Vec<_>>().concat(), bytes);
    }
}

pub(super) fn attributes_change_within_a_state(rails: &Rails) {
    let cq = rails.create_cq(End::Near, 0, 16);
    let init = QpInit { post_mode: rails.post_mode(), ..QpInit::new(&cq, CAP) };
    let fresh: QueuePair = rails.domain(End::Near, 0).create_qp(&init).unwrap();
    let access = AccessFlags::empty();
    fresh.modify(&ToInit { port_num: PORT, pkey_index: 0, access }).unwrap();
    let access = Some(AccessFlags::REMOTE_READ);
    fresh.modify(&ChangeInit { access, ..ChangeInit::default() }).unwrap();
    assert_eq!(fresh.query().map(|set| set.access), Ok(AccessFlags::REMOTE_READ));

    let pair = Pair::new(rails);
    let qp = &pair.near.qp;
    qp.modify(&ChangeRts { access, min_rnr_timer: Some(3) }).unwrap();
    let set = qp.query().unwrap();
    assert_eq!((set.access, set.min_rnr_timer), (AccessFlags::REMOTE_READ, 3));
}

pub(super) fn an_unreliable_connection_carries_writes(rails: &Rails) {
    let [mut near, mut far] = unreliable(rails);
    near.memory.write(0, &pattern(9_000, 8));
    recv(&mut far.qp, 11, Sge::EMPTY).unwrap();
    let request = SendRequest {
        wr_id: 7,
        opcode: Opcode::RdmaWriteWithImm,
        flags: SendFlags::SIGNALED,
        imm: Imm::from_number(5),
        sge: near.sge(0, 9_000),
        remote_addr: far.memory.addr(),
        rkey: far.memory.rkey(0),
        compare_add: 0,
        swap: 0,
    };
    let mut batch = near.qp.start_send();
    batch.add(&request);
    batch.commit().unwrap();
    assert_eq!(near.wait().status, WcStatus::SUCCESS);
    let arrived = far.wait();
    assert_eq!((arrived.wr_id, arrived.byte_len), (11, 9_000));
    assert_eq!(far.memory.read(0, 9_000), pattern(9_000, 8));
}

fn extended_cq(rails: &Rails, end: End, rail: usize, cqe: u32) -> ExtendedCompletionQueue {
    let init = CqInit::new(cqe);
    rails.context(end, rail).create_extended_cq(&init, Timestamps::empty()).unwrap()
}

pub(super) fn an_extended_completion_queue_reports_what_a_classic_one_does(rails: &Rails) {
    let near = Side::new(rails, End::Near, 0, None);
    let mut cq = extended_cq(rails, End::Far, 0, 64);
    let init = QpInit { post_mode: rails.post_mode(), ..QpInit::new(&cq, CAP) };
    let qp: QueuePair = rails.domain(End::Far, 0).create_qp(&init).unwrap();
    qp.modify(&ToInit { port_num: PORT, pkey_index: 0, access: ALL_ACCESS }).unwrap();
    rails.connect(0, &near.qp, &qp, Retries::MANY);
    let far = Side {
        rail: 0,
        cq: rails.create_cq(End::Far, 0, 1),
        qp,
        memory: rails.memory(End::Far, 4096, ALL_ACCESS),
    };
    let mut pair = Pair { near, far };
    assert_eq!(cq.poll_next(), Ok(None));
    for wr_id in [11, 12, 13] {
        let into = pair.far.sge(0, 100);
        pair.far.recv(wr_id, into).unwrap();
    }
    let with_imm = pair.request(1, Opcode::SendWithImm, 0, 60);
    pair.near.post(&[with_imm, pair.request(2, Opcode::Send, 0, 70)]).unwrap();
    pair.near.completions(2);
    let first = cq.poll_next().unwrap().expect("two came");
    let wc = first.completion;
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (11, WcStatus::SUCCESS, WcOpcode::RECV));
    assert_eq!((wc.byte_len, wc.qp_num), (60, pair.far.qp.qp_num()));
    assert_eq!(wc.imm(), Some(with_imm.imm));
    assert_eq!((first.device_ticks, first.wall_clock_ns), (None, None));
    let rest = poll(&mut cq);
    assert_eq!(rest.iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>(), [(12, 70)]);
    assert_eq!(rest[0].imm(), None);
    rails.fail(&pair.far.qp);
    let start = Instant::now();
    let flushed = loop {
        if let Some(flushed) = poll(&mut cq).pop() {
            break flushed;
        }
        assert!(start.elapsed() < LIMIT, "the third receive is not flushed");
    };
    assert_eq!((flushed.wr_id, flushed.status), (13, WcStatus::WR_FLUSH_ERR));
    assert_eq!(flushed.qp_num, pair.far.qp.qp_num());
}

type Engine = VirtualQp<QueuePair, 2, 16, 16>;
type EngineCq = VirtualCq<ExtendedCompletionQueue, 2, 16>;

fn engine(rails: &Rails, end: End) -> (Box<Engine>, EngineCq) {
    let cqs = [0, 1].map(|rail| extended_cq(rails, end, rail, Engine::cq_entries()));
    let qp = |rail: usize| {
        let init = QpInit { post_mode: rails.post_mode(), ..QpInit::new(&cqs[rail], CAP) };
        let qp: QueuePair = rails.domain(end, rail).create_qp(&init).unwrap();
        qp.modify(&ToInit { port_num: PORT, pkey_index: 0, access: ALL_ACCESS }).unwrap();
        qp
    };
    let config = Config { scheme: Scheme::Dqplb, max_msg_size: 4096, ..Config::default() };
    let mut virtual_qp = Box::new(VirtualQp::new(config, [qp(0), qp(1)], None).unwrap());
    virtual_qp.prepare_receives().unwrap();
    let mut cq = VirtualCq::new(cqs).unwrap();
    cq.attach(0, &*virtual_qp).unwrap();
    (virtual_qp, cq)
}

pub(super) fn the_engine_runs_on_extended_completion_queues(rails: &Rails) {
    let (mut near, mut near_cq) = engine(rails, End::Near);
    let (mut far, mut far_cq) = engine(rails, End::Far);
    for rail in 0..2 {
        let id = RailId::Data(rail as u8);
        let a = near.physical(id).unwrap();
        let b = far.physical(id).unwrap();
        rails.connect(rail, a, b, Retries::MANY);
    }
    let from = rails.memory(End::Near, 100_000, ALL_ACCESS);
    let to = rails.memory(End::Far, 100_000, ALL_ACCESS);
    from.write(0, &pattern(100_000, 6));
    let keys: Vec<_> = [0, 1]
        .map(|rail| {
            let device = rails.context(End::Near, rail).id();
            DeviceKeys { device, lkey: from.lkey(rail), rkey: to.rkey(rail) }
        })
        .into();
    far.post_recv(&RecvWr::notification(11)).unwrap();
    let wr = SendWr::write_with_imm(7, from.local(0, 100_000), to.addr(), 0, &keys);
    near.post_send(&wr).unwrap();
    let mut seen = [None; 2];
    let start = Instant::now();
    while seen.contains(&None) {
        let polled = near_cq.poll(&mut *near, 16, |event| seen[0] = event.completion());
        assert_eq!(polled.error, None);
        let polled = far_cq.poll(&mut *far, 16, |event| seen[1] = event.completion());
        assert_eq!(polled.error, None);
        assert!(start.elapsed() < LIMIT, "{seen:?}");
    }
    let ends = seen.map(|wc| wc.map(|wc| (wc.wr_id, wc.status)));
    assert_eq!(ends, [Some((7, WcStatus::SUCCESS)), Some((11, WcStatus::SUCCESS))]);
    assert_eq!(to.read(0, 100_000), pattern(100_000, 6));
}

pub(super) fn a_drained_send_queue_raises_an_event_and_goes_on(rails: &Rails) {
    let mut pair = Pair::new(rails);
    let context = rails.context(End::Near, 0);
    while context.next_event().unwrap().is_some() {}
    pair.near.qp.modify(&ToSqd { notify: true }).unwrap();
    let start = Instant::now();
    let drained = AsyncEvent::SqDrained { qp_num: pair.near.qp.qp_num() };
    while context.next_event().unwrap() != Some(drained) {
        assert!(start.elapsed() < LIMIT, "no {drained:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    pair.near.post(&[pair.write(1, 0, 8)]).unwrap();
    pair.near.stays_quiet();
    let mut path = rails.path_from(End::Near, 0);
    let Route::Roce(grh) = &mut path.route else { panic!("{path:?}") };
    grh.traffic_class = 4;
    let change = ChangeSqd { path: Some(path), timeout: Some(13), ..ChangeSqd::default() };
    pair.near.qp.modify(&change).unwrap();
    let set = pair.near.qp.query().unwrap();
    assert_eq!((set.path, set.timeout), (Some(path), 13));
    pair.near.qp.modify(&Resume).unwrap();
    // rxe checks its queue again at the next post only.
    pair.near.post(&[pair.write(2, 0, 8)]).unwrap();
    assert_eq!(pair.near.ends(2), [(1, WcStatus::SUCCESS), (2, WcStatus::SUCCESS)]);
}
