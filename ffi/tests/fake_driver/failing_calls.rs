//! Makes every call fail that can fail: the reported error, the objects left, and the order of
//! destruction.

use crate::fake::{
    FORK_INITS, GUID, QP_NUM, XDR, alive, calls_of, fail, heal, install_without, violations, with,
};
use crate::fixture::{All, devices};
use polyrail_core::hardware::{ReceiveQueue as _, RecvBatch as _};
use polyrail_core::verbs::{AccessFlags, RecvRequest, Sge};
use polyrail_ffi::{
    Argument, CloseError, CqInit, DeviceList, PostMode, ProtectionDomain, QpCap, QpInit, QueuePair,
    Timestamps, VerbsError, fork_safety, set_destroy_hook,
};
use std::cell::Cell;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

#[test]
fn every_failed_call_is_named_and_leaves_nothing() {
    for (call, argument) in [
        ("ibv_get_device_list", Argument::None),
        ("ibv_open_device", Argument::Device("fake0".parse_name())),
        ("ibv_query_device", Argument::Device("fake0".parse_name())),
        ("ibv_query_port", Argument::Number("port_num", 1)),
        ("ibv_alloc_pd", Argument::Number("max_pd", 0)),
        ("ibv_reg_mr", Argument::Number("length", 64)),
        ("ibv_create_comp_channel", Argument::None),
        ("ibv_create_cq", Argument::Number("cqe", 64)),
        ("ibv_create_srq", Argument::Number("max_wr", 8)),
        ("ibv_create_ah", Argument::Number("port_num", 1)),
        ("ibv_create_qp", Argument::Number("max_send_wr", 128)),
    ] {
        fail(call, libc::ENOMEM);
        let error = All::new(PostMode::Classic).err().expect("one call failed");
        assert_eq!(error, VerbsError { call, errno: libc::ENOMEM, argument });
        assert_eq!(alive(), [""; 0], "after {call}");
        assert_eq!(violations(), [""; 0], "after {call}");
    }
}

#[test]
fn a_file_descriptor_that_cannot_be_set_is_an_error_and_leaves_nothing() {
    fail("fcntl", libc::EBADF);
    let error = All::new(PostMode::Classic).err().expect("no file descriptor");
    assert_eq!((error.call, error.errno), ("fcntl", libc::EBADF));
    assert_eq!((alive(), violations()), (vec![], vec![]));
    heal();
    let context = All::new(PostMode::Classic).unwrap().context;
    fail("fcntl", libc::EBADF);
    assert_eq!(context.create_channel().map_err(|error| error.call).err(), Some("fcntl"));
    assert_eq!(alive(), ["context"], "the channel is gone");
}

/// Returns the error of a result.
fn failure<T>(result: Result<T, VerbsError>) -> Option<VerbsError> {
    result.err()
}

