//! Posting to a driver that refuses, or stops half-way.

use crate::fake::{Posted, calls_of, fail, with};
use crate::fixture::{open, path};
use polyrail_core::hardware::{
    CommitError, QueuePair as _, ReceiveQueue as _, RecvBatch as _, Refusal, SendBatch as _,
};
use polyrail_core::verbs::{
    AccessFlags, DeviceKeys, Imm, LocalBuffer, LocalPart, Opcode, RecvRequest, SendFlags,
    SendRequest, SendWr, Sge,
};
use polyrail_core::virtual_qp::{Config, VirtualQp};
use polyrail_ffi::{
    CompletionQueue, Connected, DatagramToInit, DatagramToRtr, Mtu, Path, PostMode,
    ProtectionDomain, QpCap, QpInit, QueuePair, Rc, SrqInit, ToInit, ToReset, ToRtr, ToRts, Uc, Ud,
    UnreliableToRts, WindowRange,
};

const CAP: QpCap = QpCap::new(4, 4, 64);

fn in_init<S: Connected>(post_mode: PostMode) -> QueuePair<S> {
    with_cap(post_mode, CAP)
}

fn with_cap<S: Connected>(post_mode: PostMode, cap: QpCap) -> QueuePair<S> {
    let (_, pd, cq) = open();
    let init = QpInit { post_mode, ..QpInit::new(&cq, cap) };
    let qp = pd.create_qp(&init).unwrap();
    let to_init = ToInit { port_num: 1, pkey_index: 0, access: AccessFlags::empty() };
    qp.modify(&to_init).unwrap();
    qp
}

fn connected(post_mode: PostMode) -> QueuePair<Rc> {
    connect(in_init(post_mode))
}

fn connect(qp: QueuePair<Rc>) -> QueuePair<Rc> {
    qp.modify(&ToRtr {
        path: path(),
        path_mtu: Mtu::Mtu4096,
        dest_qp_num: 1,
        rq_psn: 2,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    })
    .unwrap();
    let to_rts = ToRts { sq_psn: 7, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 };
    qp.modify(&to_rts).unwrap();
    qp
}

fn sge(length: u32) -> Sge {
    // SAFETY: the fake device never touches memory.
    unsafe { LocalBuffer::new(0x1000, length) }.sge(5)
}

fn request(wr_id: u64, opcode: Opcode, length: u32) -> SendRequest {
    SendRequest {
        wr_id,
        opcode,
        flags: SendFlags::SIGNALED,
        imm: Imm::from_number(0x0102_0304),
        sge: sge(length),
        remote_addr: 0x9000,
        rkey: 6,
        compare_add: 0,
        swap: 0,
    }
}

fn post<S: Connected>(
    qp: &mut QueuePair<S>,
    requests: impl IntoIterator<Item = SendRequest>,
) -> Result<(), CommitError> {
    let mut batch = qp.start_send();
    requests.into_iter().for_each(|request| batch.add(&request));
    batch.commit()
}

fn writes(wr_ids: std::ops::Range<u64>) -> impl Iterator<Item = SendRequest> {
    wr_ids.map(|wr_id| request(wr_id, Opcode::RdmaWrite, 100))
}

fn posted() -> Vec<Posted> {
    with(|state| std::mem::take(&mut state.posted))
}

fn ids() -> Vec<u64> {
    posted().iter().map(|request| request.wr_id).collect()
}

fn buffers() -> Vec<Vec<(u64, u32, u32)>> {
    with(|state| std::mem::take(&mut state.buffers))
}

const BOTH: [PostMode; 2] = [PostMode::Classic, PostMode::Extended];

