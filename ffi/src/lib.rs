//! Owners over libibverbs, and polyrail-core's hardware traits on them.
//!
//! Thin, and without policy: every type is one verbs object, destroyed when it is dropped, after
//! everything that was made from it. What a driver leaves to chance (a full queue, a send in a wrong
//! state, an inline request that is too long) has one answer here.
//!
//! # Reading order
//!
//! 1. `owned`: destroying, and failing to; `error`: what a failed call says;
//! 2. [`DeviceList`], [`Context`], [`PortAttributes`], [`GidEntry`]: what there is;
//! 3. [`ProtectionDomain`], [`MemoryRegion`]: memory;
//! 4. [`CompletionQueue`], [`ExtendedCompletionQueue`], [`CompletionChannel`]: completions;
//! 5. [`QueuePair`] with its transitions, [`SharedReceiveQueue`], [`AddressHandle`],
//!    [`MemoryWindow`];
//! 6. `chain`, `recv`, `qp::send`: the way of a request;
//! 7. [`AsyncEvent`]: what happens beside.
//!
//! # Threads
//!
//! Everything may move between threads. Posting to a queue and polling a completion queue need
//! `&mut`, so no queue is ever posted to twice at once; handles ([`Context`], [`ProtectionDomain`],
//! [`CqHandle`], [`CompletionChannel`]) may be used from many threads. No lock is taken but the
//! driver's own.
//!
//! # What the verbs manual has, and what exercises it
//!
//! Tests named *fake* are in `ffi/tests/fake_driver`, where every call can fail without a device;
//! those named *guest* run over the kernel's software RDMA driver (`tests/rxe/run.sh`), those named
//! *both* there and on the software NIC (`tests/src/behaviours`).
//!
//! | manual | here | test |
//! |---|---|---|
//! | 2.1 device list | [`DeviceList`], [`Device`] | guest `devices_say_who_they_are` |
//! | 2.2 open | [`Device::open`] | fake `every_failed_call_is_named_and_leaves_nothing` |
//! | 2.3 capabilities | [`DeviceAttributes`] | guest `devices_say_who_they_are` |
//! | 2.4 ports | [`Context::query_port`] | guest `ports_and_addresses_can_be_looked_up` |
//! | 2.5 GIDs, P_Keys | [`Context::gid_table`], [`Context::query_gid`], [`Context::query_pkey`] | guest `ports_and_addresses_can_be_looked_up` |
//! | 2.6 close | [`Context::close`] | fake `closing_reports_what_still_uses_an_object_and_what_a_driver_says` |
//! | 3 protection domains | [`ProtectionDomain`] | guest `what_is_in_use_is_not_closed` |
//! | 4 memory regions | [`ProtectionDomain::register`], [`ProtectionDomain::register_dmabuf`] | guest `memory_that_cannot_be_registered_is_refused`, `what_the_driver_does_not_know_is_refused` |
//! | 5.1 completion channels | [`CompletionChannel`] | guest `a_channel_wakes_for_a_queue_that_was_armed` |
//! | 5.2 completion queues | [`Context::create_cq`] | guest `an_overrun_raises_an_event`, `sizes_over_the_limits_are_refused` |
//! | 5.3 polling | [`CompletionQueue`] | fake `polling_goes_on_past_one_batch_up_to_the_room_there_is`, `failed_completions_are_whole_although_drivers_write_four_fields` |
//! | 5.4 notification | [`CqHandle::arm`] | guest `a_channel_can_wait_for_solicited_completions_only` |
//! | 5.5, 11.3 destruction order | owners keep what they were made from | fake `children_are_destroyed_before_their_parents_whatever_is_dropped_first` |
//! | 6.1 queue pairs | [`ProtectionDomain::create_qp`] with [`Rc`], [`Uc`], [`Ud`] | guest `an_unreliable_connection_carries_writes` |
//! | 6.2 transitions | [`QueuePair::modify`] | fake `transitions_give_what_the_manual_demands_and_no_more`, guest `a_drained_send_queue_tells_and_goes_on` |
//! | 6.3 query | [`QueuePair::query`] | guest `a_queue_pair_says_what_it_is_set_to` |
//! | 6.4 destroy | [`QueuePair::close`], drop | fake `a_drop_that_fails_tells_the_hook` |
//! | 7.1 SEND, WRITE, READ, atomics | [`QueuePair::start_send`] | both `sends_land_in_receives_in_order` and the others of `operations` |
//! | 7.1.5 inline | `SendFlags::INLINE` | both `inline_data_is_taken_while_posting` |
//! | 7.1.6 selective signaling | `SendFlags::SIGNALED` | both `one_completion_retires_an_unsignaled_chain` |
//! | 7.1.7 datagrams | [`QueuePair::start_datagrams`] | guest `datagrams_go_where_their_address_handle_says` |
//! | 7.1 `bad_wr` | `CommitError::accepted` | fake `a_driver_that_stops_half_way_has_taken_what_comes_before_bad_wr` |
//! | 7.1 LOCAL_INV, SEND_WITH_INV, BIND_MW | [`MemoryWindow`] | guest `a_window_opens_a_part_and_the_peer_closes_it`, `a_window_that_its_owner_invalidates_is_closed` |
//! | 7.2 receives | [`RecvBatch`] | fake `receives_are_taken_up_to_the_one_that_does_not_fit` |
//! | 8 shared receive queues | [`SharedReceiveQueue`] | both `a_shared_receive_queue_serves_two_queue_pairs`, guest `a_shared_receive_queue_raises_its_limit_event` |
//! | 9 address handles | [`ProtectionDomain::create_ah`] | guest `datagrams_go_where_their_address_handle_says` |
//! | 10 extended completion queues | [`ExtendedCompletionQueue`] | guest `an_extended_completion_queue_reports_what_a_classic_one_does` |
//! | 10 extended posting | [`PostMode`] | fake `the_extended_way_takes_all_or_none`; all of *both*, twice |
//! | 12.5 one doorbell for a chain | [`SendBatch`] | both `one_completion_retires_an_unsignaled_chain` |
//! | 12.6 moderation | [`CqHandle::moderate`] | guest `what_the_driver_does_not_know_is_refused` |
//! | 13.1 asynchronous events | [`Context::next_event`] | guest `a_link_that_goes_down_and_up_raises_events`, fake `events_name_their_object_and_are_acknowledged` |
//! | 13.2 statuses | `WcStatus` | both, all of `failures` and `link` |
//! | 13.3 error patterns | [`VerbsError::hint`] | guest `a_transition_from_the_wrong_state_is_refused` |
//! | 14 thread safety | `&mut` where verbs asks for it | the compiler |
mod attributes;
mod chain;
mod channel;
mod context;
mod cq;
mod device;
mod error;
mod event;
mod gid;
mod mr;
mod mw;
mod owned;
mod path;
mod pd;
mod port;
mod qp;
mod recv;
mod srq;
mod sys;

