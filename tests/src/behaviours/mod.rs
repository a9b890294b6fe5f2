//! What every backend must do: one list of named behaviours, over core's hardware traits, endpoints
//! and a small [`Fixture`]. The software NIC runs it in `cargo test`, real verbs run it in the
//! guest, which shows that both behave alike.
//!
//! Senders are polled before receivers: a device in software may work while it is polled only.
//! [`Statuses`] states where backends may differ.

mod allocations;
mod buffer;
mod drivers;
mod engine;
mod failures;
mod hosts;
mod last_wqe;
mod link;
mod lists;
mod membership;
mod operations;
mod order;
pub mod pair;
mod posting;
mod rails;
mod reroute;
mod waiting;
mod wrapped;

pub use buffer::Buffer;
pub use pair::{Pair, Side};
pub use rails::Rails;
pub use wrapped::Wrapped;

use polyrail::backend::Domain;
use polyrail_core::hardware::{CompletionQueue, QueuePair, ReceiveQueue};
use polyrail_core::verbs::{AccessFlags, LocalBuffer, WcStatus};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Which end of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that mostly sends.
    Near,
    /// The end that mostly receives.
    Far,
}

/// How long and how often a connection repeats requests before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The time to wait for an answer: 4.096 us times 2 to this power.
    pub timeout: u8,
    /// Repetitions without an answer.
    pub retry_cnt: u8,
    /// Repetitions after the peer met no receive; 7 is forever.
    pub rnr_retry: u8,
}

impl Retries {
    /// A late answer does not fail.
    pub const MANY: Self = Self { timeout: 18, retry_cnt: 6, rnr_retry: 7 };
    /// A lost answer fails soon: 3 times 67 ms without an answer, 1 repetition without a receive.
    pub const FEW: Self = Self { timeout: 14, retry_cnt: 2, rnr_retry: 1 };
}

/// Memory of one end, registered with the device of every rail.
pub trait Memory {
    /// Address of the first byte.
    fn addr(&self) -> u64;
    /// Key for local requests on a rail.
    fn lkey(&self, rail: usize) -> u32;
    /// Key for the peer's requests on a rail.
    fn rkey(&self, rail: usize) -> u32;
    /// A part of it, for requests.
    fn local(&self, offset: usize, length: u32) -> LocalBuffer;
    /// Copies bytes into it.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// Copies bytes out of it.
    fn read(&self, offset: usize, length: usize) -> Vec<u8>;
}

/// Statuses that devices may choose. Everything else is the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Statuses {
    /// A WRITE whose lkey is bad.
    pub write_with_bad_lkey: WcStatus,
    /// A READ whose lkey is bad.
    pub read_with_bad_lkey: WcStatus,
    /// A SEND longer than the receive that it meets: at the sender, at the receiver.
    pub receive_too_short: (WcStatus, WcStatus),
    /// A SEND that meets a receive with a bad lkey: at the sender, at the receiver.
    pub receive_with_bad_lkey: (WcStatus, WcStatus),
}

/// A backend: two ends, joined by rails with a device at each end.
pub trait Fixture: Debug {
    /// Its reliable connected queue pair.
    type Qp: QueuePair + Debug;
    /// Its completion queue.
    type Cq: CompletionQueue + Debug;
    /// Its shared receive queue.
    type Srq: ReceiveQueue + Clone + Debug + Send;
    /// Its registered memory.
    type Memory: Memory + Debug;
    /// Its devices, as endpoints use them.
    type Domain: Domain<Qp: Send, Cq: Send>;

    /// Rails between the ends.
    fn rails(&self) -> usize;
    /// Its statuses where devices may choose.
    fn statuses(&self) -> Statuses;
    /// A completion queue for at least `capacity` completions.
    fn create_cq(&self, end: End, rail: usize, capacity: u32) -> Self::Cq;
    /// A shared receive queue for at least `max_wr` receives.
    fn create_srq(&self, end: End, rail: usize, max_wr: u32) -> Self::Srq;
    /// A queue pair in INIT for at least `depth` requests each way, that permits everything.
    fn create_qp(
        &self,
        end: End,
        rail: usize,
        cq: &Self::Cq,
        srq: Option<&Self::Srq>,
        depth: u32,
    ) -> Self::Qp;
    /// Connects two queue pairs in INIT.
    fn connect(&self, rail: usize, near: &Self::Qp, far: &Self::Qp, retries: Retries);
    /// Moves a queue pair to ERR.
    fn fail(&self, qp: &Self::Qp);
    /// Whether a queue pair is in ERR.
    fn is_failed(&self, qp: &Self::Qp) -> bool;
    /// Zeroed memory.
    fn memory(&self, end: End, bytes: usize, access: AccessFlags) -> Self::Memory;
    /// Opens the devices of one end, one for each rail, as endpoints use them.
    fn open(&self, end: End) -> Vec<Self::Domain>;
    /// Takes a rail's link down, or brings it up and returns when it carries packets again.
    fn set_link(&self, rail: usize, up: bool);
}

