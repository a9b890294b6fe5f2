//! What a driver refuses, and how it is reported.

use crate::fixture::{PORT, Rails};
use polyrail_core::verbs::AccessFlags;
use polyrail_ffi::{
    Argument, CloseError, CqInit, ModifyError, QpCap, QpInit, QpState, QueuePair, SrqInit,
    Timestamps, ToRts, VerbsError,
};
use polyrail_tests::behaviours::{End, Fixture, Side};
use std::os::fd::AsFd;

pub(super) fn a_transition_from_the_wrong_state_is_refused(rails: &Rails) {
    let side = Side::new(rails, End::Near, 0, None);
    let to_rts = ToRts { sq_psn: 0, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 };
    let argument = Argument::State(QpState::Rts);
    let error = VerbsError { call: "ibv_modify_qp", errno: libc::EINVAL, argument };
    assert_eq!(side.qp.modify(&to_rts), Err(ModifyError::Verbs(error)));
    assert!(error.hint().is_some_and(|hint| hint.contains("state")));
    assert_eq!(
        (side.qp.query().unwrap().state, side.qp.last_state()),
        (QpState::Init, QpState::Init)
    );
}

pub(super) fn memory_that_cannot_be_registered_is_refused(rails: &Rails) {
    let domain = rails.domain(End::Near, 0);
    let mut here = vec![0_u8; 4096];
    let unmapped = std::ptr::without_provenance_mut(4096);
    for (start, access, errnos) in [
        (unmapped, AccessFlags::LOCAL_WRITE, [libc::EFAULT, libc::ENOMEM]),
        (here.as_mut_ptr(), AccessFlags::REMOTE_WRITE, [libc::EINVAL; 2]),
    ] {
        // SAFETY: nothing is posted that could reach the memory.
        let error = unsafe { domain.register(start, 4096, access) }.unwrap_err();
        assert_eq!((error.call, error.argument), ("ibv_reg_mr", Argument::Number("length", 4096)));
        assert!(errnos.contains(&error.errno) && error.hint().is_some(), "{error}");
    }
}

pub(super) fn sizes_over_the_limits_are_refused(rails: &Rails) {
    let context = rails.context(End::Near, 0);
    let limits = context.attributes();
    let error = context.create_cq(&CqInit::new(limits.max_cqe + 1)).unwrap_err();
    assert_eq!((error.call, error.errno), ("ibv_create_cq", libc::EINVAL));
    assert!(error.hint().is_some_and(|hint| hint.contains("max_cqe")));
    let error =
        rails.domain(End::Near, 0).create_srq(&SrqInit::new(limits.max_srq_wr + 1)).unwrap_err();
    assert_eq!((error.call, error.errno), ("ibv_create_srq", libc::EINVAL));
    let cq = rails.create_cq(End::Near, 0, 8);
    let cap = QpCap { max_send_wr: limits.max_qp_wr + 1, ..QpCap::default() };
    let created = rails.domain(End::Near, 0).create_qp(&QpInit::new(&cq, cap));
    let error = created.map(|qp: QueuePair| qp.qp_num()).unwrap_err();
    let argument = Argument::Number("max_send_wr", u64::from(limits.max_qp_wr) + 1);
    assert_eq!(error, VerbsError { call: "ibv_create_qp", errno: libc::EINVAL, argument });
}

/// rxe has no dma-buf, no moderation and no clock.
pub(super) fn what_the_driver_does_not_know_is_refused(rails: &Rails) {
    let context = rails.context(End::Near, 0);
    let cq = rails.create_cq(End::Near, 0, 8);
    let unknown = |error: VerbsError| (error.call, error.errno, error.hint().is_some());
    let error = cq.handle().moderate(16, 100).unwrap_err();
    assert_eq!(unknown(error), ("ibv_modify_cq", libc::EOPNOTSUPP, true));
    let stamped = context.create_extended_cq(&CqInit::new(8), Timestamps::DEVICE);
    assert_eq!(unknown(stamped.unwrap_err()), ("ibv_create_cq_ex", libc::EOPNOTSUPP, true));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let access = AccessFlags::LOCAL_WRITE;
    // SAFETY: the file is not a dma-buf, so nothing is registered.
    let dmabuf =
        unsafe { rails.domain(End::Near, 0).register_dmabuf(file.as_fd(), 0, 4096, 0, access) };
    assert_eq!(unknown(dmabuf.unwrap_err()), ("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP, true));
    assert_eq!(context.query_pkey(PORT, 9999).map_err(|error| error.call), Err("ibv_query_pkey"));
}

pub(super) fn what_is_in_use_is_not_closed(rails: &Rails) {
    let side = Side::new(rails, End::Near, 0, None);
    assert_eq!(side.cq.close(), Err(CloseError::InUse));
    assert_eq!(side.qp.close(), Ok(()));
    let cq = rails.create_cq(End::Near, 0, 8);
    assert_eq!(cq.close(), Ok(()));
    let domain = rails.context(End::Near, 0).alloc_pd().unwrap();
    assert_eq!(domain.clone().close(), Err(CloseError::InUse));
    assert_eq!(domain.close(), Ok(()));
}
