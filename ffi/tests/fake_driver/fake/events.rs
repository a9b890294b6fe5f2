//! Asynchronous and completion events.

use super::objects::exported;
use super::{call, set_errno, with};
use rdma_sys::*;
use std::ffi::{c_int, c_void};

/// An asynchronous event: its number, and the kind of object that it names. There must be one
/// object of that kind.
pub(super) struct Event {
    number: u32,
    element: u64,
}

/// Returns the only object of a kind; 0 if there is none.
fn only(kind: &str) -> usize {
    with(|state| {
        state.objects.iter().find(|(_, object)| object.kind == kind).map_or(0, |(&at, _)| at)
    })
}

/// Queues an event that names the only object of `kind`, or port 2 if there is none.
pub(crate) fn queue_event(number: u32, kind: &str) {
    let element = if kind == "port" { 2 } else { only(kind) as u64 };
    with(|state| state.events.push(Event { number, element }));
}

/// Queues a completion event of the only completion queue.
pub(crate) fn queue_cq_event() {
    let cq = only("cq");
    with(|state| state.cq_events.push(cq));
}

exported! {
    fn ibv_get_async_event(_context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        let errno = call("ibv_get_async_event");
        let next = with(|state| (!state.events.is_empty()).then(|| state.events.remove(0)));
        let Some(Event { number, element }) = next.filter(|_| errno == 0) else {
            set_errno(if errno == 0 { libc::EAGAIN } else { errno });
            return -1;
        };
        (&raw mut (*event).event_type).cast::<u32>().write(number);
        (&raw mut (*event).element).cast::<u64>().write(element);
        0
    }

    fn ibv_ack_async_event(_event: *mut ibv_async_event) {
        with(|state| state.acknowledged += 1);
    }

    fn ibv_get_cq_event(
        _channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void
    ) -> c_int {
        let errno = call("ibv_get_cq_event");
        let next = with(|state| (!state.cq_events.is_empty()).then(|| state.cq_events.remove(0)));
        let Some(at) = next.filter(|_| errno == 0) else {
            set_errno(if errno == 0 { libc::EAGAIN } else { errno });
            return -1;
        };
        *cq = std::ptr::with_exposed_provenance_mut(at);
        *cq_context = (**cq).cq_context;
        0
    }

    fn ibv_ack_cq_events(_cq: *mut ibv_cq, count: u32) {
        with(|state| state.acknowledged += count);
    }
}
