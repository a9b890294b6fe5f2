//! Arguments that calls pass to the driver, and values that they return.

use crate::fake::{Registered, TICKS, WALL_CLOCK_NS, complete, fail, with};
use crate::fixture::{All, open};
use polyrail_core::verbs::{AccessFlags, DEVICE_ADDRESSES, WcOpcode};
use polyrail_ffi::{
    Argument, CqInit, Gid, GidType, LinkLayer, MemoryRegion, OnDemandPaging, OnDemandRequests,
    PostMode, ProtectionDomain, QpCap, QpInit, QpState, Rc, SrqAttributes, SrqInit, Timestamps,
};
use rdma_sys::{ibv_create_cq_wc_flags as wc, ibv_odp_caps, ibv_odp_caps__bindgen_ty_1};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

/// Address of the 64 bytes to register.
const ADDR: usize = 0x7000;

fn register(pd: &ProtectionDomain, access: AccessFlags) -> MemoryRegion {
    // SAFETY: the fake device never touches memory.
    unsafe { pd.register(ptr::without_provenance_mut(ADDR), 64, access) }.unwrap()
}

fn registered() -> Registered {
    with(|state| state.registered.take()).unwrap()
}

#[test]
fn every_access_flag_is_handed_over() {
    let all = All::new(PostMode::Classic).unwrap();
    let numbers = [1, 2, 4, 8, 16, 32, 64, 128, 1 << 20];
    let flags: Vec<_> = AccessFlags::all().iter().collect();
    assert_eq!(flags.len(), numbers.len());
    for (flag, access) in flags.into_iter().zip(numbers) {
        let region = register(&all.pd, flag);
        let is_zero_based = flag == AccessFlags::ZERO_BASED;
        let iova = if is_zero_based { 0 } else { ADDR as u64 };
        assert_eq!(registered(), Registered::Memory { addr: ADDR, length: 64, iova, access });
        assert_eq!((region.addr(), region.len()), (iova, 64), "{flag:?}");
        assert_eq!((region.lkey(), region.rkey()), (5, 6));
    }
}

#[test]
fn requests_may_name_memory_by_another_address() {
    let all = All::new(PostMode::Classic).unwrap();
    let (addr, iova) = (ptr::without_provenance_mut(ADDR), DEVICE_ADDRESSES + ADDR as u64);
    // SAFETY: the fake device never touches memory.
    let region = unsafe { all.pd.register_iova(addr, 64, iova, AccessFlags::empty()) }.unwrap();
    assert_eq!(registered(), Registered::Memory { addr: ADDR, length: 64, iova, access: 0 });
    assert_eq!((region.addr(), region.len()), (iova, 64));
}

