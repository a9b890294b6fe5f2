//! The functions of the tables. Each only converts the arguments of C into those of the plugin.
//!
//! All of them are `unsafe`: the rules of NCCL's interface are their contract. Pointers are null,
//! which is refused, or valid for the types in the headers. Handles may be any value.

use crate::abi::{
    CommConfig, Logger, MAX_REQUESTS, Merged, OPTIONAL_COMPLETION, PTR_CUDA, PTR_HOST, Profiler,
    Status,
};
use crate::comm::{Buffer, Connection, Role};
use crate::guard::{Refusal, guard};
use crate::plugin::{self, Scope};
use crate::registering::{register, register_dma_buf};
use arrayvec::ArrayVec;
use polyrail::p2p::{MAX_BUFFERS, SLOTS};
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::slice;

/// A connection has room for all requests that NCCL may have in progress.
const _: () = assert!(MAX_REQUESTS <= SLOTS);

/// Writes a result for the caller.
///
/// # Safety
///
/// The pointer is null or valid for writes.
pub(crate) unsafe fn give<T>(to: *mut T, what: &str, value: T) -> Result<(), Refusal> {
    check(to, what)?;
    // SAFETY: guaranteed by the caller.
    unsafe { to.write(value) };
    Ok(())
}

#[inline]
fn check<T>(pointer: *const T, what: &str) -> Result<(), Refusal> {
    if pointer.is_null() { Err(Refusal::argument(format!("{what} is null"))) } else { Ok(()) }
}

/// Returns an array of the caller.
///
/// # Safety
///
/// The pointer is null or valid for `count` elements.
unsafe fn array<'a, T>(from: *const T, count: usize, what: &str) -> Result<&'a [T], Refusal> {
    check(from, what)?;
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(from, count) })
}

/// Returns the number of buffers, if it is valid.
fn count(n: c_int) -> Result<usize, Refusal> {
    let count = usize::try_from(n).ok().filter(|count| (1..=MAX_BUFFERS).contains(count));
    count.ok_or_else(|| Refusal::argument(format!("{n} buffers: 1 to {MAX_BUFFERS} are possible")))
}

fn size(bytes: c_int) -> Result<usize, Refusal> {
    usize::try_from(bytes).map_err(|_| Refusal::argument(format!("{bytes} bytes")))
}

pub(crate) unsafe extern "C" fn init_v8(logger: Option<Logger>) -> Status {
    guard("init", || plugin::init(logger))
}

pub(crate) unsafe extern "C" fn init_v10(logger: Option<Logger>, _: Option<Profiler>) -> Status {
    guard("init", || plugin::init(logger))
}

pub(crate) unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _comm_id: u64,
    config: *const CommConfig,
    logger: Option<Logger>,
    _: Option<Profiler>,
) -> Status {
    guard("init", || {
        check(context, "the context")?;
        // SAFETY: null, or settings of a communicator.
        let config = unsafe { config.as_ref() }.copied();
        let made = plugin::init_context(logger, config)?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(context, "the context", made) }
    })
}

pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> Status {
    guard("finalize", || plugin::finalize(context))
}

pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> Status {
    guard("devices", || {
        let all = plugin::with_devices(|devices| Ok(devices.all().len()))?;
        // SAFETY: null, or to be written.
        unsafe { give(count, "the number of devices", all as c_int) }
    })
}

pub(crate) unsafe extern "C" fn make_v_device<const MOST: usize>(
    device: *mut c_int,
    merged: *const Merged<MOST>,
) -> Status {
    guard("makeVDevice", || {
        check(device, "the number of the device")?;
        check(merged, "the NICs")?;
        // SAFETY: it is not null, and points to the NICs to be merged.
        let Merged { count, devices } = unsafe { merged.read() };
        let parts = usize::try_from(count).ok().and_then(|count| devices.get(..count));
        let parts = parts
            .ok_or_else(|| Refusal::argument(format!("{count} NICs: 1 to {MOST} are possible")))?;
        let made = plugin::merge(parts)?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(device, "the number of the device", made) }
    })
}

/// # Safety
///
/// As NCCL's `listen`.
unsafe fn do_listen(
    scope: Scope,
    device: c_int,
    handle: *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    guard("listen", || {
        check(handle, "the handle")?;
        check(to, "the listening end")?;
        // SAFETY: the handle is not null, so it has 128 bytes.
        let made = unsafe { plugin::listen(scope, device, handle) }?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(to, "the listening end", made) }
    })
}

pub(crate) unsafe extern "C" fn listen(
    device: c_int,
    handle: *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_listen(Scope::Process, device, handle, to) }
}

pub(crate) unsafe extern "C" fn listen_in(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_listen(Scope::Context(context), device, handle, to) }
}