pub use attributes::{AtomicCap, DeviceAttributes};
pub use channel::CompletionChannel;
pub use context::Context;
pub use cq::{
    CompletionQueue, CqHandle, CqInit, ExtendedCompletion, ExtendedCompletionQueue, Timestamps,
};
pub use device::{Device, DeviceList, NodeType, Transport, fork_safety};
pub use error::{Argument, DeviceName, Result, VerbsError};
pub use event::{AsyncEvent, SrqId};
pub use gid::{Gid, GidEntry, GidType};
pub use mr::MemoryRegion;
pub use mw::{MemoryWindow, WindowRange};
pub use owned::{CloseError, DestroyHook, set_destroy_hook};
pub use path::{AddressHandle, Grh, Path, Route};
pub use pd::ProtectionDomain;
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use qp::{
    Connected, DatagramBatch, DatagramToInit, DatagramToRtr, ModifyError, PostMode, QpAttributes,
    QpCap, QpInit, QpState, QueuePair, Rc, Recover, Resume, SendBatch, Service, ToErr, ToInit,
    ToReset, ToRtr, ToRts, ToSqd, Transition, Uc, Ud, UnreliableToRtr, UnreliableToRts,
};
pub use recv::RecvBatch;
pub use srq::{SharedReceiveQueue, SrqAttributes};