#[test]
fn a_dma_buf_is_registered_by_offset_length_and_address() {
    let all = All::new(PostMode::Classic).unwrap();
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let offset = 0x1000;
    let length = 0x2000;
    let iova = 0x5_0000;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let register = || {
        let fd = std::os::fd::AsFd::as_fd(&file);
        // SAFETY: the fake device never touches memory.
        unsafe { all.pd.register_dmabuf(fd, offset, length, iova, access) }
    };
    let region = register().unwrap();
    let fd = file.as_raw_fd();
    assert_eq!(registered(), Registered::DmaBuf { offset, length, iova, fd, access: 1 | 4 });
    assert_eq!((region.addr(), region.len(), region.lkey()), (iova, length, 7));
    fail("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP);
    let error = register().map_err(|error| (error.call, error.errno));
    assert_eq!(error.err(), Some(("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP)));
}

#[test]
fn devices_say_what_they_page_on_demand() {
    let all = All::new(PostMode::Classic).unwrap();
    assert_eq!(all.context.on_demand_paging(), Ok(OnDemandPaging::default()));
    let rc_odp_caps = 1 | 4 | 16;
    let per_transport_caps =
        ibv_odp_caps__bindgen_ty_1 { rc_odp_caps, uc_odp_caps: 2, ud_odp_caps: 8 | 32 };
    with(|state| state.odp_caps = Some(ibv_odp_caps { general_caps: 3, per_transport_caps }));
    let asked = all.context.on_demand_paging().unwrap();
    let rc = OnDemandRequests::SEND | OnDemandRequests::WRITE | OnDemandRequests::ATOMIC;
    let ud = OnDemandRequests::READ | OnDemandRequests::SRQ_RECV;
    let uc = OnDemandRequests::RECV;
    assert_eq!(asked, OnDemandPaging { supported: true, implicit: true, rc, uc, ud });
    fail("ibv_query_device_ex", libc::EOPNOTSUPP);
    assert_eq!(all.context.on_demand_paging(), Ok(OnDemandPaging::default()));
    fail("ibv_query_device_ex", libc::EIO);
    let error = all.context.on_demand_paging().map_err(|error| (error.call, error.errno));
    assert_eq!(error, Err(("ibv_query_device_ex", libc::EIO)));
}

#[test]
fn a_port_has_the_speed_that_its_driver_reports_or_that_of_its_lanes() {
    const LANES: u32 = 800_000;
    let all = All::new(PostMode::Classic).unwrap();
    let speed = || all.context.query_port_speed(1);
    assert_eq!(speed(), Ok(LANES), "the driver does not report it");
    let report = |hundreds| with(|state| state.port_speed = Some(hundreds));
    // An XDR port of four planes that has lost one.
    for (hundreds, mbps) in [(6_000, 600_000), (8_000, LANES), (0, LANES), (u64::MAX, u32::MAX)] {
        report(hundreds);
        assert_eq!(speed(), Ok(mbps), "{hundreds}");
    }
    report(6_000);
    // The kernel does not have the call, or is too old for calls of this kind.
    for errno in [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS, libc::ENOTTY] {
        fail("ibv_query_port_speed", errno);
        assert_eq!(speed(), Ok(LANES), "{errno}");
    }
    fail("ibv_query_port_speed", libc::EIO);
    let error = speed().map_err(|error| (error.call, error.errno, error.argument));
    assert_eq!(error, Err(("ibv_query_port_speed", libc::EIO, Argument::Number("port_num", 1))));
}

#[test]
fn a_port_on_ethernet_has_the_rate_of_its_lanes() {
    const SDR: u8 = 1;
    const QDR: u8 = 4;
    const ONE_LANE: u8 = 1;
    const FOUR_LANES: u8 = 2;
    let all = All::new(PostMode::Classic).unwrap();
    for (speed, width, mbps) in
        [(SDR, ONE_LANE, 1_000), (SDR, FOUR_LANES, 10_000), (QDR, ONE_LANE, 10_000)]
    {
        with(|state| state.ethernet = Some((speed, width)));
        assert_eq!(all.context.query_port(1).unwrap().link_layer, LinkLayer::Ethernet);
        assert_eq!(all.context.query_port_speed(1), Ok(mbps), "speed {speed}, width {width}");
    }
    // A driver that reports the speed knows it better.
    with(|state| state.port_speed = Some(25));
    assert_eq!(all.context.query_port_speed(1), Ok(2_500));
}

#[test]
fn moderation_hands_over_count_and_period() {
    let all = All::new(PostMode::Classic).unwrap();
    all.cq.handle().moderate(16, 100).unwrap();
    assert_eq!(with(|state| state.moderated), Some((1, 16, 100)));
    fail("ibv_modify_cq", libc::EOPNOTSUPP);
    let error = all.cq.handle().moderate(16, 100).map_err(|error| (error.call, error.errno));
    assert_eq!(error, Err(("ibv_modify_cq", libc::EOPNOTSUPP)));
}

#[test]
fn completions_are_stamped_with_the_times_that_were_asked_for() {
    let all = All::new(PostMode::Classic).unwrap();
    let ticks = Timestamps::DEVICE;
    let wall = Timestamps::WALL_CLOCK;
    let ticks_flag = wc::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0;
    let wall_flag = wc::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0;
    for (timestamps, flags, stamps) in [
        (Timestamps::empty(), 0, (None, None)),
        (ticks, ticks_flag, (Some(TICKS), None)),
        (wall, wall_flag, (None, Some(WALL_CLOCK_NS))),
        (ticks | wall, ticks_flag | wall_flag, (Some(TICKS), Some(WALL_CLOCK_NS))),
    ] {
        let mut cq = all.context.create_extended_cq(&CqInit::new(8), timestamps).unwrap();
        let asked = with(|state| state.wc_flags) as u32;
        assert_eq!(asked & (ticks_flag | wall_flag), flags);
        complete(3, 0, WcOpcode::SEND.0, 0);
        let stamped = cq.poll_next().unwrap().unwrap();
        assert_eq!(stamped.completion.wr_id, 3);
        assert_eq!((stamped.device_ticks, stamped.wall_clock_ns), stamps);
    }
}

#[test]
fn queries_return_what_the_driver_reports() {
    let all = All::new(PostMode::Classic).unwrap();
    assert_eq!(all.qp.query().map(|attributes| attributes.state), Ok(QpState::Sqe));
    assert_eq!(all.srq.query(), Ok(SrqAttributes { max_wr: 15, max_sge: 3, limit: 4 }));
    let entry = all.context.query_gid(2, 1).unwrap();
    assert_eq!((entry.port, entry.index, entry.gid), (2, 1, Gid([2; 16])));
    assert_eq!(entry.gid_type, GidType::RoceV2);
    assert_eq!(all.context.gid_table(), Ok(vec![entry]));
    assert_eq!(all.context.query_pkey(2, 3), Ok(0x203));
}

/// `ibv_query_qp` returns the creation attributes of a queue pair, whichever call created it.
#[test]
fn a_queue_pair_reports_what_it_was_made_of() {
    let (_context, pd, cq) = open();
    let srq = pd.create_srq(&SrqInit::new(8)).unwrap();
    let cap = QpCap { max_send_sge: 2, ..QpCap::new(17, 5, 32) };
    for post_mode in [PostMode::Classic, PostMode::Extended] {
        for (srq, sq_sig_all) in [(None, true), (Some(&srq), false)] {
            let init = QpInit { srq, sq_sig_all, post_mode, ..QpInit::new(&cq, cap) };
            let made = pd.create_qp::<Rc>(&init).unwrap().query().unwrap().init;
            let sends = (made.cap.max_send_wr, made.cap.max_send_sge, made.cap.max_inline_data);
            assert_eq!(sends, (17, 2, 32), "{post_mode:?}");
            assert_eq!((made.has_srq, made.sq_sig_all), (srq.is_some(), sq_sig_all));
            assert_eq!(made.cap.max_recv_wr, if srq.is_some() { 0 } else { 5 });
        }
    }
}
