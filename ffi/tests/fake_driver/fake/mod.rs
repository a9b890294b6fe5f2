//! A fake libibverbs in place of the shared library ([`install`]). Calls fail on request. Objects
//! know their parents, and destroying a parent before its children is recorded as a violation.
//!
//! State is kept per thread, so that tests run concurrently; a thread of the crate that destroys an
//! object uses the state of the test that created it. Structs are the library's own, zeroed, with
//! the fields filled in that the crate reads.

#![allow(unsafe_op_in_unsafe_fn, reason = "the calls are unsafe throughout, as their C originals")]
#![allow(clippy::missing_safety_doc, reason = "the contracts are those of libibverbs")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "as above")]

mod events;
mod objects;
mod queues;

use rdma_sys::{ibv_ah_attr, ibv_context, ibv_odp_caps, ibv_qp_attr, ibv_qp_cap, ibv_srq_attr};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use events::{queue_cq_event, queue_event};
pub(crate) use objects::{GUID, QP_NUM, Registered, XDR};
pub(crate) use queues::{Posted, complete};

/// The device's clock at every completion.
pub(crate) const TICKS: u64 = 4711;

/// The wall clock at every completion, nanoseconds.
pub(crate) const WALL_CLOCK_NS: u64 = 1_700_000_000_000_000_000;

/// Calls of `ibv_fork_init` in this process.
pub(crate) static FORK_INITS: AtomicU32 = AtomicU32::new(0);

/// An existing object: its kind and its parents.
struct Object {
    kind: &'static str,
    parents: Vec<usize>,
}

#[derive(Default)]
pub(crate) struct State {
    objects: BTreeMap<usize, Object>,
    /// The call to fail, and its errno.
    pub(crate) failing: Option<(&'static str, i32)>,
    /// The vendor number that the device reports.
    pub(crate) vendor_id: u32,
    /// Calls in order.
    pub(crate) calls: Vec<&'static str>,
    /// Objects that were destroyed before their children.
    pub(crate) violations: Vec<String>,
    /// Requests that the device accepted.
    pub(crate) posted: Vec<Posted>,
    /// The buffers of every posted request, accepted or not: address, length, key.
    pub(crate) buffers: Vec<Vec<(u64, u32, u32)>>,
    /// Requests between `wr_start` and `wr_complete`.
    building: Vec<Posted>,
    /// The next post accepts this number of requests and returns this errno.
    pub(crate) refusing: Option<(usize, i32)>,
    completions: Vec<queues::Completed>,
    /// The error that polls return once the queued completions are taken.
    pub(crate) poll_error: Option<i32>,
    events: Vec<events::Event>,
    cq_events: Vec<usize>,
    /// Events and completion events that were acknowledged.
    pub(crate) acknowledged: u32,
    /// The attribute mask and the attributes of the last `ibv_modify_qp`.
    pub(crate) modified: Option<(u32, ibv_qp_attr)>,
    /// Requested capacities of the last queue pair.
    pub(crate) cap: Option<ibv_qp_cap>,
    /// Its `sq_sig_all`.
    pub(crate) sq_sig_all: libc::c_int,
    /// Requested capacities of the last shared receive queue.
    pub(crate) srq_attr: Option<ibv_srq_attr>,
    /// Arguments of the last registration.
    pub(crate) registered: Option<Registered>,
    /// `wc_flags` of the last extended completion queue.
    pub(crate) wc_flags: u64,
    /// Arguments of the last `ibv_modify_cq`: mask, count, period.
    pub(crate) moderated: Option<(u32, u16, u16)>,
    /// Codes of the speed and the width of ports on Ethernet; `None` if ports are InfiniBand's.
    pub(crate) ethernet: Option<(u8, u8)>,
    /// The speed that ports report, in units of 100 Mbit/s; `None` if the driver does not report
    /// it.
    pub(crate) port_speed: Option<u64>,
    /// On-demand paging capabilities that the device reports.
    pub(crate) odp_caps: Option<ibv_odp_caps>,
    /// The next transition to RTR searches for a path until this returns its errno.
    pub(crate) search: Option<Receiver<libc::c_int>>,
    /// Attributes of the last address handle.
    pub(crate) ah: Option<ibv_ah_attr>,
}

thread_local! {
    static STATE: RefCell<Arc<Mutex<State>>> = RefCell::default();
}

/// The state that each object belongs to.
static OWNERS: Mutex<BTreeMap<usize, Arc<Mutex<State>>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn with<T>(look: impl FnOnce(&mut State) -> T) -> T {
    let state = STATE.with_borrow(Arc::clone);
    look(&mut lock(&state))
}

/// Makes this thread use the state of the test that created an object.
fn join_owner(at: usize) {
    if let Some(owner) = lock(&OWNERS).get(&at).map(Arc::clone) {
        STATE.replace(owner);
    }
}

/// Makes a call fail from now on.
pub(crate) fn fail(call: &'static str, errno: i32) {
    with(|state| state.failing = Some((call, errno)));
}

/// Lets every call succeed again.
pub(crate) fn heal() {
    with(|state| state.failing = None);
}

/// Returns the kinds of existing objects.
pub(crate) fn alive() -> Vec<&'static str> {
    with(|state| state.objects.values().map(|object| object.kind).collect())
}