/// Everything that peers and the device may do.
pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// How long anything may take. Only something that hangs comes near it.
pub const LIMIT: Duration = Duration::from_secs(600);

/// How long to watch for nothing to happen.
pub const QUIET: Duration = Duration::from_millis(20);

/// A behaviour with its name. It panics if the backend behaves differently.
pub type Behaviour<F> = (&'static str, fn(&F));

macro_rules! list {
    ($($module:ident: $($name:ident)*;)*) => {
        vec![$($((stringify!($name), $module::$name::<F> as fn(&F))),*),*]
    };
}

/// The behaviours of physical queue pairs.
pub fn physical<F: Fixture>() -> Vec<Behaviour<F>> {
    list! {
        operations:
            write_arrives_without_a_completion_at_the_peer
            write_with_imm_completes_a_receive
            empty_write_with_imm_completes_a_receive
            sends_land_in_receives_in_order
            read_brings_the_bytes_here
            atomics_change_the_word_and_bring_the_old_one
            atomics_of_two_queue_pairs_lose_no_update
            inline_data_is_taken_while_posting
            two_rails_carry_at_the_same_time
            a_shared_receive_queue_serves_two_queue_pairs;
        posting:
            one_completion_retires_an_unsignaled_chain
            a_dropped_batch_posts_nothing
            a_full_queue_is_back_pressure
            sends_before_rts_are_refused
            receives_on_a_queue_pair_with_a_shared_queue_are_refused
            a_shared_queue_refuses_names_that_could_be_tags
            an_inline_request_at_a_device_address_is_refused
            an_inline_request_that_is_too_long_is_refused;
        failures:
            a_bad_rkey_fails_and_flushes_what_follows
            a_range_outside_the_region_fails
            a_region_that_permits_nothing_fails
            a_bad_lkey_fails
            a_missing_receive_fails_after_the_retries
            a_missing_receive_is_waited_for
            a_receive_that_is_too_short_fails_both_ends
            a_receive_with_a_bad_lkey_fails_both_ends
            moving_to_err_flushes_everything_in_order
            a_peer_in_err_does_not_answer
            a_failed_queue_pair_accepts_sends_and_flushes_them;
    }
}

/// The behaviours that every backend has.
pub fn list<F: Fixture>() -> Vec<Behaviour<F>> {
    let mut all = physical();
    all.extend(list! {
        last_wqe:
            the_last_shared_receive_is_known_and_takes_no_completion_along
            a_queue_pair_with_receives_of_its_own_knows_no_last_one;
        link:
            a_lost_link_fails_requests_and_a_new_connection_works_after
            the_engine_names_the_rail_whose_link_was_lost;
        engine:
            spray_over_two_rails_delivers_every_byte
            dqplb_over_two_rails_delivers_every_byte
            a_single_rail_delivers_every_byte
            the_engine_passes_sends_and_atomics_through
            the_engine_names_the_rail_that_failed
            the_engine_names_the_rail_of_a_bad_lkey
            the_engine_names_the_rail_that_left_the_region
            the_engine_names_the_notify_queue_pair_that_meets_no_receive;
        lists:
            lists_are_gathered_and_scattered_over_two_rails
            lists_are_gathered_and_scattered_over_one_rail
            a_batch_of_requests_rings_each_rail_once;
        order:
            a_signal_arrives_behind_what_was_posted_before
            a_request_that_is_reported_when_done_waits_for_no_other;
        reroute:
            spray_survives_each_rail
            dqplb_survives_each_rail
            requests_survive_a_lost_link;
        waiting:
            two_ends_that_wait_miss_no_completion
            a_wait_without_news_ends_in_time
            a_file_descriptor_tells_an_event_loop
            threads_that_sleep_wake_for_requests_and_completions;
        membership:
            members_come_go_and_are_replaced_while_others_work
            completions_of_an_endpoint_are_taken_in_all_ways
            a_completion_queue_grows_and_keeps_what_it_holds;
        drivers:
            a_driver_that_takes_batches_in_parts_costs_no_byte
            a_driver_that_is_full_several_times_costs_no_byte
            a_driver_whose_completions_come_late_costs_no_byte
            the_engine_goes_on_after_polls_that_fail
            the_engine_names_the_rail_whose_driver_refuses;
        allocations:
            physical_queues_do_not_allocate
            the_engine_does_not_allocate;
    });
    all
}

/// Runs behaviours one after the other and prints the result of each. Returns the names of those
/// that failed.
pub fn run<F>(title: &str, behaviours: &[Behaviour<F>], fixture: &F) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for &(name, behaviour) in behaviours {
        let start = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| behaviour(fixture)));
        let verdict = if ended.is_ok() { "ok" } else { "FAILED" };
        println!("{title} {name} ... {verdict} ({} ms)", start.elapsed().as_millis());
        if ended.is_err() {
            failed.push(name);
        }
    }
    failed
}
