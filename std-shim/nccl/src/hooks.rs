//! What only tests call.

use crate::devices::inject;
use crate::guard::guard;
use crate::plugin;
use polyrail::nic::Fault;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Something happens to a software NIC when it has carried so many more bytes, at once if that is 0; returns 0 if
/// there is such a NIC and such a fault.
///
/// # Safety
///
/// `name` is a text of C.
#[unsafe(no_mangle)]
unsafe extern "C" fn polyrail_nccl_test_fault(
    name: *const c_char,
    after_bytes: u64,
    fault: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let fault = match fault {
        0 => Fault::LinkDown,
        1 => Fault::LinkUp,
        2 => Fault::DeviceGone,
        3 => Fault::LoseAcks(true),
        4 => Fault::LoseAcks(false),
        5 => Fault::Silent(true),
        6 => Fault::Silent(false),
        _ => return -1,
    };
    if inject(&name, after_bytes, fault) { 0 } else { -1 }
}

/// The plugin panics while it has this connection, and says nothing of it: others would take that for a failed test.
#[unsafe(no_mangle)]
extern "C" fn polyrail_nccl_test_panic(connection: *mut c_void) -> c_int {
    guard("a test", || {
        plugin::with_connection(connection, |_| -> Result<(), _> {
            std::panic::resume_unwind(Box::new("as a test wants it"))
        })
    })
}
