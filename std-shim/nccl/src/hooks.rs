//! Functions for tests.

use crate::devices::inject;
use crate::guard::guard;
use crate::plugin;
use polyrail::nic::Fault;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Duration;

/// Injects a fault into a software NIC after it has carried this many more bytes, or at once for 0.
/// Returns 0 if the NIC and the fault exist.
///
/// # Safety
///
/// `name` is a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn polyrail_nccl_test_fault(
    name: *const c_char,
    after_bytes: u64,
    fault: c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let fault = match fault {
        0 => Fault::LinkDown,
        1 => Fault::LinkUp,
        2 => Fault::DeviceGone,
        3 => Fault::LoseAcks(true),
        4 => Fault::LoseAcks(false),
        5 => Fault::Silent(true),
        6 => Fault::Silent(false),
        7 => Fault::DropArriving(true),
        8 => Fault::RefuseRtr { transitions: 3 },
        9 => Fault::RefuseRtr { transitions: u32::MAX },
        10 => Fault::RefuseRtr { transitions: 0 },
        11 => Fault::SearchPaths(Duration::from_secs(4)),
        12 => Fault::SearchPaths(Duration::ZERO),
        _ => return -1,
    };
    if inject(&name, after_bytes, fault) { 0 } else { -1 }
}

/// Makes the plugin panic in a call with this connection, without the panic message, which would
/// look like a failed test.
#[unsafe(no_mangle)]
extern "C" fn polyrail_nccl_test_panic(connection: *mut c_void) -> c_int {
    guard("a test", || {
        plugin::with_connection(connection, |_| -> Result<(), _> {
            std::panic::resume_unwind(Box::new("requested by a test"))
        })
    })
}
