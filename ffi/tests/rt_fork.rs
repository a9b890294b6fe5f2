//! A fork of a process with verbs objects, on the fake library: the objects are the parent's.

#[path = "fake_driver/fake/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the other test program uses the rest")]
mod fake;
#[path = "fake_driver/fixture.rs"]
#[allow(dead_code, reason = "as above")]
mod fixture;
#[path = "../../std-shim/process/tests/in_fork/mod.rs"]
mod in_fork;

use fake::{alive, calls_of, violations, with};
use fixture::All;
use in_fork::in_fork;
use polyrail_core::hardware::{
    CommitError, CompletionQueue as _, QueuePair as _, ReceiveQueue as _, RecvBatch as _, Refusal,
    SendBatch as _,
};
use polyrail_core::verbs::{AccessFlags, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge};
use polyrail_ffi::{
    Argument, CloseError, CqInit, ModifyError, PostMode, QpCap, QpInit, SrqInit, ToErr, VerbsError,
};
use std::mem::MaybeUninit;

/// The calls that reached the library.
fn made() -> usize {
    with(|state| state.calls.len())
}

/// Refused before the library, with words.
#[track_caller]
fn forked<T>(result: Result<T, VerbsError>, owner: u32) {
    let error = result.err().expect("it is the parent's");
    assert_eq!((error.errno, error.argument), (libc::EPERM, Argument::Process(owner)));
    let text = error.to_string();
    assert!(text.contains("this process is a fork of that one"), "{text}");
}

fn write() -> SendRequest {
    SendRequest {
        wr_id: 1,
        opcode: Opcode::RdmaWrite,
        flags: SendFlags::SIGNALED,
        imm: Imm::default(),
        sge: Sge::EMPTY,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
    }
}

#[test]
fn a_child_destroys_nothing_and_no_call_reaches_the_driver() {
    for post_mode in [PostMode::Classic, PostMode::Extended] {
        let mut all = Some(All::new(post_mode).unwrap());
        let before = alive();
        let owner = std::process::id();
        // As if the parent had been posting.
        std::mem::forget(all.as_mut().unwrap().qp.start_send());
        in_fork(|| {
            let calls = made();
            let mut all = all.take().unwrap();
            let All { context, channel, pd, cq, srq, qp, mr, .. } = &mut all;
            forked(context.alloc_pd(), owner);
            forked(context.query_port(1), owner);
            forked(context.next_event(), owner);
            forked(context.create_cq(&CqInit::new(8)), owner);
            forked(context.create_channel(), owner);
            forked(context.gid_table(), owner);
            forked(channel.next_event(), owner);
            forked(cq.handle().arm(false), owner);
            forked(srq.set_limit(1), owner);
            forked(pd.create_srq(&SrqInit::new(8)), owner);
            forked(pd.create_qp::<polyrail_ffi::Rc>(&QpInit::new(cq, QpCap::default())), owner);
            // SAFETY: it is refused.
            forked(unsafe { pd.register(std::ptr::null_mut(), 1, AccessFlags::empty()) }, owner);
            forked(qp.query(), owner);
            let Err(ModifyError::Verbs(error)) = qp.modify(&ToErr) else { panic!("modified") };
            forked(Err::<(), _>(error), owner);
            let refused = Err(CommitError { accepted: 0, refusal: Refusal::Driver(libc::EPERM) });
            let mut batch = qp.start_send();
            batch.add(&write());
            assert_eq!(batch.commit(), refused);
            let mut batch = srq.start_recv();
            batch.add(&RecvRequest { wr_id: 1, sge: Sge::EMPTY });
            assert_eq!(batch.commit(), refused);
            assert_eq!(qp.enter_error(), Err(Refusal::Driver(libc::EPERM)));
            assert_eq!(qp.last_wqe_reached(), Err(Refusal::Driver(libc::EPERM)));
            let error = cq.poll(&mut [MaybeUninit::uninit()]).expect_err("it is the parent's");
            let text = VerbsError::from(error).to_string();
            assert!(text.contains("this process is a fork"), "{text}");
            let lkey = mr.lkey();
            let All { context, channel, pd, cq, srq, qp, ah, mr } = all;
            forked(qp.close(), owner);
            forked(mr.close(), owner);
            drop((ah, cq, srq, pd, lkey));
            let Err(CloseError::Verbs(error)) = channel.close() else { panic!("closed") };
            forked(Err::<(), _>(error), owner);
            drop(context);
            assert_eq!((made(), alive()), (calls, before));
            // What it makes is its own.
            drop(All::new(post_mode).unwrap());
            assert_eq!(calls_of("ibv_destroy_qp"), 1);
        });
        let All { context, channel, pd, cq, srq, qp, ah, mr } = all.unwrap();
        qp.close().unwrap();
        drop((ah, mr, cq, channel, srq, pd, context));
        assert_eq!((alive(), violations()), (vec![], vec![]));
        with(|state| state.calls.clear());
    }
}