#[test]
fn every_failed_call_on_what_exists_is_named_and_leaves_all_as_it_was() {
    type Act = fn(&mut All) -> Option<VerbsError>;
    let none = Argument::None;
    let number = Argument::Number;
    let table: [(&'static str, Argument, Act); 16] = [
        ("ibv_create_cq_ex", number("cqe", 8), |all| {
            failure(all.context.create_extended_cq(&CqInit::new(8), Timestamps::empty()))
        }),
        ("ibv_create_qp_ex", number("max_send_wr", 128), |all| failure(extended(all))),
        ("ibv_query_qp", number("qp_num", QP_NUM.into()), |all| failure(all.qp.query())),
        ("ibv_query_srq", none, |all| failure(all.srq.query())),
        ("ibv_modify_srq", number("srq_limit", 3), |all| failure(all.srq.set_limit(3))),
        ("ibv_query_gid_table", number("max_entries", 6), |all| failure(all.context.gid_table())),
        ("ibv_query_gid_ex", number("gid_index", 4), |all| failure(all.context.query_gid(1, 4))),
        ("ibv_query_pkey", number("index", 5), |all| failure(all.context.query_pkey(1, 5))),
        ("ibv_query_port", number("port_num", 2), |all| failure(all.context.query_port(2))),
        ("ibv_alloc_mw", number("max_mw", 0), |all| failure(all.pd.alloc_window())),
        ("ibv_req_notify_cq", number("solicited_only", 1), |all| {
            failure(all.cq.handle().arm(true))
        }),
        ("ibv_modify_cq", number("cq_count", 2), |all| failure(all.cq.handle().moderate(2, 3))),
        ("ibv_resize_cq", number("cqe", 200), |all| failure(all.cq.resize(200))),
        ("ibv_get_cq_event", none, |all| failure(all.channel.next_event())),
        ("ibv_get_async_event", none, |all| failure(all.context.next_event())),
        ("ibv_create_comp_channel", none, |all| failure(all.context.create_channel())),
    ];
    let mut all = All::new(PostMode::Classic).unwrap();
    let before = alive();
    for (call, argument, act) in table {
        fail(call, libc::EIO);
        assert_eq!(act(&mut all), Some(VerbsError { call, errno: libc::EIO, argument }));
        assert_eq!((alive(), violations()), (before.clone(), vec![]), "after {call}");
    }
}

fn extended(all: &All) -> Result<QueuePair, VerbsError> {
    let post_mode = PostMode::Extended;
    all.pd.create_qp(&QpInit { post_mode, ..QpInit::new(&all.cq, QpCap::default()) })
}

#[test]
fn a_queue_pair_without_the_extended_way_is_destroyed_again() {
    let all = All::new(PostMode::Classic).unwrap();
    let before = alive();
    fail("ibv_qp_to_qp_ex", libc::EOPNOTSUPP);
    let error = extended(&all).map_err(|error| (error.call, error.errno)).err();
    assert_eq!(error, Some(("ibv_create_qp_ex", libc::EOPNOTSUPP)));
    assert_eq!((alive(), violations()), (before, vec![]));
}

/// Parses a device name.
trait ParseName {
    fn parse_name(&self) -> polyrail_ffi::DeviceName;
}

impl ParseName for str {
    fn parse_name(&self) -> polyrail_ffi::DeviceName {
        polyrail_ffi::DeviceName::from(self).expect("a short name")
    }
}

#[test]
fn children_are_destroyed_before_their_parents_whatever_is_dropped_first() {
    let all = All::new(PostMode::Classic).unwrap();
    assert_eq!(alive().len(), 8);
    let init = CqInit { channel: Some(&all.channel), ..CqInit::new(8) };
    let extended_cq = all.context.create_extended_cq(&init, Timestamps::empty()).unwrap();
    let window = all.pd.alloc_window().unwrap();
    let extended = extended(&all).unwrap();
    assert_eq!(alive().len(), 11);
    drop(all);
    // Dropped with `all`: its queue pair, receive queue, address handle and region.
    assert_eq!(alive().len(), 7, "parents stay for what was made from them: {:?}", alive());
    drop((extended, extended_cq, window));
    assert_eq!(alive(), [""; 0]);
    assert_eq!(violations(), [""; 0]);
}

/// A queue pair that is the last owner of the objects that it was made from destroys them, children
/// before parents.
#[test]
fn what_a_queue_pair_was_the_last_to_use_is_destroyed_in_the_manuals_order() {
    let All { qp, context, channel, pd, cq, srq, .. } = All::new(PostMode::Classic).unwrap();
    drop((context, channel, pd, cq, srq));
    with(|state| state.calls.clear());
    drop(qp);
    assert_eq!(
        with(|state| state.calls.clone()),
        [
            "ibv_destroy_qp",
            "ibv_destroy_srq",
            "ibv_destroy_cq",
            "ibv_destroy_comp_channel",
            "ibv_dealloc_pd",
            "ibv_close_device",
        ]
    );
    assert_eq!((alive(), violations()), (vec![], vec![]));
}

#[test]
fn closing_reports_what_still_uses_an_object_and_the_drivers_error() {
    let All { context, channel, pd, cq, srq, qp, ah, mr } = All::new(PostMode::Classic).unwrap();
    assert_eq!(srq.close(), Err(CloseError::InUse));
    assert_eq!(cq.close(), Err(CloseError::InUse));
    assert_eq!(pd.close(), Err(CloseError::InUse));
    assert_eq!(channel.close(), Err(CloseError::InUse));
    let busy = |call, argument| VerbsError { call, errno: libc::EBUSY, argument };
    fail("ibv_dereg_mr", libc::EBUSY);
    assert_eq!(mr.close(), Err(busy("ibv_dereg_mr", Argument::Number("lkey", 5))));
    fail("ibv_destroy_qp", libc::EBUSY);
    let qp_num = Argument::Number("qp_num", QP_NUM.into());
    assert_eq!(qp.close(), Err(busy("ibv_destroy_qp", qp_num)));
    heal();
    assert_eq!(ah.close(), Ok(()));
    fail("ibv_close_device", libc::EIO);
    let device = Argument::Device("fake0".parse_name());
    let io = VerbsError { errno: libc::EIO, ..busy("ibv_close_device", device) };
    assert_eq!(context.close(), Err(CloseError::Verbs(io)));
    assert_eq!(alive().len(), 3, "what could not be destroyed: {:?}", alive());
}

thread_local! {
    static REPORTED: Cell<Option<VerbsError>> = const { Cell::new(None) };
}

#[test]
fn a_drop_that_fails_calls_the_hook() {
    set_destroy_hook(|error| REPORTED.set(Some(*error)));
    let pd = All::new(PostMode::Classic).unwrap().pd;
    fail("ibv_dealloc_pd", libc::EBUSY);
    drop(pd);
    let error = REPORTED.take().expect("the hook was called on this thread");
    assert_eq!((error.call, error.errno), ("ibv_dealloc_pd", libc::EBUSY));
    assert!(error.hint().is_some_and(|hint| hint.contains("still exist")));
}

#[test]
fn memory_that_cannot_be_deregistered_is_kept() {
    let register = |pd: &ProtectionDomain| {
        let pages = Arc::new([0u8; 64]);
        let addr = pages.as_ptr().cast_mut();
        let kept = Arc::downgrade(&pages);
        // SAFETY: the bytes are the owner's, and the fake device never touches memory.
        let region = unsafe { pd.register_owned(addr, 64, AccessFlags::LOCAL_WRITE, pages) };
        (region.unwrap(), kept)
    };
    let pd = All::new(PostMode::Classic).unwrap().pd;
    let [dropped, closed, refused, lost] = std::array::from_fn(|_| register(&pd));
    let is_there = |kept: &Weak<_>| kept.strong_count() == 1;
    assert!([&dropped, &closed, &refused, &lost].iter().all(|(_, kept)| is_there(kept)));
    drop(dropped.0);
    closed.0.close().unwrap();
    assert!(!is_there(&dropped.1) && !is_there(&closed.1), "the memory is its owner's again");
    fail("ibv_dereg_mr", libc::EBUSY);
    assert_eq!(refused.0.close().map_err(|error| error.errno), Err(libc::EBUSY));
    assert!(is_there(&refused.1), "the device may still write what was not deregistered");
    drop(lost.0);
    assert!(is_there(&lost.1), "also after a drop");
}

/// Set in a process that runs one test alone.
const ALONE: &str = "POLYRAIL_TEST_ALONE";

/// Runs a test in a separate process, in which `alone` is the test's body.
fn in_own_process(test: &str, stderr: impl Into<Stdio>, alone: fn()) {
    if std::env::var_os(ALONE).is_some() {
        return alone();
    }
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .stderr(stderr)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_drop_that_fails_does_not_panic_if_stderr_is_full() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let name = "failing_calls::a_drop_that_fails_does_not_panic_if_stderr_is_full";
    in_own_process(name, full, || {
        let pd = All::new(PostMode::Classic).unwrap().pd;
        fail("ibv_dealloc_pd", libc::EBUSY);
        drop(pd);
    });
}

#[test]
fn a_library_that_cannot_be_loaded_is_an_error_with_a_cure() {
    let name = "failing_calls::a_library_that_cannot_be_loaded_is_an_error_with_a_cure";
    in_own_process(name, Stdio::inherit(), || {
        // SAFETY: no function is provided.
        unsafe { rdma_sys::load_from(&|_| std::ptr::null_mut()) };
        let error = DeviceList::new().expect_err("a library without functions");
        assert_eq!((error.call, error.errno), ("dlopen", libc::ELIBACC));
        let text = error.to_string();
        assert!(text.starts_with("dlopen(libibverbs.so.1: it is too old and lacks "), "{text}");
        assert!(text.ends_with("install packages libibverbs1 and ibverbs-providers"), "{text}");
        assert_eq!(fork_safety(), Err(error));
    });
}

#[test]
fn an_older_library_without_dma_bufs_does_the_rest() {
    let name = "failing_calls::an_older_library_without_dma_bufs_does_the_rest";
    in_own_process(name, Stdio::inherit(), || {
        install_without("ibv_reg_dmabuf_mr");
        let all = All::new(PostMode::Classic).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsFd::as_fd(&file);
        // SAFETY: nothing is registered.
        let registered = unsafe { all.pd.register_dmabuf(fd, 0, 64, 0, AccessFlags::empty()) };
        let error = registered.map(|_| ()).unwrap_err();
        assert_eq!((error.call, error.errno), ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP));
        let text = error.to_string();
        assert!(text.contains("too old and lacks it") && text.contains("rdma-core 34"), "{text}");
    });
}