#[test]
fn both_ways_hand_over_the_same_requests() {
    let imm = u32::from_ne_bytes([1, 2, 3, 4]);
    let remote_addr = 0x9000;
    let rkey = 6;
    let operands = (7, 8);
    let seen = Posted { flags: 2, length: Some(8), ..Posted::default() };
    let table = [
        (Opcode::RdmaWrite, Posted { remote_addr, rkey, ..seen }),
        (Opcode::RdmaWriteWithImm, Posted { remote_addr, rkey, imm, ..seen }),
        (Opcode::Send, seen),
        (Opcode::SendWithImm, Posted { imm, ..seen }),
        (Opcode::RdmaRead, Posted { remote_addr, rkey, ..seen }),
        (Opcode::CompareSwap, Posted { remote_addr, rkey, operands, ..seen }),
        (Opcode::FetchAdd, Posted { remote_addr, rkey, operands: (7, 0), ..seen }),
        (Opcode::LocalInv, Posted { imm: rkey, length: None, ..seen }),
        (Opcode::SendWithInv, Posted { imm: rkey, ..seen }),
    ];
    for mode in BOTH {
        for (opcode, expected) in table {
            let wr_id = opcode as u64 + 20;
            let length = expected.length.unwrap_or(0);
            let swap = if opcode == Opcode::CompareSwap { 8 } else { 0 };
            let asked = SendRequest { compare_add: 7, swap, ..request(wr_id, opcode, length) };
            post(&mut connected(mode), [asked]).unwrap();
            let expected = Posted { wr_id, opcode: opcode as u32, ..expected };
            assert_eq!(posted(), [expected], "{mode:?}");
        }
    }
}

#[test]
fn both_ways_hand_over_flags_and_buffers() {
    for mode in BOTH {
        for flags in SendFlags::all().iter() {
            let mut qp = connected(mode);
            let write = SendRequest { flags, ..request(1, Opcode::RdmaWrite, 64) };
            let empty = SendRequest { sge: Sge::EMPTY, wr_id: 2, ..write };
            post(&mut qp, [write, empty]).unwrap();
            let seen: Vec<_> = posted().iter().map(|seen| (seen.flags, seen.length)).collect();
            let bits = flags.bits().into();
            assert_eq!(seen, [(bits, Some(64)), (bits, None)], "{mode:?} {flags:?}");
        }
    }
}

/// A buffer of so many bytes, at an address and with a key of its own.
fn part(length: u32) -> Sge {
    // SAFETY: the fake device never touches memory.
    unsafe { LocalBuffer::new(u64::from(length) << 12, length) }.sge(length + 1)
}

/// Three buffers, one of which is empty, and as a driver sees them.
fn list() -> ([Sge; 4], Vec<(u64, u32, u32)>) {
    let seen = [7, 8, 9].map(|length| (u64::from(length) << 12, length, length + 1));
    ([part(7), part(8), Sge::EMPTY, part(9)], seen.into())
}

#[test]
fn lists_of_buffers_are_handed_over_in_order() {
    let cap = QpCap { max_send_sge: 3, max_recv_sge: 3, ..CAP };
    let (parts, expected) = list();
    for mode in BOTH {
        let mut qp = connect(with_cap(mode, cap));
        let asked = with(|state| state.cap).unwrap();
        assert_eq!((asked.max_send_sge, asked.max_recv_sge), (3, 3));
        let write = request(1, Opcode::RdmaWrite, 100);
        let mut batch = qp.start_send();
        batch.add_list(&write, &parts);
        batch.add_list(&write, &[]);
        batch.add_list(&write, &[part(5)]);
        batch.commit().unwrap();
        assert_eq!(buffers(), [expected.clone(), vec![], vec![(5 << 12, 5, 6)]], "{mode:?}");
        posted();

        let mut batch = qp.start_recv();
        batch.add_list(1, &parts);
        batch.add(&RecvRequest { wr_id: 2, sge: part(5) });
        batch.commit().unwrap();
        assert_eq!(buffers(), [expected.clone(), vec![(5 << 12, 5, 6)]]);
        assert_eq!(ids(), [1, 2]);
    }
}

