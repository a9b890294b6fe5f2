//! Every call that can fail, failing: what is reported, what is left, what is destroyed in which order.

use crate::fake::{
    FORK_INITS, QP_NUM, alive, calls_of, fail, heal, queue_cq_event, queue_event, violations, with,
};
use polyrail_core::hardware::{CqId, ReceiveQueue as _, RecvBatch as _};
use polyrail_core::verbs::{AccessFlags, RecvRequest, Sge};
use polyrail_ffi::{
    AddressHandle, Argument, AsyncEvent, CloseError, CompletionChannel, CompletionQueue, Context,
    CqInit, DatagramToInit, DatagramToRtr, DeviceList, Gid, Grh, MemoryRegion, ModifyError, Mtu,
    Path, PostMode, ProtectionDomain, QpCap, QpInit, QpState, QueuePair, Rc, Resume, Service,
    SharedReceiveQueue, ToErr, ToInit, ToReset, ToRtr, ToRts, ToSqd, Transition, Uc, Ud,
    UnreliableToRtr, UnreliableToRts, VerbsError, fork_safety, set_destroy_hook,
};
use std::cell::Cell;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

/// One of everything.
#[allow(dead_code, reason = "fields are there to be dropped")]
struct All {
    // In an order of dropping that would be wrong if children did not keep their parents.
    context: Context,
    channel: CompletionChannel,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    qp: QueuePair,
    ah: AddressHandle,
    mr: MemoryRegion,
}

fn path() -> Path {
    Path::roce(1, Grh::new(Gid([1; 16]), 0))
}

impl All {
    fn new(post_mode: PostMode) -> Result<Self, VerbsError> {
        let list = DeviceList::new()?;
        let context = list.find("fake0").expect("the fake device").open()?;
        drop(list);
        let pd = context.alloc_pd()?;
        let access = AccessFlags::LOCAL_WRITE;
        // SAFETY: the fake device never touches memory.
        let mr = unsafe { pd.register(std::ptr::without_provenance_mut(4096), 64, access) }?;
        let channel = context.create_channel()?;
        let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
        let cq = context.create_cq(&init)?;
        let srq = pd.create_srq(8)?;
        let ah = pd.create_ah(&path())?;
        let init = QpInit { srq: Some(&srq), post_mode, ..QpInit::new(&cq, QpCap::default()) };
        let qp = pd.create_qp(&init)?;
        Ok(Self { context, channel, pd, cq, srq, qp, ah, mr })
    }
}

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

fn queue_pair<S: Service>(all: &All) -> QueuePair<S> {
    all.pd.create_qp(&QpInit::new(&all.cq, QpCap::default())).unwrap()
}

fn to_rtr() -> ToRtr {
    ToRtr {
        path: path(),
        path_mtu: Mtu::Mtu1024,
        dest_qp_num: 5,
        rq_psn: 6,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
    }
}

fn to_rts() -> ToRts {
    ToRts { sq_psn: 7, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 }
}

/// The attributes that a transition gives to the driver, without the state itself.
fn given<S: Service>(qp: &mut QueuePair<S>, transition: &impl Transition<S>) -> u32 {
    qp.modify(transition).unwrap();
    let (mask, _) = with(|state| state.modified).unwrap();
    assert_eq!(mask & 1, 1, "IBV_QP_STATE");
    mask & !1
}

#[test]
fn transitions_give_what_the_manual_demands_and_no_more() {
    use rdma_sys::ibv_qp_attr_mask as m;
    let all = All::new(PostMode::Classic).unwrap();
    let init = ToInit { port_num: 1, pkey_index: 0, access: AccessFlags::empty() };
    let to_init = m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS;
    let path = m::IBV_QP_AV | m::IBV_QP_PATH_MTU | m::IBV_QP_DEST_QPN | m::IBV_QP_RQ_PSN;
    let mut rc = queue_pair::<Rc>(&all);
    assert_eq!(given(&mut rc, &init), to_init.0);
    let responder = m::IBV_QP_MAX_DEST_RD_ATOMIC | m::IBV_QP_MIN_RNR_TIMER;
    assert_eq!(given(&mut rc, &to_rtr()), (path | responder).0);
    let requester = m::IBV_QP_TIMEOUT
        | m::IBV_QP_RETRY_CNT
        | m::IBV_QP_RNR_RETRY
        | m::IBV_QP_SQ_PSN
        | m::IBV_QP_MAX_QP_RD_ATOMIC;
    assert_eq!(given(&mut rc, &to_rts()), requester.0);
    assert_eq!(given(&mut rc, &ToSqd { notify: true }), m::IBV_QP_EN_SQD_ASYNC_NOTIFY.0);
    assert_eq!(given(&mut rc, &Resume), m::IBV_QP_CUR_STATE.0);
    assert_eq!((given(&mut rc, &ToErr), given(&mut rc, &ToReset)), (0, 0));
    assert_eq!(rc.last_state(), QpState::Reset);

    let mut uc = queue_pair::<Uc>(&all);
    let ToRtr { path: way, path_mtu, dest_qp_num, rq_psn, .. } = to_rtr();
    assert_eq!(given(&mut uc, &init), to_init.0);
    let unreliable = UnreliableToRtr { path: way, path_mtu, dest_qp_num, rq_psn };
    assert_eq!(given(&mut uc, &unreliable), path.0);
    assert_eq!(given(&mut uc, &UnreliableToRts { sq_psn: 1 }), m::IBV_QP_SQ_PSN.0);

    let mut ud = queue_pair::<Ud>(&all);
    let init = DatagramToInit { port_num: 1, pkey_index: 0, qkey: 9 };
    let to_init = m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_QKEY;
    assert_eq!(given(&mut ud, &init), to_init.0);
    assert_eq!(given(&mut ud, &DatagramToRtr), 0);
    assert_eq!(given(&mut ud, &UnreliableToRts { sq_psn: 1 }), m::IBV_QP_SQ_PSN.0);
}

