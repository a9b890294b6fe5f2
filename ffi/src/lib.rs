//! Safe owners of libibverbs objects, which implement polyrail-core's hardware traits.
//!
//! The crate is thin and has no policy. Every type is one verbs object, which is destroyed when it
//! is dropped, after everything that was made from it. Drivers differ in how they treat a full
//! queue, a send in the wrong state, or an inline request that is too long; here each of these is
//! one documented error.
//!
//! # Reading order
//!
//! From the bottom up:
//!
//! 1. [`DeviceList`], [`DeviceAttributes`], [`PortAttributes`]: devices and their ports;
//! 2. [`Context`], [`GidEntry`], [`OnDemandPaging`]: an open device;
//! 3. [`ProtectionDomain`], [`MemoryRegion`], [`AddressHandle`]: the objects that requests name;
//! 4. [`CompletionChannel`], [`CompletionQueue`], [`ExtendedCompletionQueue`]: completions;
//!    [`AsyncEvent`]: events without a completion;
//! 5. [`SharedReceiveQueue`]: receives of many queue pairs;
//! 6. [`QueuePair`] with its transitions, [`MemoryWindow`].
//!
//! # Threads
//!
//! Every type may move between threads. Posting to a queue and polling a completion queue take
//! `&mut`, so two threads never post to the same queue at once. Handles ([`Context`],
//! [`ProtectionDomain`], [`CqHandle`], [`CompletionChannel`]) may be used from many threads, and
//! queue pairs may be modified and queried from many threads. In addition to the driver's locks
//! there are two: each queue pair has a lock for its transitions, and each context has a lock for
//! its events.
//!
//! # Coverage of the verbs API
//!
//! The first column numbers the topics of the API: devices (2), protection domains (3), memory (4),
//! completion queues (5), queue pairs (6), posting (7), shared receive queues (8), address handles
//! (9), extended verbs (10), whole connections (11), performance (12), errors (13), threads (14).
//! `ffi/tests/fake_driver/manual.rs` checks that
//! every topic has a row, and that the tests of each row exist. Tests marked *fake* are in
//! `ffi/tests/fake_driver`, where every call can fail without a device, or beside the code. Tests
//! marked *guest* run on rxe, the kernel's software RDMA driver (`tests/rxe/run.sh`). Tests marked
//! *both* run there and on the software NIC (`tests/src/behaviours`). Tests marked *host* are in
//! `std-shim`.
//!
//! | topic | here | test |
//! |---|---|---|
//! | 1.1, 1.2 headers, linking | `rdma-sys`, which loads the library on first use | fake `a_library_that_cannot_be_loaded_is_an_error_with_a_cure`, `nothing_is_linked_that_may_not_be_installed`, guest `devices_report_their_identity` |
//! | 2.1 device list | [`DeviceList`], [`Device`] | guest `devices_report_their_identity`, fake `fork_safety_is_initialised_once` |
//! | 2.2 open | [`Device::open`] | fake `every_failed_call_is_named_and_leaves_nothing` |
//! | 2.3 capabilities | [`DeviceAttributes`] | guest `devices_report_their_identity` |
//! | 2.4 ports | [`Context::query_port`], [`Context::query_port_speed`] | guest `ports_and_addresses_can_be_looked_up`, fake `a_port_has_the_speed_that_its_driver_reports_or_that_of_its_lanes`, `a_port_on_ethernet_has_the_rate_of_its_lanes`, `with_an_older_library_a_port_has_the_speed_of_its_lanes` |
//! | 2.5 GIDs, P_Keys | [`Context::gid_table`], [`Context::query_gid`], [`Context::query_pkey`] | guest `ports_and_addresses_can_be_looked_up`, fake `queries_return_what_the_driver_reports` |
//! | 2.6 close | [`Context::close`] | fake `closing_reports_what_still_uses_an_object_and_the_drivers_error` |
//! | 3.1, 3.2 protection domains | [`ProtectionDomain`] | guest `what_is_in_use_is_not_closed` |
//! | 4.1 registration, access flags | [`ProtectionDomain::register`] | fake `every_access_flag_is_handed_over`, guest `memory_that_cannot_be_registered_is_refused` |
//! | 4.1 of a dma-buf | [`ProtectionDomain::register_dmabuf`] | fake `a_dma_buf_is_registered_by_offset_length_and_address`, `an_older_library_without_dma_bufs_does_the_rest`, guest `what_the_driver_does_not_know_is_refused` |
//! | 4.2 deregistration | [`MemoryRegion::close`], drop, [`ProtectionDomain::register_owned`] | fake `closing_reports_what_still_uses_an_object_and_the_drivers_error`, `memory_that_cannot_be_deregistered_is_kept` |
//! | 5.1 completion channels | [`CompletionChannel`] | fake `a_channel_names_the_queue_that_has_something`, guest `a_channel_wakes_for_a_queue_that_was_armed` |
//! | 5.2 completion queues, `cq_context` | [`Context::create_cq`], [`CqInit::user_context`] | fake `events_return_the_context_of_their_object`, guest `an_overrun_raises_an_event`, `sizes_over_the_limits_are_refused` |
//! | 5.3 polling | [`CompletionQueue`] | fake `polling_goes_on_past_one_batch_up_to_the_room_there_is`, `failed_completions_are_whole_although_drivers_write_four_fields` |
//! | 5.4 notification | [`CqHandle::arm`] | guest `a_channel_can_wait_for_solicited_completions_only` |
//! | 5.5 destruction | owners keep what they were made from | fake `children_are_destroyed_before_their_parents_whatever_is_dropped_first` |
//! | 6.1 queue pairs, `qp_context` | [`ProtectionDomain::create_qp`] with [`Rc`], [`Uc`], [`Ud`]; [`QpInit::user_context`] | guest `an_unreliable_connection_carries_writes`, `datagrams_go_where_their_address_handle_points`, fake `objects_of_another_device_never_reach_the_driver`, `events_return_the_context_of_their_object` |
//! | 6.2, 6.2.1, 6.2.2, 6.2.3, 6.2.4 transitions | [`QueuePair::modify`] | fake `transitions_give_what_the_manual_demands_and_no_more`, `transitions_hand_over_every_value`, guest `queue_pairs_tell_their_packets_from_others`, `a_drained_send_queue_raises_an_event_and_goes_on` |
//! | 6.2 within INIT, RTS, SQD | [`ChangeInit`], [`ChangeRts`], [`ChangeSqd`], and those of [`Uc`] and [`Ud`] | fake `changes_within_a_state_give_what_is_given_and_no_more`, `changes_are_refused_in_another_state_and_with_values_that_do_not_fit`, guest `attributes_change_within_a_state`, `a_drained_send_queue_raises_an_event_and_goes_on` |
//! | 6.3 query | [`QueuePair::query`] | guest `a_queue_pair_reports_its_attributes`, fake `a_query_returns_the_path_and_the_state_that_the_driver_assumes` |
//! | 6.4 destroy | [`QueuePair::close`], drop | fake `a_drop_that_fails_calls_the_hook` |
//! | 7.1 opcodes, flags | [`QueuePair::start_send`] | fake `both_ways_hand_over_the_same_requests`, `both_ways_hand_over_flags_and_buffers` |
//! | 7.1 `sg_list`, `num_sge` | [`polyrail_core::hardware::SendBatch::add_list`], [`DatagramBatch::add_list`], [`QpCap::max_send_sge`] | fake `lists_of_buffers_are_handed_over_in_order`, `inline_lists_arrive_whole`, `lists_that_are_too_long_or_unreadable_never_reach_the_driver`, `a_fragment_that_passes_borders_of_buffers_is_one_request_with_a_list`, guest `lists_of_buffers_are_gathered_and_scattered` |
//! | 7.1 `bad_wr` | `CommitError::accepted` | fake `a_driver_that_stops_half_way_has_taken_what_comes_before_bad_wr` |
//! | 7.1 LOCAL_INV, SEND_WITH_INV, BIND_MW | [`MemoryWindow`] | guest `a_window_opens_a_part_and_the_peer_closes_it`, `a_window_that_its_owner_invalidates_is_closed` |
//! | 7.1.1 SEND | `Opcode::Send`, `Opcode::SendWithImm` | both `sends_land_in_receives_in_order` |
//! | 7.1.2 WRITE | `Opcode::RdmaWrite`, `Opcode::RdmaWriteWithImm` | both `write_arrives_without_a_completion_at_the_peer`, `write_with_imm_completes_a_receive` |
//! | 7.1.3 READ | `Opcode::RdmaRead` | both `read_brings_the_bytes_here` |
//! | 7.1.4 atomics | `Opcode::CompareSwap`, `Opcode::FetchAdd` | both `atomics_change_the_word_and_bring_the_old_one` |
//! | 7.1.5 inline | `SendFlags::INLINE` | both `inline_data_is_taken_while_posting`, `an_inline_request_that_is_too_long_is_refused` |
//! | 7.1.6 selective signaling | `SendFlags::SIGNALED` | both `one_completion_retires_an_unsignaled_chain` |
//! | 7.1.7 datagrams | [`QueuePair::start_datagrams`] | guest `datagrams_go_where_their_address_handle_points`, fake `datagrams_go_to_the_address_of_each` |
//! | 7.2 receives | [`RecvBatch`], [`QpCap::max_recv_sge`] | fake `receives_are_taken_up_to_the_one_that_does_not_fit`, `lists_of_buffers_are_handed_over_in_order` |
//! | 8.1 shared receive queues | [`ProtectionDomain::create_srq`] with [`SrqInit`] | fake `a_shared_receive_queue_takes_lists_of_buffers`, `events_return_the_context_of_their_object`, both `a_shared_receive_queue_serves_two_queue_pairs` |
//! | 8.2 receives there | [`SharedReceiveQueue`] | fake `a_shared_receive_queue_takes_receives_and_its_queue_pairs_take_none` |
//! | 8.3 limit | [`SharedReceiveQueue::set_limit`] | guest `a_shared_receive_queue_raises_its_limit_event`, `a_shared_receive_queue_reports_its_attributes` |
//! | 8.4 destroy | [`SharedReceiveQueue::close`], drop | fake `closing_reports_what_still_uses_an_object_and_the_drivers_error` |
//! | 9.1 address handles | [`ProtectionDomain::create_ah`] | fake `paths_are_handed_over_field_by_field`, guest `datagrams_go_where_their_address_handle_points` |
//! | 9.2 destroy | [`AddressHandle::close`], drop | fake `closing_reports_what_still_uses_an_object_and_the_drivers_error` |
//! | 10.1 extended completion queues | [`ExtendedCompletionQueue`] | guest `an_extended_completion_queue_reports_what_a_classic_one_does` |
//! | 10.1 timestamps | [`Timestamps`] | fake `completions_are_stamped_with_the_times_that_were_asked_for` |
//! | 10 extended posting | [`PostMode`] | fake `the_extended_way_takes_all_or_none`; all of *both*, twice |
//! | 11.1 set-up | all of the above | both `write_arrives_without_a_completion_at_the_peer` |
//! | 11.2 exchange of addresses | `polyrail::link` | host `messages_survive_the_round_trip` |
//! | 11.3 cleanup order | owners keep what they were made from | fake `children_are_destroyed_before_their_parents_whatever_is_dropped_first` |
//! | 12.1 polling, events | [`CompletionQueue`], [`CompletionChannel::wait`] | guest `a_channel_wakes_for_a_queue_that_was_armed` |
//! | 12.2 inline data | `SendFlags::INLINE` | both `inline_data_is_taken_while_posting` |
//! | 12.3 selective signaling | `SendFlags::SIGNALED` | both `one_completion_retires_an_unsignaled_chain` |
//! | 12.4 registration | `AccessFlags::HUGETLB`, `AccessFlags::ON_DEMAND`; [`Context::on_demand_paging`]; pages in `polyrail::memory` | fake `every_access_flag_is_handed_over`, `devices_say_what_they_page_on_demand`, guest `memory_that_the_driver_cannot_register_is_refused_by_its_kind`, host `pages_are_aligned_and_zero` |
//! | 12.5 one doorbell for a chain | [`SendBatch`] | both `one_completion_retires_an_unsignaled_chain` |
//! | 12.6 moderation | [`CqHandle::moderate`] | fake `moderation_hands_over_count_and_period`, guest `what_the_driver_does_not_know_is_refused` |
//! | 13.1 asynchronous events | [`Context::next_event`] | fake `events_name_their_object_and_are_acknowledged`, guest `a_link_that_goes_down_and_up_raises_events` |
//! | 13.1 LAST_WQE_REACHED | `QueuePair::last_wqe_reached` | fake `an_event_reports_it_whichever_handle_reads_the_event`, `rxe_reports_it_by_destroying_the_queue_pair`, both `the_last_shared_receive_is_known_and_takes_no_completion_along`, guest `after_the_last_shared_receive_nothing_arrives` |
//! | 13.2 RETRY_EXC, RNR_RETRY_EXC, REM_ACCESS, LOC_PROT | `WcStatus` | both `a_peer_in_err_does_not_answer`, `a_missing_receive_fails_after_the_retries`, `a_bad_rkey_fails_and_flushes_what_follows`, `a_bad_lkey_fails` |
//! | 13.3 error patterns | [`VerbsError::hint`] | fake `a_refused_post_says_which_request_why_and_what_to_look_at`, guest `a_transition_from_the_wrong_state_is_refused` |
//! | 14 thread safety | `&mut` where verbs asks for one thread at a time | fake `everything_moves_between_threads_and_handles_are_shared` |
//!
//! # What is left out
//!
//! Three services of libibverbs:
//!
//! - `RAW_PACKET`: Ethernet frames without peers, keys or order. A program needs CAP_NET_RAW for it
//!   and builds the headers itself. Nothing built on this crate could use it, and neither rxe nor
//!   the software NIC has it, so it could not be tested.
//! - `XRC_SEND` and `XRC_RECV`: fewer queue pairs if many processes of a host share receive queues.
//!   The engine's queue pairs belong to one process, where a [`SharedReceiveQueue`] has the same
//!   effect. No test device has it either.