/// Four rails of the engine, each of which takes three buffers with a request.
fn four_rails(mode: PostMode) -> (VirtualQp<QueuePair<Rc>, 4, 16, 64>, Vec<DeviceKeys>) {
    let cap = QpCap { max_send_sge: 3, ..QpCap::new(16, 16, 64) };
    let rails: Vec<_> = (0..4).map(|_| connect(with_cap::<Rc>(mode, cap))).collect();
    let keys = |qp: &QueuePair<Rc>| DeviceKeys { device: qp.device(), lkey: 5, rkey: 6 };
    let keys = rails.iter().map(keys).collect();
    let config = Config { max_msg_size: 128, ..Config::default() };
    (VirtualQp::new(config, rails, None).unwrap(), keys)
}

#[test]
fn a_batch_of_requests_is_one_call_for_each_rail() {
    for (mode, call) in
        [(PostMode::Classic, "ibv_post_send"), (PostMode::Extended, "ibv_wr_complete")]
    {
        let (mut qp, keys) = four_rails(mode);
        let write = |wr_id| {
            // SAFETY: the fake device never touches memory.
            let local = unsafe { LocalBuffer::new(0x1000, 100 + 100 * (wr_id as u32 % 2)) };
            SendWr::write(wr_id, local, 0x9000, &keys)
        };
        let before = calls_of(call);
        qp.post_many(&(0..16).map(write).collect::<Vec<_>>()).unwrap();
        assert_eq!((calls_of(call) - before, posted().len()), (4, 24), "{mode:?}");
    }
}

#[test]
fn a_fragment_that_passes_borders_of_buffers_is_one_request_with_a_list() {
    for mode in BOTH {
        let (mut qp, keys) = four_rails(mode);
        let part = |length: u32| {
            // SAFETY: the fake device never touches memory.
            let local = unsafe { LocalBuffer::new(u64::from(length) << 12, length) };
            LocalPart { local, keys: &keys }
        };
        let wr = SendWr::write(1, LocalBuffer::EMPTY, 0x9000, &keys);
        qp.post_list(&wr, &[part(100), part(0), part(1), part(60), part(2)]).unwrap();
        let first = vec![(100 << 12, 100, 5), (1 << 12, 1, 5), (60 << 12, 27, 5)];
        let second = vec![((60 << 12) + 27, 33, 5), (2 << 12, 2, 5)];
        assert_eq!(buffers(), [first, second], "{mode:?}");
        assert_eq!(posted().len(), 2);
    }
}

/// Its library adds up the length of the first buffer, as many times as there are.
#[test]
fn rxe_gets_no_lists_that_its_library_miscounts() {
    with(|state| state.vendor_id = 0x00ff_ffff);
    let cap = QpCap { max_send_sge: 3, ..CAP };
    let refusal = Refusal::Driver(libc::EOPNOTSUPP);
    let write = request(1, Opcode::RdmaWrite, 0);
    for (mode, max_sge, accepted) in [
        (PostMode::Extended, 1, Err(CommitError { accepted: 0, refusal })),
        (PostMode::Classic, 3, Ok(())),
        (PostMode::Auto, 3, Ok(())),
    ] {
        let mut qp = connect(with_cap(mode, cap));
        assert_eq!(qp.limits().max_send_sge, max_sge, "{mode:?}");
        let mut batch = qp.start_send();
        batch.add_list(&write, &[part(7), Sge::EMPTY, part(7)]);
        batch.commit().unwrap();
        let mut batch = qp.start_send();
        batch.add_list(&write, &[part(7), part(8)]);
        assert_eq!(batch.commit(), accepted, "{mode:?}");
    }
    let before = calls_of("ibv_wr_complete");
    post(&mut connected(PostMode::Auto), writes(0..1)).unwrap();
    assert_eq!(
        calls_of("ibv_wr_complete"),
        before + 1,
        "with one buffer there is nothing to miscount"
    );
}