#[test]
fn with_an_older_library_a_port_has_the_speed_of_its_lanes() {
    let name = "failing_calls::with_an_older_library_a_port_has_the_speed_of_its_lanes";
    in_own_process(name, Stdio::inherit(), || {
        install_without("ibv_query_port_speed");
        let all = All::new(PostMode::Classic).unwrap();
        with(|state| state.port_speed = Some(6_000));
        assert_eq!(all.context.query_port_speed(1), Ok(800_000));
    });
}

#[test]
#[cfg(target_os = "linux")]
fn nothing_is_linked_that_may_not_be_installed() {
    drop(All::new(PostMode::Classic).unwrap());
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(mapped.contains("libc.so"), "{mapped}");
    assert!(!mapped.contains("libibverbs"), "programs must start without the library: {mapped}");
}

#[test]
fn devices_are_usable_where_forks_cannot_be_made_safe() {
    let name = "failing_calls::devices_are_usable_where_forks_cannot_be_made_safe";
    in_own_process(name, Stdio::inherit(), || {
        fail("ibv_fork_init", libc::EINVAL);
        drop(All::new(PostMode::Classic).unwrap());
        let refused =
            VerbsError { call: "ibv_fork_init", errno: libc::EINVAL, argument: Argument::None };
        assert_eq!(fork_safety(), Err(refused));
        assert!(refused.to_string().contains("registered memory before"), "{refused}");
        heal();
        assert_eq!(fork_safety(), Err(refused), "the first result is kept");
    });
}