// The private modules between these: `sys`, `qp_state`, `error` and `value` (calls that fail, and
// values that do not fit) come first. `owned` (destruction and its failures) comes before
// `Context`, and `chain` and `recv` (lists of requests for a driver) before `SharedReceiveQueue`;
// `qp::send` posts. No module imports a later one.
mod attributes;
mod chain;
mod channel;
mod context;
mod cq;
mod device;
mod end;
mod error;
mod event;
mod event_queue;
mod gid;
mod mr;
mod mw;
mod named;
mod on_demand;
mod owned;
mod path;
mod pd;
mod port;
mod qp;
mod qp_state;
mod recv;
mod srq;
mod sys;
mod value;

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
pub use on_demand::{OnDemandPaging, OnDemandRequests};
pub use owned::{CloseError, DestroyHook, set_destroy_hook};
pub use path::{AddressHandle, Grh, Path, Route};
pub use pd::ProtectionDomain;
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use qp::{
    ChangeInit, ChangeRts, ChangeSqd, Connected, Connector, DatagramBatch, DatagramChangeInit,
    DatagramChangeRts, DatagramChangeSqd, DatagramToInit, DatagramToRtr, PostMode, QpAttributes,
    QpCap, QpInit, QpInitAttributes, QueuePair, Rc, Recover, Resume, SendBatch, Service, ToErr,
    ToInit, ToReset, ToRtr, ToRts, ToSqd, Transition, Uc, Ud, UnreliableChangeRts,
    UnreliableChangeSqd, UnreliableToRtr, UnreliableToRts,
};
pub use qp_state::QpState;
pub use recv::RecvBatch;
pub use srq::{SharedReceiveQueue, SrqAttributes, SrqInit};
pub use value::ModifyError;