fn is_alive<T>(object: *mut T) -> bool {
    with(|state| state.objects.contains_key(&object.addr()))
}

pub(crate) fn violations() -> Vec<String> {
    with(|state| state.violations.clone())
}

pub(crate) fn calls_of(call: &str) -> usize {
    with(|state| state.calls.iter().filter(|&&made| made == call).count())
}

/// Records a call; returns the errno that it must fail with.
fn call(name: &'static str) -> i32 {
    with(|state| {
        state.calls.push(name);
        match state.failing {
            Some((failing, errno)) if failing == name => errno,
            _ => 0,
        }
    })
}

fn set_errno(errno: i32) {
    unsafe { *libc::__errno_location() = errno }
}

/// Directs all calls of the crate here, unless a call was made already.
pub(crate) fn install() {
    install_without("");
}

/// Like [`install`], with a library that lacks a function.
pub(crate) fn install_without(lacking: &str) {
    let find = |name: &CStr| {
        let name = name.to_str().expect("a name");
        if name == lacking {
            return std::ptr::null_mut();
        }
        let found = objects::find(name).or_else(|| events::find(name));
        found.unwrap_or_else(|| panic!("the fake library has no {name}"))
    };
    unsafe { rdma_sys::load_from(&find) }
}

/// Creates an object; returns null with errno set if the call must fail.
fn create<T>(name: &'static str, kind: &'static str, parents: &[usize], object: T) -> *mut T {
    let errno = call(name);
    if errno != 0 {
        set_errno(errno);
        return std::ptr::null_mut();
    }
    let object = Box::into_raw(Box::new(object));
    let parents = parents.iter().copied().filter(|&parent| parent != 0).collect();
    let at = object.expose_provenance();
    with(|state| state.objects.insert(at, Object { kind, parents }));
    lock(&OWNERS).insert(at, STATE.with_borrow(Arc::clone));
    object
}

/// Destroys an object, unless the call must fail or the object has children.
unsafe fn destroy<T>(name: &'static str, object: *mut T) -> i32 {
    let at = object.addr();
    join_owner(at);
    let errno = call(name);
    if errno != 0 {
        return errno;
    }
    let removed = with(|state| {
        let children = state.objects.values().filter(|child| child.parents.contains(&at));
        let children: Vec<_> = children.map(|child| child.kind).collect();
        let removed = state.objects.remove(&at);
        let kind = removed.as_ref().map_or("nothing", |object| object.kind);
        if removed.is_none() || !children.is_empty() {
            state.violations.push(format!("{name} of {kind} with {children:?}"));
        }
        removed
    });
    if removed.is_some() {
        lock(&OWNERS).remove(&at);
        drop(Box::from_raw(object));
    }
    0
}

/// The extended context around a context.
unsafe fn extended(context: *mut ibv_context) -> *mut rdma_sys::verbs_context {
    context.byte_sub(std::mem::offset_of!(rdma_sys::verbs_context, context)).cast()
}