#[test]
fn values_that_do_not_fit_are_refused_before_the_driver_sees_them() {
    let all = All::new(PostMode::Classic).unwrap();
    let mut qp = queue_pair::<Rc>(&all);
    let value = |attribute, value, max| ModifyError::Value { attribute, value, max };
    let refused = [
        (ToRts { timeout: 32, ..to_rts() }, value("timeout", 32, 31)),
        (ToRts { retry_cnt: 8, ..to_rts() }, value("retry_cnt", 8, 7)),
        (ToRts { rnr_retry: 8, ..to_rts() }, value("rnr_retry", 8, 7)),
        (ToRts { sq_psn: 1 << 24, ..to_rts() }, value("sq_psn", 1 << 24, (1 << 24) - 1)),
    ];
    for (transition, error) in refused {
        assert_eq!(qp.modify(&transition), Err(error));
    }
    let wide = ToRtr { dest_qp_num: 1 << 24, ..to_rtr() };
    assert_eq!(qp.modify(&wide), Err(value("dest_qp_num", 1 << 24, (1 << 24) - 1)));
    assert_eq!(calls_of("ibv_modify_qp"), 0);
}

#[test]
fn a_refused_transition_says_where_it_led_and_changes_nothing() {
    let all = All::new(PostMode::Classic).unwrap();
    let mut qp = queue_pair::<Rc>(&all);
    fail("ibv_modify_qp", libc::EINVAL);
    let argument = Argument::State(QpState::Rtr);
    let error = VerbsError { call: "ibv_modify_qp", errno: libc::EINVAL, argument };
    assert_eq!(qp.modify(&to_rtr()), Err(ModifyError::Verbs(error)));
    assert!(error.to_string().contains("GID index"), "{error}");
    assert_eq!(qp.last_state(), QpState::Reset);
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

#[test]
fn events_name_their_object_and_are_acknowledged() {
    let all = All::new(PostMode::Classic).unwrap();
    assert_eq!(all.context.next_event(), Ok(None));
    let cq: CqId = all.cq.handle().id();
    for (number, kind, event) in [
        (0, "cq", AsyncEvent::CqError(cq)),
        (1, "qp", AsyncEvent::QpFatal { qp_num: QP_NUM }),
        (5, "qp", AsyncEvent::SqDrained { qp_num: QP_NUM }),
        (16, "qp", AsyncEvent::LastWqeReached { qp_num: QP_NUM }),
        (15, "srq", AsyncEvent::SrqLimitReached(all.srq.id())),
        (8, "port", AsyncEvent::DeviceFatal),
        (10, "port", AsyncEvent::PortError { port: 2 }),
        (18, "port", AsyncEvent::GidChange { port: 2 }),
        (99, "port", AsyncEvent::Other(99)),
    ] {
        queue_event(number, kind);
        assert_eq!(all.context.next_event(), Ok(Some(event)));
    }
    assert_eq!(with(|state| state.acknowledged), 9);
}

#[test]
fn a_channel_names_the_queue_that_has_something() {
    let all = All::new(PostMode::Classic).unwrap();
    all.cq.handle().arm(false).unwrap();
    assert_eq!(all.channel.next_event(), Ok(None));
    queue_cq_event();
    assert_eq!(all.channel.wait(None), Ok(Some(all.cq.handle().id())));
    assert_eq!(with(|state| state.acknowledged), 1);
    queue_cq_event();
    let forever = std::time::Duration::MAX;
    assert_eq!(all.channel.wait(Some(forever)), Ok(Some(all.cq.handle().id())));
    let soon = std::time::Duration::from_millis(1);
    assert_eq!(all.channel.wait(Some(soon)), Ok(None));
    fail("ibv_get_cq_event", libc::EIO);
    assert_eq!(all.channel.next_event().map_err(|error| error.errno), Err(libc::EIO));
    fail("ibv_req_notify_cq", libc::EINVAL);
    assert_eq!(all.cq.handle().arm(true).map_err(|error| error.call), Err("ibv_req_notify_cq"));
}