#[test]
fn inline_lists_arrive_whole() {
    let cap = QpCap { max_send_sge: 3, ..CAP };
    for mode in BOTH {
        let mut qp = connect(with_cap(mode, cap));
        let parts = [&b"in"[..], b"", b"li", b"ne"].map(|bytes| {
            let addr = bytes.as_ptr().expose_provenance() as u64;
            // SAFETY: the bytes are constant.
            unsafe { LocalBuffer::new(addr, bytes.len() as u32) }.sge(0)
        });
        let inline = SendRequest { flags: SendFlags::INLINE, ..request(1, Opcode::Send, 0) };
        let mut batch = qp.start_send();
        batch.add_list(&inline, &parts);
        batch.commit().unwrap();
        let seen = buffers().concat().into_iter().flat_map(|(addr, length, _)| {
            let start = std::ptr::with_exposed_provenance::<u8>(addr as usize);
            // SAFETY: the constants, or what the queue pair joined them in.
            unsafe { std::slice::from_raw_parts(start, length as usize) }.to_vec()
        });
        assert_eq!(seen.collect::<Vec<_>>(), b"inline", "{mode:?}");
        assert_eq!(posted().len(), 1);
    }
}

#[test]
fn lists_that_are_too_long_never_reach_the_driver() {
    let cap = QpCap { max_send_sge: 2, max_recv_sge: 2, ..CAP };
    let einval = Refusal::Driver(libc::EINVAL);
    let fits = SendRequest { flags: SendFlags::INLINE, ..request(1, Opcode::RdmaWrite, 0) };
    for (mode, accepted) in [(PostMode::Classic, 1), (PostMode::Extended, 0)] {
        let too_many = (request(2, Opcode::RdmaWrite, 0), list().0.to_vec());
        let too_long = (SendRequest { wr_id: 2, ..fits }, vec![part(32), part(33)]);
        for (bad, parts) in [too_many, too_long] {
            let mut qp = connect(with_cap(mode, cap));
            let mut batch = qp.start_send();
            batch.add_list(
                &SendRequest { flags: SendFlags::empty(), ..fits },
                &[part(32), part(31)],
            );
            batch.add_list(&bad, &parts);
            assert_eq!(batch.commit(), Err(CommitError { accepted, refusal: einval }), "{mode:?}");
            assert_eq!(ids(), if accepted == 1 { vec![1] } else { vec![] });
        }
    }
    let mut qp = with_cap::<Rc>(PostMode::Classic, cap);
    let mut batch = qp.start_recv();
    batch.add_list(1, &list().0[..3]);
    batch.add_list(2, &list().0);
    assert_eq!(batch.commit(), Err(CommitError { accepted: 1, refusal: einval }));
    assert_eq!(ids(), [1]);
}

#[test]
fn a_shared_receive_queue_takes_lists_of_buffers() {
    let (_, pd, _) = open();
    let mut srq = pd.create_srq(&SrqInit { max_sge: 3, limit: 2, ..SrqInit::new(4) }).unwrap();
    let asked = with(|state| state.srq_attr).unwrap();
    assert_eq!((asked.max_wr, asked.max_sge, asked.srq_limit), (4, 3, 2));
    let (parts, expected) = list();
    let mut batch = srq.start_recv();
    batch.add_list(1, &parts);
    batch.add_list(2, &[parts, parts].concat());
    let refusal = Refusal::Driver(libc::EINVAL);
    assert_eq!(batch.commit(), Err(CommitError { accepted: 1, refusal }));
    assert_eq!((buffers(), ids()), (vec![expected], vec![1]));
}

