//! Every call that can fail, failing: what is reported, what is left, what is destroyed in which order.

use crate::fake::{FORK_INITS, alive, calls_of, fail, heal, violations, with};
use crate::fixture::All;
use polyrail_core::hardware::{ReceiveQueue as _, RecvBatch as _};
use polyrail_core::verbs::{RecvRequest, Sge};
use polyrail_ffi::{
    Argument, CloseError, CqInit, DeviceList, PostMode, QpCap, QpInit, QueuePair, VerbsError,
    fork_safety, set_destroy_hook,
};
use std::cell::Cell;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

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

/// A device name from text.
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
    drop(all);
    assert_eq!(alive(), [""; 0]);
    assert_eq!(violations(), [""; 0]);
}

#[test]
fn closing_reports_what_still_uses_an_object_and_what_a_driver_says() {
    let All { context, channel, pd, cq, srq, qp, ah, mr } = All::new(PostMode::Classic).unwrap();
    assert_eq!(srq.close(), Err(CloseError::InUse));
    assert_eq!(cq.close(), Err(CloseError::InUse));
    assert_eq!(pd.close(), Err(CloseError::InUse));
    assert_eq!(channel.close(), Err(CloseError::InUse));
    let busy = |call| VerbsError { call, errno: libc::EBUSY, argument: Argument::None };
    fail("ibv_dereg_mr", libc::EBUSY);
    assert_eq!(mr.close(), Err(busy("ibv_dereg_mr")));
    fail("ibv_destroy_qp", libc::EBUSY);
    assert_eq!(qp.close(), Err(busy("ibv_destroy_qp")));
    heal();
    assert_eq!(ah.close(), Ok(()));
    fail("ibv_close_device", libc::EIO);
    let io = VerbsError { errno: libc::EIO, ..busy("ibv_close_device") };
    assert_eq!(context.close(), Err(CloseError::Verbs(io)));
    assert_eq!(alive().len(), 3, "what could not be destroyed: {:?}", alive());
}

thread_local! {
    static REPORTED: Cell<Option<VerbsError>> = const { Cell::new(None) };
}

#[test]
fn a_drop_that_fails_tells_the_hook() {
    set_destroy_hook(|error| REPORTED.set(Some(*error)));
    let pd = All::new(PostMode::Classic).unwrap().pd;
    fail("ibv_dealloc_pd", libc::EBUSY);
    drop(pd);
    let error = REPORTED.take().expect("the hook was called on this thread");
    assert_eq!((error.call, error.errno), ("ibv_dealloc_pd", libc::EBUSY));
    assert!(error.hint().is_some_and(|hint| hint.contains("still exist")));
}

/// Set in a process that runs one test alone.
const ALONE: &str = "POLYRAIL_TEST_ALONE";

/// Runs a test in a process of its own, where `alone` is what it does.
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
        assert_eq!(fork_safety(), Err(refused), "what was said first is kept");
    });
}

#[test]
fn fork_safety_is_initialised_once() {
    let lists = [DeviceList::new().unwrap(), DeviceList::new().unwrap()];
    assert_eq!(lists.map(|list| list.iter().len()), [1, 1]);
    assert_eq!(fork_safety(), Ok(()));
    assert_eq!(FORK_INITS.load(Ordering::Relaxed), 1);
}

#[test]
fn the_longest_message_is_that_of_the_lesser_port() {
    assert_eq!(All::new(PostMode::Classic).unwrap().context.max_msg_size(), 1 << 28);
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
    let (here, there) =
        (All::new(PostMode::Classic).unwrap(), All::new(PostMode::Classic).unwrap());
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
