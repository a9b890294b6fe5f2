//! What only verbs have: devices, events, services beside RC, and refusals.

mod connecting;
mod devices;
mod events;
mod healing;
mod last_wqe;
mod mixed;
mod options;
mod p2p;
mod p2p_thread;
mod refusals;
mod registrations;
mod services;
mod windows;

use crate::fixture::Rails;
use polyrail_tests::behaviours::Behaviour;

macro_rules! list {
    ($($module:ident: $($name:ident)*;)*) => {
        vec![$($((stringify!($name), $module::$name as fn(&Rails))),*),*]
    };
}

pub(crate) fn list() -> Vec<Behaviour<Rails>> {
    list! {
        connecting:
            a_search_for_a_path_holds_nobody_up;
        devices:
            devices_report_their_identity
            ports_and_addresses_can_be_looked_up
            a_queue_pair_reports_its_attributes
            a_shared_receive_queue_reports_its_attributes;
        events:
            a_channel_wakes_for_a_queue_that_was_armed
            a_channel_can_wait_for_solicited_completions_only
            a_link_that_goes_down_and_up_raises_events
            a_port_that_goes_down_and_up_is_known_to_all_domains_of_its_device
            a_shared_receive_queue_raises_its_limit_event
            an_overrun_raises_an_event;
        healing:
            a_port_that_goes_down_is_healed_long_before_requests_time_out;
        last_wqe:
            after_the_last_shared_receive_nothing_arrives;
        mixed:
            tcp_carries_on_while_rdma_links_are_down;
        options:
            what_a_device_does_not_have_is_refused_in_words;
        p2p:
            messages_of_all_sizes_arrive_over_two_rails
            messages_survive_a_link_that_goes_down_and_up;
        p2p_thread:
            messages_pass_both_ways_between_threads_that_sleep
            threads_that_sleep_go_on_without_a_link_and_with_it_again;
        registrations:
            memory_of_the_callers_own_is_reached_until_it_is_closed
            registrations_are_cached_by_range
            memory_that_the_driver_cannot_register_is_refused_by_its_kind
            queue_pairs_tell_their_packets_from_others;
        services:
            datagrams_go_where_their_address_handle_points
            an_unreliable_connection_carries_writes
            lists_of_buffers_are_gathered_and_scattered
            attributes_change_within_a_state
            an_extended_completion_queue_reports_what_a_classic_one_does
            the_engine_runs_on_extended_completion_queues
            a_drained_send_queue_raises_an_event_and_goes_on;
        windows:
            a_window_opens_a_part_and_the_peer_closes_it
            a_window_permits_only_its_own_access
            a_window_that_its_owner_invalidates_is_closed;
        refusals:
            a_transition_from_the_wrong_state_is_refused
            memory_that_cannot_be_registered_is_refused
            sizes_over_the_limits_are_refused
            what_the_driver_does_not_know_is_refused
            what_is_in_use_is_not_closed;
    }
}
