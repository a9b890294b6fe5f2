//! A fork of a process with devices: it takes no lock, and its parent's objects refuse it.

#![cfg(not(miri))]

#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use in_fork::in_fork;
use polyrail_core::hardware::{
    CommitError, CompletionQueue as _, QueuePair as _, ReceiveQueue as _, RecvBatch as _, Refusal,
    SendBatch as _,
};
use polyrail_core::verbs::{AccessFlags, RecvRequest, Sge};
use polyrail_software_nic::{
    ConnectOptions, DeviceConfig, Fabric, Fault, ModifyError, NicError, Pages, QpCap, QpInit, When,
    connect_pair, errno,
};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Ends the other thread, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Forks again and again while another thread takes all locks that there are.
#[test]
fn a_child_is_refused_and_does_not_wait_for_locks_of_threads_that_it_does_not_have() {
    let fabric = Fabric::threaded();
    let device = fabric.create_device(DeviceConfig::named("nic"));
    let domain = device.alloc_pd().unwrap();
    let pages = Arc::new(Pages::new(4096).unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let cq = device.create_cq(16).unwrap();
                let [a, b] = [(); 2]
                    .map(|()| domain.create_qp(&QpInit::new(&cq, QpCap::default())).unwrap());
                connect_pair(&a, &b, &ConnectOptions::default()).unwrap();
                let region = domain.register_pages(&pages, AccessFlags::LOCAL_WRITE).unwrap();
                device.inject(When::Now, Fault::LinkUp);
                _ = device.next_event();
                drop((a, b, cq, region));
            }
        });
        let _ends = Ends(&is_over);
        let region = domain.register_pages(&pages, AccessFlags::LOCAL_WRITE).unwrap();
        let mut cq = device.create_cq(16).unwrap();
        let mut srq = domain.create_srq(16, 0).unwrap();
        let qp = domain.create_qp(&QpInit::new(&cq, QpCap::default())).unwrap();
        let mut kept = Some((region, qp));
        for _ in 0..200 {
            in_fork(|| {
                let (region, mut qp) = kept.take().unwrap();
                let refusal = Refusal::Driver(errno::EPERM);
                let refused = Err(CommitError { accepted: 0, refusal });
                assert!(matches!(device.create_cq(1), Err(NicError::Forked(_))));
                assert!(matches!(device.alloc_pd(), Err(NicError::Forked(_))));
                assert!(matches!(domain.create_srq(1, 0), Err(NicError::Forked(_))));
                let access = AccessFlags::LOCAL_WRITE;
                let registered = domain.register_pages(&pages, access);
                assert!(matches!(registered, Err(NicError::Forked(_))));
                let made = fabric.create_device(DeviceConfig::named("late"));
                assert!(matches!(made.alloc_pd(), Err(NicError::Forked(_))));
                assert!(matches!(qp.to_error(), Err(ModifyError::Forked(_))));
                assert_eq!(qp.enter_error(), Err(refusal));
                assert_eq!(qp.start_send().commit(), refused);
                for mut batch in [qp.start_recv(), srq.start_recv()] {
                    batch.add(&RecvRequest { wr_id: 1, sge: Sge::EMPTY });
                    assert_eq!(batch.commit(), refused);
                }
                assert_eq!(qp.outstanding_sends(), 0);
                let polled = cq.poll(&mut [MaybeUninit::uninit()]).map(<[_]>::len);
                assert_eq!(polled.map_err(|error| error.errno), Err(errno::EPERM));
                cq.req_notify(false);
                assert!(cq.resize(32).is_err() && !cq.take_event());
                assert_eq!((srq.clone().len(), fabric.steps()), (0, 0));
                device.inject(When::Now, Fault::DeviceGone);
                assert_eq!((device.next_event(), device.is_gone()), (None, false));
                drop((region, qp));
            });
        }
        // The parent goes on.
        let (_, qp) = kept.unwrap();
        qp.to_init(&ConnectOptions::default()).unwrap();
        assert!(cq.poll(&mut [MaybeUninit::uninit()]).is_ok_and(<[_]>::is_empty));
    });
}
