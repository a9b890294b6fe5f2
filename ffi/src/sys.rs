//! What rdma-sys 0.3 does not offer.
//!
//! The crate binds every exported function whose name begins with `ibv_` and rewrites the header's
//! inline functions in Rust. The GID table is read by inline functions over exported ones that
//! begin with an underscore, which its filter leaves out.

use rdma_sys::{ibv_context, ibv_gid_entry};

unsafe extern "C" {
    /// What `ibv_query_gid_table` of `infiniband/verbs.h` expands to: fills `entries` with the valid
    /// entries of all ports, and returns their number or a negative errno.
    pub(crate) fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> libc::ssize_t;

    /// What `ibv_query_gid_ex` of `infiniband/verbs.h` expands to.
    pub(crate) fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> libc::c_int;
}

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