#[test]
fn a_driver_that_stops_half_way_has_taken_what_comes_before_bad_wr() {
    let mut qp = connected(PostMode::Classic);
    for (taken, code, refusal) in [
        (2, libc::ENOMEM, Refusal::QueueFull),
        (1, -libc::ENOMEM, Refusal::QueueFull),
        (0, libc::EINVAL, Refusal::Driver(libc::EINVAL)),
    ] {
        with(|state| state.refusing = Some((taken, code)));
        let accepted = taken as u32;
        assert_eq!(post(&mut qp, writes(0..3)), Err(CommitError { accepted, refusal }));
        assert_eq!(ids(), (0..accepted.into()).collect::<Vec<_>>());
    }
    assert_eq!(post(&mut qp, writes(0..3)), Ok(()));
    assert_eq!(ids(), [0, 1, 2]);
}

#[test]
fn the_extended_way_takes_all_or_none() {
    let mut qp = connected(PostMode::Extended);
    for (code, refusal) in [
        (libc::ENOMEM, Refusal::QueueFull),
        (libc::ENOSPC, Refusal::QueueFull),
        (libc::EIO, Refusal::Driver(libc::EIO)),
    ] {
        with(|state| state.refusing = Some((0, code)));
        assert_eq!(post(&mut qp, writes(0..3)), Err(CommitError { accepted: 0, refusal }));
        assert_eq!(ids(), [0; 0]);
    }
    assert_eq!(post(&mut qp, writes(0..3)), Ok(()));
    assert_eq!(ids(), [0, 1, 2]);
    assert_eq!((calls_of("ibv_wr_start"), calls_of("ibv_wr_complete")), (4, 4));
}

#[test]
fn a_dropped_batch_posts_nothing_and_is_aborted() {
    for mode in BOTH {
        let mut qp = connected(mode);
        let mut batch = qp.start_send();
        writes(0..2).for_each(|request| batch.add(&request));
        drop(batch);
        assert_eq!(ids(), [0; 0]);
        post(&mut qp, writes(5..6)).unwrap();
        assert_eq!(ids(), [5], "{mode:?}");
    }
    assert_eq!((calls_of("ibv_wr_start"), calls_of("ibv_wr_abort")), (2, 1));
}

#[test]
fn a_forgotten_batch_posts_nothing_and_is_aborted_by_the_next() {
    for mode in BOTH {
        let mut qp = connected(mode);
        let mut batch = qp.start_send();
        writes(0..2).for_each(|request| batch.add(&request));
        std::mem::forget(batch);
        post(&mut qp, writes(5..6)).unwrap();
        assert_eq!(ids(), [5], "{mode:?}");
    }
    assert_eq!((calls_of("ibv_wr_start"), calls_of("ibv_wr_abort")), (2, 1));
}

#[test]
fn a_forgotten_batch_is_aborted_by_a_transition() {
    let mut qp = connected(PostMode::Extended);
    let mut batch = qp.start_send();
    writes(0..2).for_each(|request| batch.add(&request));
    std::mem::forget(batch);
    qp.modify(&ToReset).unwrap();
    let last: Vec<_> = with(|state| state.calls.iter().rev().take(2).copied().collect());
    assert_eq!(last, ["ibv_modify_qp", "ibv_wr_abort"], "the last first");
    drop(qp);
    assert_eq!((ids(), calls_of("ibv_wr_abort")), (vec![], 1));
}

#[test]
fn what_drivers_answer_in_their_own_ways_is_refused_here() {
    let inline = SendFlags::INLINE;
    let too_long = SendRequest { flags: inline, ..request(2, Opcode::RdmaWrite, 65) };
    let inline_read = SendRequest { flags: inline, ..request(2, Opcode::RdmaRead, 8) };
    let einval = Refusal::Driver(libc::EINVAL);
    for bad in [too_long, inline_read] {
        let chain = [request(1, Opcode::RdmaWrite, 8), bad, request(3, Opcode::RdmaWrite, 8)];
        let refused = |accepted| Err(CommitError { accepted, refusal: einval });
        assert_eq!(post(&mut connected(PostMode::Classic), chain), refused(1));
        assert_eq!(ids(), [1]);
        assert_eq!(post(&mut connected(PostMode::Extended), chain), refused(0));
        assert_eq!(ids(), [0; 0]);
    }
    assert_eq!(calls_of("ibv_wr_start"), calls_of("ibv_wr_abort"));
}