#[test]
fn fork_safety_is_initialised_once() {
    let lists = [devices().unwrap(), devices().unwrap()];
    assert_eq!(lists.each_ref().map(|list| list.iter().len()), [1, 1]);
    assert_eq!(lists[0].iter().next().map(|device| device.guid()), Some(GUID));
    assert_eq!(fork_safety(), Ok(()));
    assert_eq!(FORK_INITS.load(Ordering::Relaxed), 1);
}

#[test]
fn the_longest_message_is_that_of_the_lesser_port() {
    assert_eq!(All::new(PostMode::Classic).unwrap().context.max_msg_size(), 1 << 28);
}

#[test]
fn a_speed_whose_code_is_longer_than_a_byte_is_read() {
    let port = All::new(PostMode::Classic).unwrap().context.query_port(1).unwrap();
    assert_eq!((port.speed_code, port.width, port.speed_mbps), (XDR, 4, 800_000));
}

#[test]
fn queue_pairs_post_the_classic_way_where_the_extended_one_is_refused() {
    assert!(All::new(PostMode::Auto).unwrap().qp.is_extended());
    fail("ibv_create_qp_ex", libc::EOPNOTSUPP);
    assert!(!All::new(PostMode::Auto).unwrap().qp.is_extended());
    let error = All::new(PostMode::Extended).err().expect("not offered");
    assert_eq!((error.call, error.errno), ("ibv_create_qp_ex", libc::EOPNOTSUPP));
    assert_eq!((alive(), violations()), (vec![], vec![]));
}

#[test]
fn objects_of_another_device_never_reach_the_driver() {
    let here = All::new(PostMode::Classic).unwrap();
    let there = All::new(PostMode::Classic).unwrap();
    let made = calls_of("ibv_create_qp");
    let own = QpInit::new(&here.cq, QpCap::default());
    for foreign in [
        QpInit { send_cq: there.cq.handle(), ..own },
        QpInit { recv_cq: there.cq.handle(), ..own },
        QpInit { srq: Some(&there.srq), ..own },
    ] {
        let created: Result<QueuePair, _> = here.pd.create_qp(&foreign);
        let error = created.expect_err("handles of one device mean nothing to another");
        assert_eq!((error.call, error.errno), ("ibv_create_qp", libc::EINVAL));
    }
    let channel = CqInit { channel: Some(&there.channel), ..CqInit::new(8) };
    assert_eq!(here.context.create_cq(&channel).err().map(|error| error.errno), Some(libc::EINVAL));
    assert_eq!(calls_of("ibv_create_qp"), made);
}

#[test]
fn a_shared_receive_queue_takes_receives_and_its_queue_pairs_take_none() {
    let mut all = All::new(PostMode::Classic).unwrap();
    let receive = RecvRequest { wr_id: 3, sge: Sge::EMPTY };
    let mut batch = all.srq.start_recv();
    batch.add(&receive);
    batch.commit().unwrap();
    assert_eq!(with(|state| state.posted.pop()).map(|posted| posted.wr_id), Some(3));
    let mut batch = all.qp.start_recv();
    batch.add(&receive);
    assert!(batch.commit().is_err());
    fail("ibv_modify_srq", libc::EINVAL);
    let argument = Argument::Number("srq_limit", 9);
    let error = VerbsError { call: "ibv_modify_srq", errno: libc::EINVAL, argument };
    assert_eq!(all.srq.set_limit(9), Err(error));
}
