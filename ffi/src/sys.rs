//! `errno`, and the header's inline functions that look up an operation in `struct verbs_context`.

use rdma_sys::{
    ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_modify_cq_attr,
    ibv_port_attr, ibv_qp, ibv_qp_init_attr_ex, verbs_context,
};
use std::mem::offset_of;
use std::ptr;

/// Returns the calling thread's `errno`.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Returns the errno of a failed call from its return value: verbs functions return the errno, some
/// providers return it negated, and the oldest convention is -1 with `errno` set.
pub(crate) fn errno_of(returned: libc::c_int) -> i32 {
    match returned {
        -1 => errno(),
        code => code.saturating_abs(),
    }
}

fn set_errno(errno: i32) {
    // SAFETY: the C library returns the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = errno }
}

/// `verbs_get_ctx_op` of `infiniband/verbs.h`: looks an operation up in the extended part of a
/// context. Returns `None` if the context has no extended part, if that part is too short, or if
/// the driver does not have the operation. The struct grows at its front, so older libraries lack
/// the first fields.
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

/// `struct ibv_port_attr` as libraries know it that report speeds from XDR on. Older ones write the
/// part that they know; [`query_port`] zeroes the rest.
#[repr(C)]
pub(crate) struct PortAttr {
    pub(crate) known: ibv_port_attr,
    /// The speed of a lane where `active_speed` has too few bits for its code, else 0.
    pub(crate) active_speed_ex: u32,
}

// As `infiniband/verbs.h` of rdma-core places it.
const _: () = assert!(offset_of!(PortAttr, active_speed_ex) == 52);

/// `ibv_query_port`; zeroes fields that an old library does not write.
///
/// # Safety
///
/// The context is open.
pub(crate) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut PortAttr,
) -> libc::c_int {
    // SAFETY: guaranteed by the caller; the struct is plain numbers, and the part that old
    // libraries know comes first.
    unsafe {
        attr.write_bytes(0, 1);
        match operation!(context, query_port) {
            Some(query) => query(context, port, attr.cast(), size_of::<PortAttr>()),
            None => rdma_sys::ibv_query_port(context, port, attr.cast()),
        }
    }
}

/// `ibv_query_device_ex`, which returns EOPNOTSUPP where the header would fall back to
/// `ibv_query_device`.
///
/// # Safety
///
/// The context is open.
pub(crate) unsafe fn query_device_ex(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr_ex,
) -> libc::c_int {
    // SAFETY: guaranteed by the caller.
    match unsafe { operation!(context, query_device_ex) } {
        // SAFETY: as above; the query has no input, so its argument is null.
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
/// The context is open, and the objects that the attributes name are alive.
pub(crate) unsafe fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: guaranteed by the caller.
    match unsafe { operation!(context, create_cq_ex) } {
        // SAFETY: as above.
        Some(create) => unsafe { create(context, attr) },
        None => {
            set_errno(libc::EOPNOTSUPP);
            ptr::null_mut()
        }
    }
}

/// `ibv_create_qp_ex`, for attributes that only the extended call supports.
///
/// # Safety
///
/// The context is open, and the objects that the attributes name are alive.
pub(crate) unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: guaranteed by the caller.
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
        // SAFETY: no memory is involved; closing -1 only sets errno.
        let returned = unsafe { libc::close(-1) };
        assert_eq!(errno_of(returned), libc::EBADF);
    }
}
