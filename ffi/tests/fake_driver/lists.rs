//! Requests of several buffers, and several requests with one call.

use crate::fake::{calls_of, with};
use crate::fixture::open;
use crate::requests::{
    BOTH, CAP, buffers, connect, connected, ids, part, post, posted, request, with_cap, writes,
};
use polyrail_core::hardware::{
    CommitError, QueuePair as _, ReceiveQueue as _, RecvBatch as _, Refusal, SendBatch as _,
};
use polyrail_core::verbs::{
    DEVICE_ADDRESSES, DeviceKeys, LocalBuffer, LocalPart, Opcode, RecvRequest, SendFlags,
    SendRequest, SendWr, Sge,
};
use polyrail_core::virtual_qp::{Config, VirtualQp};
use polyrail_ffi::{PostMode, QpCap, QueuePair, Rc, SrqInit};

/// Three buffers and an empty one, and the list that a driver must receive.
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

/// Four rails of the engine, each of which takes three buffers per request.
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

/// rxe's library multiplies the length of the first buffer by the number of buffers.
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
            // SAFETY: the constants, or the memory in which the queue pair joined them.
            unsafe { std::slice::from_raw_parts(start, length as usize) }.to_vec()
        });
        assert_eq!(seen.collect::<Vec<_>>(), b"inline", "{mode:?}");
        assert_eq!(posted().len(), 1);
    }
}

#[test]
fn lists_that_are_too_long_or_unreadable_never_reach_the_driver() {
    let cap = QpCap { max_send_sge: 2, max_recv_sge: 2, ..CAP };
    let einval = Refusal::Driver(libc::EINVAL);
    let fits = SendRequest { flags: SendFlags::INLINE, ..request(1, Opcode::RdmaWrite, 0) };
    for (mode, accepted) in [(PostMode::Classic, 1), (PostMode::Extended, 0)] {
        let too_many = (request(2, Opcode::RdmaWrite, 0), list().0.to_vec());
        let too_long = (SendRequest { wr_id: 2, ..fits }, vec![part(32), part(33)]);
        // SAFETY: the fake driver never touches memory.
        let elsewhere = unsafe { LocalBuffer::new(DEVICE_ADDRESSES, 1) }.sge(7);
        let unreadable = (SendRequest { wr_id: 2, ..fits }, vec![part(8), elsewhere]);
        for (bad, parts) in [too_many, too_long, unreadable] {
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
