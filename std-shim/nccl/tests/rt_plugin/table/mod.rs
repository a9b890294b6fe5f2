//! A table of a network plugin, called as NCCL calls it, whatever its version. Declared here again,
//! from the public headers, so that a mistake in the plugin's own declarations is found.
//!
//! `devices` has the functions that are about the plugin and its devices, `connections` those that
//! make and close connections, and `messages` those that move messages over them.

mod connections;
mod devices;
mod messages;

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

pub(crate) type Status = c_int;
pub(crate) type Pointer = *mut c_void;

/// Bytes of a handle.
pub(crate) const HANDLE: usize = 128;

pub(crate) const SYSTEM: Status = 2;
pub(crate) const INVALID_ARGUMENT: Status = 4;
pub(crate) const INVALID_USAGE: Status = 5;
pub(crate) const INTERNAL: Status = 3;
pub(crate) const REMOTE: Status = 6;

/// Places of functions, behind the name.
pub(crate) mod place {
    pub(crate) const INIT: usize = 1;
    pub(crate) const DEVICES: usize = 2;
    pub(crate) const GET_PROPERTIES: usize = 3;
    pub(crate) const LISTEN: usize = 4;
    pub(crate) const CONNECT: usize = 5;
    pub(crate) const ACCEPT: usize = 6;
    pub(crate) const REG_MR: usize = 7;
    pub(crate) const REG_MR_DMA_BUF: usize = 8;
    pub(crate) const DEREG_MR: usize = 9;
    pub(crate) const ISEND: usize = 10;
    pub(crate) const IRECV: usize = 11;
    pub(crate) const IFLUSH: usize = 12;
    pub(crate) const TEST: usize = 13;
    pub(crate) const CLOSE_SEND: usize = 14;
    pub(crate) const CLOSE_RECV: usize = 15;
    pub(crate) const CLOSE_LISTEN: usize = 16;
    pub(crate) const MAKE_V_DEVICE: usize = 19;
    pub(crate) const FINALIZE: usize = 20;
}

/// NCCL's logger. The real one takes any number of arguments; this plugin passes one text.
pub(crate) type Logger =
    extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

/// A table, and which version it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) functions: *const *const c_void,
    pub(crate) version: u32,
}

// SAFETY: functions that may be called from any thread.
unsafe impl Send for Table {}
// SAFETY: likewise.
unsafe impl Sync for Table {}

/// The properties of a device that tests check.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Properties {
    pub(crate) name: String,
    pub(crate) pci_path: Option<String>,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) reg_is_global: c_int,
    pub(crate) force_flush: c_int,
    pub(crate) speed: c_int,
    pub(crate) port: c_int,
    pub(crate) latency: f32,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) net_device_type: c_int,
    /// NICs that it is made of; empty before version 9.
    pub(crate) parts: Vec<c_int>,
    pub(crate) max_p2p_bytes: usize,
    /// Rail and plane; -1 before version 12.
    pub(crate) rail_ids: [i16; 2],
}

/// Calls the function in a place with these arguments, each with the type that the headers give it.
macro_rules! call {
    ($table:expr, $place:ident, $($argument:expr => $type:ty),* $(,)?) => {{
        // SAFETY: the headers declare the function with this type.
        let function = unsafe {
            std::mem::transmute::<
                *const std::ffi::c_void,
                unsafe extern "C" fn($($type),*) -> $crate::table::Status,
            >(
                *$table.functions.add($crate::table::place::$place),
            )
        };
        // SAFETY: as NCCL calls it, or, where a test breaks the rules, as it is to be refused.
        unsafe { function($($argument),*) }
    }};
}

pub(crate) use call;

impl Table {
    /// # Safety
    ///
    /// It is a table of this version, for good.
    pub(crate) unsafe fn new(functions: *const c_void, version: u32) -> Self {
        Self { functions: functions.cast(), version }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        // SAFETY: the first member is a text that stays.
        unsafe { CStr::from_ptr((*self.functions).cast()) }
    }

    pub(crate) const fn has_contexts(&self) -> bool {
        self.version >= 11
    }
}