/// # Safety
///
/// As NCCL's `connect`.
unsafe fn do_connect(
    scope: Scope,
    (device, config): (c_int, *const CommConfig),
    handle: *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    guard("connect", || {
        check(handle, "the handle")?;
        check(to, "the connection")?;
        // SAFETY: it is not null, and to be written.
        unsafe { to.write(ptr::null_mut()) };
        // SAFETY: null, or settings of a communicator.
        let class =
            unsafe { config.as_ref() }.map_or(Ok(None), |config| plugin::traffic_class(*config))?;
        // SAFETY: the handle is not null, so it has 128 bytes.
        let made = unsafe { plugin::connect(scope, device, class, handle) }?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(to, "the connection", made) }
    })
}

pub(crate) unsafe extern "C" fn connect_plain(
    device: c_int,
    handle: *mut c_void,
    to: *mut *mut c_void,
    _offload: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_connect(Scope::Process, (device, ptr::null()), handle, to) }
}

pub(crate) unsafe extern "C" fn connect_with(
    device: c_int,
    config: *const CommConfig,
    handle: *mut c_void,
    to: *mut *mut c_void,
    _offload: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_connect(Scope::Process, (device, config), handle, to) }
}

pub(crate) unsafe extern "C" fn connect_in(
    context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    to: *mut *mut c_void,
    _offload: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_connect(Scope::Context(context), (device, ptr::null()), handle, to) }
}

pub(crate) unsafe extern "C" fn accept(
    listener: *mut c_void,
    to: *mut *mut c_void,
    _offload: *mut *mut c_void,
) -> Status {
    guard("accept", || {
        check(to, "the connection")?;
        // SAFETY: it is not null, and to be written.
        unsafe { to.write(ptr::null_mut()) };
        let made = plugin::accept(listener)?;
        // SAFETY: as before.
        unsafe { give(to, "the connection", made) }
    })
}

pub(crate) unsafe extern "C" fn reg_mr(
    connection: *mut c_void,
    data: *mut c_void,
    length: usize,
    kind: c_int,
    to: *mut *mut c_void,
) -> Status {
    guard("regMr", || {
        check(to, "the registration")?;
        let device = plugin::with_connection(connection, |connection| Ok(connection.device()))?;
        // SAFETY: NCCL keeps memory until it deregisters it.
        let registered = unsafe { register(&device, (data, length), kind) }?;
        let made = plugin::with_connection(connection, |connection| connection.keep(registered))?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(to, "the registration", made) }
    })
}

pub(crate) unsafe extern "C" fn reg_mr_dma_buf(
    connection: *mut c_void,
    data: *mut c_void,
    length: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    to: *mut *mut c_void,
) -> Status {
    guard("regMrDmaBuf", || {
        check(to, "the registration")?;
        if fd < 0 || (kind != PTR_CUDA && kind != PTR_HOST) {
            return Err(Refusal::argument(format!(
                "cannot register dma-buf {fd} as memory of kind {kind}"
            )));
        }
        // SAFETY: it is not -1, and open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let device = plugin::with_connection(connection, |connection| Ok(connection.device()))?;
        // SAFETY: NCCL keeps memory until it deregisters it.
        let registered = unsafe { register_dma_buf(&device, (data, length), (fd, offset)) }?;
        let made = plugin::with_connection(connection, |connection| connection.keep(registered))?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(to, "the registration", made) }
    })
}

pub(crate) unsafe extern "C" fn dereg_mr(connection: *mut c_void, memory: *mut c_void) -> Status {
    guard("deregMr", || {
        let memory =
            plugin::with_connection(connection, |connection| connection.give_back(memory))?;
        drop(memory);
        Ok(())
    })
}

/// # Safety
///
/// As NCCL's `isend`.
#[inline]
unsafe fn do_isend(
    connection: *mut c_void,
    buffer: Result<Buffer, Refusal>,
    to: *mut *mut c_void,
) -> Status {
    guard("isend", || {
        check(to, "the request")?;
        let buffer = buffer?;
        let made = plugin::request(connection, |connection| connection.isend(buffer))?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(to, "the request", made) }
    })
}

fn buffer(data: *mut c_void, length: usize, tag: c_int, memory: *mut c_void) -> Buffer {
    Buffer { addr: data.addr() as u64, length, tag, memory }
}

pub(crate) unsafe extern "C" fn isend_v8(
    connection: *mut c_void,
    data: *mut c_void,
    bytes: c_int,
    tag: c_int,
    memory: *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    let buffer = size(bytes).map(|length| buffer(data, length, tag, memory));
    // SAFETY: guaranteed by the caller.
    unsafe { do_isend(connection, buffer, to) }
}