#[test]
fn an_operation_that_the_service_lacks_is_refused() {
    let refusal = Refusal::Driver(libc::EOPNOTSUPP);
    for mode in BOTH {
        let mut qp = in_init::<Uc>(mode);
        // Posting in INIT is refused before anything else; so the order of checks is visible.
        let early = post(&mut qp, [request(1, Opcode::RdmaRead, 8)]);
        let einval = Refusal::Driver(libc::EINVAL);
        assert_eq!(early, Err(CommitError { accepted: 0, refusal: einval }));
        let rtr = polyrail_ffi::UnreliableToRtr {
            path: Path::infiniband(1, 3),
            path_mtu: Mtu::Mtu256,
            dest_qp_num: 1,
            rq_psn: 0,
        };
        qp.modify(&rtr).unwrap();
        qp.modify(&polyrail_ffi::UnreliableToRts { sq_psn: 0 }).unwrap();
        let read = post(&mut qp, [request(1, Opcode::RdmaRead, 8)]);
        assert_eq!(read, Err(CommitError { accepted: 0, refusal }), "{mode:?}");
        assert_eq!(post(&mut qp, [request(2, Opcode::RdmaWrite, 8)]), Ok(()));
        assert_eq!(ids(), [2]);
    }
}

fn datagrams(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    post_mode: PostMode,
    cap: QpCap,
) -> QueuePair<Ud> {
    let qp = pd.create_qp(&QpInit { post_mode, ..QpInit::new(cq, cap) }).unwrap();
    qp.modify(&DatagramToInit { port_num: 1, pkey_index: 0, qkey: 9 }).unwrap();
    qp.modify(&DatagramToRtr).unwrap();
    qp.modify(&UnreliableToRts { sq_psn: 0 }).unwrap();
    qp
}

#[test]
fn datagrams_go_where_each_says() {
    let (_, pd, cq) = open();
    let to = pd.create_ah(&path()).unwrap();
    for mode in BOTH {
        let mut qp = datagrams(&pd, &cq, mode, CAP);
        let mut batch = qp.start_datagrams();
        for wr_id in 0..3 {
            batch.add(&request(wr_id, Opcode::Send, 8), &to, 20 + wr_id as u32, 30);
        }
        batch.commit().unwrap();
        let seen: Vec<_> = posted().iter().map(|request| (request.wr_id, request.to)).collect();
        let expected = [(0, Some((20, 30))), (1, Some((21, 30))), (2, Some((22, 30)))];
        assert_eq!(seen, expected, "{mode:?}");
        let two = QpCap { max_send_sge: 2, ..CAP };
        let mut qp = datagrams(&pd, &cq, mode, two);
        buffers();
        let mut batch = qp.start_datagrams();
        batch.add_list(&request(3, Opcode::Send, 8), &[part(7), part(8)], &to, 5, 6);
        batch.commit().unwrap();
        assert_eq!((posted()[0].to, buffers()[0].len()), (Some((5, 6)), 2), "{mode:?}");
    }
}

#[test]
fn address_handles_of_another_device_never_reach_the_driver() {
    let (_, pd, cq) = open();
    let (_, there, _) = open();
    let own = pd.create_ah(&path()).unwrap();
    let foreign = there.create_ah(&path()).unwrap();
    for (mode, accepted) in [(PostMode::Classic, 1), (PostMode::Extended, 0)] {
        let mut qp = datagrams(&pd, &cq, mode, CAP);
        let mut batch = qp.start_datagrams();
        for (wr_id, to) in [(0, &own), (1, &foreign), (2, &own)] {
            batch.add(&request(wr_id, Opcode::Send, 8), to, 5, 6);
        }
        let refusal = Refusal::Driver(libc::EINVAL);
        assert_eq!(batch.commit(), Err(CommitError { accepted, refusal }), "{mode:?}");
        assert_eq!(ids(), (0..accepted.into()).collect::<Vec<_>>());
    }
}

