//! Events of devices and of completion queues.

use crate::fake::{QP_NUM, fail, queue_cq_event, queue_event, with};
use crate::fixture::{All, open};
use polyrail_core::hardware::CqId;
use polyrail_ffi::{AsyncEvent, CqInit, PostMode, QpCap, QpInit, QueuePair, SrqInit, Timestamps};
use rdma_sys::ibv_event_type as raw;

#[test]
fn events_name_their_object_and_are_acknowledged() {
    let all = All::new(PostMode::Classic).unwrap();
    assert_eq!(all.context.next_event(), Ok(None));
    let cq: CqId = all.cq.handle().id();
    let srq = all.srq.id();
    let qp_num = QP_NUM;
    let port = 2;
    let table = [
        (raw::IBV_EVENT_CQ_ERR, "cq", AsyncEvent::CqError(cq)),
        (raw::IBV_EVENT_QP_FATAL, "qp", AsyncEvent::QpFatal { qp_num }),
        (raw::IBV_EVENT_QP_REQ_ERR, "qp", AsyncEvent::QpRequestError { qp_num }),
        (raw::IBV_EVENT_QP_ACCESS_ERR, "qp", AsyncEvent::QpAccessError { qp_num }),
        (raw::IBV_EVENT_COMM_EST, "qp", AsyncEvent::CommunicationEstablished { qp_num }),
        (raw::IBV_EVENT_SQ_DRAINED, "qp", AsyncEvent::SqDrained { qp_num }),
        (raw::IBV_EVENT_PATH_MIG, "qp", AsyncEvent::PathMigrated { qp_num }),
        (raw::IBV_EVENT_PATH_MIG_ERR, "qp", AsyncEvent::PathMigrationFailed { qp_num }),
        (raw::IBV_EVENT_DEVICE_FATAL, "port", AsyncEvent::DeviceFatal),
        (raw::IBV_EVENT_PORT_ACTIVE, "port", AsyncEvent::PortActive { port }),
        (raw::IBV_EVENT_PORT_ERR, "port", AsyncEvent::PortError { port }),
        (raw::IBV_EVENT_LID_CHANGE, "port", AsyncEvent::LidChange { port }),
        (raw::IBV_EVENT_PKEY_CHANGE, "port", AsyncEvent::PkeyChange { port }),
        (raw::IBV_EVENT_SM_CHANGE, "port", AsyncEvent::SmChange { port }),
        (raw::IBV_EVENT_SRQ_ERR, "srq", AsyncEvent::SrqError(srq)),
        (raw::IBV_EVENT_SRQ_LIMIT_REACHED, "srq", AsyncEvent::SrqLimitReached(srq)),
        (raw::IBV_EVENT_QP_LAST_WQE_REACHED, "qp", AsyncEvent::LastWqeReached { qp_num }),
        (raw::IBV_EVENT_CLIENT_REREGISTER, "port", AsyncEvent::ClientReregister { port }),
        (raw::IBV_EVENT_GID_CHANGE, "port", AsyncEvent::GidChange { port }),
    ];
    for (read, (number, kind, event)) in (1..).zip(table) {
        queue_event(number as u32, kind);
        assert_eq!(all.context.next_event(), Ok(Some(event)));
        assert_eq!(with(|state| state.acknowledged), read);
    }
    // In rdma-core 62 it follows this one, the last event in the header of the bindings.
    queue_event(raw::IBV_EVENT_WQ_FATAL as u32 + 1, "port");
    assert_eq!(all.context.next_event(), Ok(Some(AsyncEvent::DeviceSpeedChange)));
    // Events of a newer kernel.
    for number in [21, 99] {
        queue_event(number, "port");
        assert_eq!(all.context.next_event(), Ok(Some(AsyncEvent::Other(number))));
    }
    fail("ibv_get_async_event", libc::EIO);
    let error = all.context.next_event().map_err(|error| (error.call, error.errno));
    assert_eq!(error, Err(("ibv_get_async_event", libc::EIO)));
}

#[test]
fn events_return_the_context_of_their_object() {
    for (post_mode, is_extended) in [(PostMode::Classic, false), (PostMode::Extended, true)] {
        let (context, pd, _) = open();
        let channel = context.create_channel().unwrap();
        let init = CqInit { channel: Some(&channel), user_context: 11, ..CqInit::new(8) };
        let mut classic = None;
        let mut extended = None;
        let cq = if is_extended {
            let cq = context.create_extended_cq(&init, Timestamps::empty()).unwrap();
            extended.insert(cq).handle()
        } else {
            classic.insert(context.create_cq(&init).unwrap()).handle()
        };
        let srq = pd.create_srq(&SrqInit { user_context: 12, ..SrqInit::new(8) }).unwrap();
        let init = QpInit { post_mode, user_context: 13, ..QpInit::new(cq, QpCap::default()) };
        let qp: QueuePair = pd.create_qp(&init).unwrap();
        assert_eq!((cq.user_context(), srq.user_context(), qp.user_context()), (11, 12, 13));
        let qp_num = QP_NUM;
        for (number, kind, event) in [
            (raw::IBV_EVENT_CQ_ERR, "cq", (AsyncEvent::CqError(cq.id()), 11)),
            (raw::IBV_EVENT_SRQ_ERR, "srq", (AsyncEvent::SrqError(srq.id()), 12)),
            (raw::IBV_EVENT_QP_FATAL, "qp", (AsyncEvent::QpFatal { qp_num }, 13)),
            (raw::IBV_EVENT_PORT_ERR, "port", (AsyncEvent::PortError { port: 2 }, 0)),
        ] {
            queue_event(number as u32, kind);
            assert_eq!(context.next_event_and_user_context(), Ok(Some(event)));
        }
        queue_cq_event();
        assert_eq!(channel.next_event_and_user_context(), Ok(Some((cq.id(), 11))));
    }
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