pub(crate) unsafe extern "C" fn isend_v9(
    connection: *mut c_void,
    data: *mut c_void,
    length: usize,
    tag: c_int,
    memory: *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_isend(connection, Ok(buffer(data, length, tag, memory)), to) }
}

pub(crate) unsafe extern "C" fn isend_v10(
    connection: *mut c_void,
    data: *mut c_void,
    length: usize,
    tag: c_int,
    memory: *mut c_void,
    _profiled: *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_isend(connection, Ok(buffer(data, length, tag, memory)), to) }
}

/// # Safety
///
/// As NCCL's `irecv`, with sizes that `length` reads.
#[inline]
unsafe fn do_irecv<S: Copy>(
    connection: *mut c_void,
    n: c_int,
    (data, sizes, tags, memories): (*const *mut c_void, *const S, *const c_int, *const *mut c_void),
    length: fn(S) -> Result<usize, Refusal>,
    to: *mut *mut c_void,
) -> Status {
    guard("irecv", || {
        check(to, "the request")?;
        let count = count(n)?;
        // SAFETY: the arrays have `n` elements each.
        let (data, sizes, tags, memories) = unsafe {
            (
                array(data, count, "the list of buffers")?,
                array(sizes, count, "the list of sizes")?,
                array(tags, count, "the list of tags")?,
                array(memories, count, "the list of registrations")?,
            )
        };
        let mut buffers = ArrayVec::<Buffer, MAX_BUFFERS>::new();
        for at in 0..count {
            buffers.push(buffer(data[at], length(sizes[at])?, tags[at], memories[at]));
        }
        // SAFETY: it is not null; NCCL stores there whether it waits for the completion.
        let early = unsafe { to.read() }.addr() == OPTIONAL_COMPLETION;
        // SAFETY: it is not null, and to be written.
        unsafe { to.write(ptr::null_mut()) };
        let made = plugin::request(connection, |connection| connection.irecv(&buffers, early))?;
        // SAFETY: as before.
        unsafe { give(to, "the request", made) }
    })
}

pub(crate) unsafe extern "C" fn irecv_v8(
    connection: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const c_int,
    tags: *const c_int,
    memories: *const *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_irecv(connection, n, (data, sizes, tags, memories), size, to) }
}

pub(crate) unsafe extern "C" fn irecv_v9(
    connection: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const usize,
    tags: *const c_int,
    memories: *const *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_irecv(connection, n, (data, sizes, tags, memories), Ok, to) }
}

pub(crate) unsafe extern "C" fn irecv_v10(
    connection: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const usize,
    tags: *const c_int,
    memories: *const *mut c_void,
    _profiled: *const *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    // SAFETY: guaranteed by the caller.
    unsafe { do_irecv(connection, n, (data, sizes, tags, memories), Ok, to) }
}

pub(crate) unsafe extern "C" fn iflush(
    connection: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const c_int,
    memories: *const *mut c_void,
    to: *mut *mut c_void,
) -> Status {
    guard("iflush", || {
        check(to, "the request")?;
        let count = count(n)?;
        // SAFETY: the arrays have `n` elements each.
        let (data, sizes, memories) = unsafe {
            (
                array(data, count, "the list of buffers")?,
                array(sizes, count, "the list of sizes")?,
                array(memories, count, "the list of registrations")?,
            )
        };
        let mut buffers = ArrayVec::<Buffer, MAX_BUFFERS>::new();
        for at in 0..count {
            buffers.push(buffer(data[at], size(sizes[at])?, 0, memories[at]));
        }
        let made = plugin::request(connection, |connection| connection.iflush(&buffers))?;
        // SAFETY: it is not null, and to be written.
        unsafe { give(to, "the request", made) }
    })
}

pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Status {
    guard("test", || {
        check(done, "the answer")?;
        // SAFETY: it is not null, and to be written.
        unsafe { done.write(0) };
        let tell = |bytes: &[u32]| {
            if !sizes.is_null() {
                for (at, bytes) in bytes.iter().enumerate() {
                    // SAFETY: there is room for the size of every buffer of the request.
                    unsafe { sizes.add(at).write(c_int::try_from(*bytes).unwrap_or(c_int::MAX)) };
                }
            }
        };
        let test = |connection: &mut Connection, serial| connection.test(serial, tell);
        let is_done = plugin::with_request(request, test)?;
        // SAFETY: as before.
        unsafe { done.write(is_done.into()) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn close_send(connection: *mut c_void) -> Status {
    guard("closeSend", || plugin::close(Role::Sender, connection))
}

pub(crate) unsafe extern "C" fn close_recv(connection: *mut c_void) -> Status {
    guard("closeRecv", || plugin::close(Role::Receiver, connection))
}

pub(crate) unsafe extern "C" fn close_listen(listener: *mut c_void) -> Status {
    guard("closeListen", || plugin::close_listen(listener))
}