#[test]
fn windows_and_regions_of_another_device_never_reach_the_driver() {
    let mut qp = connected(PostMode::Auto);
    let pd = qp.pd().clone();
    let (_, there, _) = open();
    let access = AccessFlags::MW_BIND;
    let register = |pd: &ProtectionDomain| {
        // SAFETY: the fake device never touches memory.
        unsafe { pd.register(std::ptr::without_provenance_mut(4096), 64, access) }.unwrap()
    };
    let own = register(&pd);
    let foreign = register(&there);
    let refused = CommitError { accepted: 0, refusal: Refusal::Driver(libc::EINVAL) };
    for (window_of, region, result) in
        [(&there, &own, Err(refused)), (&pd, &foreign, Err(refused)), (&pd, &own, Ok(()))]
    {
        let mut window = window_of.alloc_window().unwrap();
        let range = WindowRange { region, addr: 4096, length: 64, access };
        assert_eq!(qp.bind_window(1, SendFlags::empty(), &mut window, range), result);
        assert_eq!(window.rkey(), 0x500 + u32::from(result.is_ok()));
    }
    assert_eq!(ids(), [1]);
}

#[test]
fn sends_before_rts_never_reach_the_driver() {
    for mode in BOTH {
        let mut qp = in_init::<Rc>(mode);
        let refusal = Refusal::Driver(libc::EINVAL);
        let refused = Err(CommitError { accepted: 0, refusal });
        assert_eq!(post(&mut qp, writes(0..1)), refused, "{mode:?}");
        assert_eq!(ids(), [0; 0]);
    }
    assert_eq!(calls_of("ibv_wr_start"), 0);
}

#[test]
fn a_window_has_a_new_key_once_its_request_is_taken() {
    let mut qp = connected(PostMode::Auto);
    let pd = qp.pd().clone();
    let access = AccessFlags::MW_BIND;
    // SAFETY: the fake device never touches memory.
    let region =
        unsafe { pd.register(std::ptr::without_provenance_mut(4096), 64, access) }.unwrap();
    let mut window = pd.alloc_window().unwrap();
    let range = WindowRange { region: &region, addr: 4096, length: 64, access };
    let mut bind = || {
        let bound = qp.bind_window(9, SendFlags::SIGNALED, &mut window, range);
        (bound, window.rkey())
    };
    with(|state| state.refusing = Some((0, libc::ENOMEM)));
    let full = CommitError { accepted: 0, refusal: Refusal::QueueFull };
    assert_eq!(bind(), (Err(full), 0x500));
    assert_eq!(bind(), (Ok(()), 0x501));
    assert_eq!(
        posted().iter().map(|request| (request.wr_id, request.opcode)).collect::<Vec<_>>(),
        [(9, 8)]
    );
    window.close().unwrap();
    fail("ibv_alloc_mw", libc::ENOMEM);
    assert_eq!(pd.alloc_window().map_err(|error| error.call).err(), Some("ibv_alloc_mw"));
}

#[test]
fn receives_are_taken_up_to_the_one_that_does_not_fit() {
    let mut qp = in_init::<Rc>(PostMode::Classic);
    with(|state| state.refusing = Some((2, -libc::ENOMEM)));
    let mut batch = qp.start_recv();
    (0..3).for_each(|wr_id| batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY }));
    let refusal = Refusal::QueueFull;
    assert_eq!(batch.commit(), Err(CommitError { accepted: 2, refusal }));
    let seen: Vec<_> = posted().iter().map(|receive| (receive.wr_id, receive.length)).collect();
    assert_eq!(seen, [(0, None), (1, None)]);
}
