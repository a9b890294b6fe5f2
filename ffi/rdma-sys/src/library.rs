//! libibverbs, loaded at run time: a program that can use real NICs also starts where the library
//! is not installed, and reports that it is missing.

use crate::verbs::{
    _compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context,
    ibv_cq, ibv_device, ibv_device_attr, ibv_gid_entry, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr,
    ibv_qp_ex, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};
use once_cell::race::OnceBox;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The library's name, with the version of its binary interface.
const NAME: &CStr = c"libibverbs.so.1";

/// Looks a function up by its name; returns null if it is missing.
pub type Find<'f> = &'f dyn Fn(&CStr) -> *mut c_void;

/// Without a lock, which a fork while another thread loads the library would leave locked.
static LIBRARY: OnceBox<Result<Library, String>> = OnceBox::new();

/// Loads the library, unless an earlier call did.
///
/// # Errors
///
/// The library is not installed, or lacks a function; the text is the dynamic linker's.
pub fn load() -> Result<(), &'static str> {
    LIBRARY.get_or_init(|| Box::new(open())).as_ref().map(|_| ()).map_err(String::as_str)
}

/// Takes the functions from `find` instead of the library, for tests. Does nothing if the functions
/// were loaded already.
///
/// # Safety
///
/// For each name, `find` returns null or a function with the header's signature. The function stays
/// valid until the process ends.
pub unsafe fn load_from(find: Find<'_>) {
    // SAFETY: guaranteed by the caller.
    LIBRARY.get_or_init(|| Box::new(unsafe { Library::new(find) }));
}

fn open() -> Result<Library, String> {
    // SAFETY: a constant name. The library's constructors are the ones that would run at program
    // start if the library were linked.
    let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(why());
    }
    // SAFETY: the handle is never closed.
    let find = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: the library exports its functions with the signatures of its header.
    unsafe { Library::new(&find) }
}

/// Returns the dynamic linker's message about its last failure.
fn why() -> String {
    // SAFETY: null, or a text that lives until this thread's next call of the dynamic linker.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{}: no reason given", NAME.to_string_lossy());
    }
    // SAFETY: not null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The functions as the header declares them, for comparison only: a call would make the program
/// link the library.
#[allow(unreachable_pub, dead_code, missing_docs, reason = "generated")]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, reason = "generated")]
mod header {
    use crate::verbs::*;
    include!("generated/functions.rs");

    // Newer than the header that bindgen translated.
    unsafe extern "C" {
        /// rdma-core 62, 100 Mbit/s.
        pub fn ibv_query_port_speed(
            context: *mut ibv_context,
            port_num: u32,
            port_speed: *mut u64,
        ) -> ::std::os::raw::c_int;
    }
}

/// A function's name as a C string.
macro_rules! name {
    ($name:ident) => {{
        let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
        name.expect("one zero, at the end")
    }};
}

/// Defines the functions and the table that holds them. Functions marked `newer` may be missing.
macro_rules! functions {
    (
        $(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*
        $(newer fn $newer:ident($($its:ident: $newer_kind:ty),*) -> $newer_result:ty;)*
    ) => {
        struct Library {
            $($name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)*
            $($newer: Option<unsafe extern "C" fn($($newer_kind),*) -> $newer_result>,)*
        }

        impl Library {
            /// # Safety
            ///
            /// As [`load_from`].
            unsafe fn new(find: Find<'_>) -> Result<Self, String> {
                let needed = |name: &CStr| {
                    let found = find(name);
                    let library = NAME.to_string_lossy();
                    let name = name.to_string_lossy();
                    let lacking = || format!("{library}: it is too old and lacks {name}");
                    (!found.is_null()).then_some(found).ok_or_else(lacking)
                };
                $(let $name = needed(name!($name))?;)*
                $(let $newer = find(name!($newer));)*
                // SAFETY: guaranteed by the caller; a null pointer is `None`.
                unsafe { Ok(Self {
                    $($name: std::mem::transmute::<
                        *mut c_void,
                        unsafe extern "C" fn($($kind),*) $(-> $result)?,
                    >($name),)*
                    $($newer: std::mem::transmute::<
                        *mut c_void,
                        Option<unsafe extern "C" fn($($newer_kind),*) -> $newer_result>,
                    >($newer),)*
                }) }
            }
        }

        // Compile-time check: the signatures are the header's.
        $(const _: unsafe extern "C" fn($($kind),*) $(-> $result)? = header::$name;)*
        $(const _: unsafe extern "C" fn($($newer_kind),*) -> $newer_result = header::$newer;)*

        $(
            /// Calls the library's function of this name; returns `None` if the library lacks it.
            ///
            /// # Panics
            ///
            /// If the library cannot be loaded; [`load`] returns the reason.
            ///
            /// # Safety
            ///
            /// As in C.
            pub unsafe fn $newer($($its: $newer_kind),*) -> Option<$newer_result> {
                match LIBRARY.get_or_init(|| Box::new(open())) {
                    // SAFETY: guaranteed by the caller.
                    Ok(library) => library.$newer.map(|function| unsafe { function($($its),*) }),
                    Err(why) => panic!("{}: {why}", stringify!($newer)),
                }
            }
        )*

        $(
            /// Calls the library's function of this name.
            ///
            /// # Panics
            ///
            /// If the library cannot be loaded; [`load`] returns the reason.
            ///
            /// # Safety
            ///
            /// As in C.
            pub unsafe fn $name($($argument: $kind),*) $(-> $result)? {
                match LIBRARY.get_or_init(|| Box::new(open())) {
                    // SAFETY: guaranteed by the caller.
                    Ok(library) => unsafe { (library.$name)($($argument),*) },
                    Err(why) => panic!("{}: {why}", stringify!($name)),
                }
            }
        )*
    };
}

functions! {
    fn _ibv_query_gid_ex(context: *mut ibv_context, port_num: u32, gid_index: u32,
        entry: *mut ibv_gid_entry, flags: u32, entry_size: usize) -> c_int;
    fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry,
        max_entries: usize, flags: u32, entry_size: usize) -> isize;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void,
        channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
    fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_fork_init() -> c_int;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void) -> c_int;
    fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int,
        init: *mut ibv_qp_init_attr) -> c_int;
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64,
        access: c_uint) -> *mut ibv_mr;
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    newer fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int,
        access: c_int) -> *mut ibv_mr;
    newer fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32,
        port_speed: *mut u64) -> c_int;
}
