//! Errors, and the header's inline functions that look for an operation in `struct verbs_context`.

use rdma_sys::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_modify_cq_attr,
    ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, verbs_context,
};
use std::mem::offset_of;
use std::ptr;

/// The calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The errno that a failed call means by its return value. Verbs functions return it; some
/// providers return it negated, and the oldest convention is -1 with `errno` set.
pub(crate) fn errno_of(returned: libc::c_int) -> i32 {
    match returned {
        -1 => errno(),
        code => code.saturating_abs(),
    }
}

fn set_errno(errno: i32) {
    // SAFETY: the C library gives the address of this thread's variable.
    unsafe { *libc::__errno_location() = errno }
}

/// `verbs_get_ctx_op` of `infiniband/verbs.h`: the extended part of a context, if it has one that is
/// long enough for the operation and offers it. Older libraries make shorter ones, which lack the
/// front: the struct grows there.
macro_rules! operation {
    ($context:expr, $operation:ident) => {{
        let context: *mut ibv_context = $context;
        if (*context).abi_compat.addr() == usize::MAX {
            let extended =
                context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            let needed = size_of::<verbs_context>() - offset_of!(verbs_context, $operation);
            if (*extended).sz >= needed { (*extended).$operation } else { None }
        } else {
            None
        }
    }};
}

/// `ibv_query_port`; zeroes what an old library does not know.
///
/// # Safety
///
/// The context is open.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> libc::c_int {
    // SAFETY: the caller's promise; the struct is plain numbers, and its old part comes first.
    unsafe {
        attr.write_bytes(0, 1);
        match operation!(context, query_port) {
            Some(query) => query(context, port, attr, size_of::<ibv_port_attr>()),
            None => rdma_sys::ibv_query_port(context, port, attr.cast()),
        }
    }
}

/// `ibv_query_device_ex`; EOPNOTSUPP where the header would ask for less.
///
/// # Safety
///
/// The context is open.
pub(crate) unsafe fn query_device_ex(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr_ex,
) -> libc::c_int {
    // SAFETY: the caller's promise.
    match unsafe { operation!(context, query_device_ex) } {
        // SAFETY: as above; without further questions the second argument is null.
        Some(query) => unsafe {
            query(context, ptr::null(), attr, size_of::<ibv_device_attr_ex>())
        },
        None => libc::EOPNOTSUPP,
    }
}

/// `ibv_create_cq_ex`.
///
/// # Safety
///
/// The context is open, and so is what the attributes name.
pub(crate) unsafe fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller's promise.
    match unsafe { operation!(context, create_cq_ex) } {
        // SAFETY: as above.
        Some(create) => unsafe { create(context, attr) },
        None => {
            set_errno(libc::EOPNOTSUPP);
            ptr::null_mut()
        }
    }
}

/// `ibv_create_qp_ex`, for attributes that only the extended call knows.
///
/// # Safety
///
/// The context is open, and so is what the attributes name.
pub(crate) unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the caller's promise.
    match unsafe { operation!(context, create_qp_ex) } {
        // SAFETY: as above.
        Some(create) => unsafe { create(context, attr) },
        None => {
            set_errno(libc::EOPNOTSUPP);
            ptr::null_mut()
        }
    }
}

/// `ibv_modify_cq`.
///
/// # Safety
///
/// The completion queue is alive.
pub(crate) unsafe fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> libc::c_int {
    // SAFETY: the caller's promise.
    match unsafe { operation!((*cq).context, modify_cq) } {
        // SAFETY: as above.
        Some(modify) => unsafe { modify(cq, attr) },
        None => libc::EOPNOTSUPP,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convention_of_returning_an_errno_is_understood() {
        assert_eq!((errno_of(libc::ENOMEM), errno_of(-libc::ENOMEM)), (libc::ENOMEM, libc::ENOMEM));
        // SAFETY: the file descriptor is no pointer; closing -1 only sets errno.
        let returned = unsafe { libc::close(-1) };
        assert_eq!(errno_of(returned), libc::EBADF);
    }
}
