//! The virtual queue pair: its fields and its read-only queries.

use super::choose::Chooser;
use super::config::Config;
use super::data_receives::DataReceives;
use super::error::Health;
use super::keys::Devices;
use super::pass_through::PassThrough;
use super::scheme::{Offers, SchemeState};
use super::slot::{Ahead, Recvs, Sends, SlotState};
use crate::hardware::QueuePair;
use crate::rail::{Rail, RailCounters, RailId, Reroute};
use crate::verbs::ImmOrder;
use arrayvec::ArrayVec;

/// One queue pair made of up to `RAILS` physical ones.
///
/// Each rail may have `DEPTH` requests in flight; `WRS` sends and `WRS` receives may be
/// unreported. Both are powers of two, `DEPTH` from 8 to 2^15, `WRS` at least 2. An atomic that has
/// to wait takes two places among the sends. All memory is inside the value, so `size_of` is the
/// memory footprint; nothing is allocated, and the value may be moved at any time.
///
/// # Method families
///
/// *Set-up*, in this order: [`new`](Self::new); with DQPLB
/// [`prepare_receives`](Self::prepare_receives) while the queue pairs are in INIT, and
/// [`set_peer_window`](Self::set_peer_window) with the numbers on the peer's card;
/// [`limit_max_msg_size`](Self::limit_max_msg_size) if the peer's fragments are shorter;
/// [`pair_devices`](Self::pair_devices) if the peer has another number of devices;
/// [`VirtualCq::attach`](crate::virtual_cq::VirtualCq::attach).
///
/// *Data path*: [`post_send`](Self::post_send), [`post_many`](Self::post_many),
/// [`post_list`](Self::post_list), [`post_recv`](Self::post_recv),
/// [`post_recv_list`](Self::post_recv_list). Completions come
/// out of [`VirtualCq::poll`](crate::virtual_cq::VirtualCq::poll), which drives everything that
/// does not happen inside a post.
///
/// *Health*: [`state`](Self::state), [`failure`](Self::failure),
/// [`first_error`](Self::first_error), [`take_protocol_error`](Self::take_protocol_error),
/// [`check_stalled`](Self::check_stalled), [`set_rail_in_service`](Self::set_rail_in_service),
/// [`reserve_rail`](Self::reserve_rail), [`set_standby`](Self::set_standby),
/// [`counters`](Self::counters).
///
/// *Rails that fail*: [`next_control`](Self::next_control), [`control`](Self::control),
/// [`take_rail_event`](Self::take_rail_event), [`replace_rail`](Self::replace_rail) and others, see
/// below.
///
/// # Example
///
/// Over any backend. `core/examples/loopback` is a complete program.
///
/// ```
/// use polyrail_core::hardware::{CompletionQueue, QueuePair};
/// use polyrail_core::verbs::{DeviceKeys, LocalBuffer, SendWr};
/// use polyrail_core::virtual_cq::VirtualCq;
/// use polyrail_core::virtual_qp::{Config, VirtualQp};
/// use std::error::Error;
///
/// /// Writes `local` to `remote_addr` over four connected rails, and waits until it is there.
/// fn write<Q: QueuePair, C: CompletionQueue>(
///     rails: [Q; 4],
///     notify: Q,
///     cqs: [C; 2],
///     (local, remote_addr): (LocalBuffer, u64),
///     keys: &[DeviceKeys],
/// ) -> Result<bool, Box<dyn Error>> {
///     let mut qp = VirtualQp::<Q, 4, 128, 256>::new(Config::default(), rails, Some(notify))?;
///     let mut cq = VirtualCq::<C, 2, 16>::new(cqs)?;
///     cq.attach(0, &qp)?;
///     qp.post_send(&SendWr::write(1, local, remote_addr, keys))?;
///     loop {
///         let mut done = None;
///         let polled = cq.poll(&mut qp, 1, |event| done = event.completion());
///         if let Some(error) = polled.error {
///             return Err(error.into());
///         }
///         if let Some(completion) = done {
///             return Ok(completion.status.is_success());
///         }
///     }
/// }
/// ```
///
/// # Buffer ownership
///
/// A buffer belongs to the NIC from the post until its request is reported. A request is reported
/// only after all completions of its posted fragments have arrived, failed ones included, so a
/// reported buffer is never accessed again.
///
/// # Order
///
/// Over several rails, WRITE, WRITE_WITH_IMM and READ are *fragmented*; SENDs and atomics are
/// *pass-through*, and use rail 0. A request is *complete* when the peer's NIC has acknowledged it,
/// its notify included. A request that the table does not restrict may overtake, and a request that
/// waits delays only later requests of its own kind.
///
/// | | behind | is held to this order |
/// |---|---|---|
/// | fragmented | fragmented | started in posting order, and reported as their [`ReportOrder`](crate::verbs::ReportOrder) says; on the wire they overtake |
/// | fragmented | pass-through | may overtake |
/// | pass-through | pass-through | in posting order, as on one connection |
/// | pass-through | fragmented | [`Ordered`](super::PassThroughOrder::Ordered): starts when they are complete; [`Unordered`](super::PassThroughOrder::Unordered): may overtake |
/// | notification of a WRITE_WITH_IMM | fragmented | arrives when they are complete |
/// | notification of a WRITE_WITH_IMM | pass-through | `Ordered`: arrives when they are complete; `Unordered`: may overtake |
/// | any request with FENCE | any | starts when they are complete |
///
/// A fragmented request with FENCE may also wait for SENDs and atomics that were posted after it,
/// as long as earlier ones are not complete.
///
/// A [signal](crate::verbs::SendWr::signal), a WRITE_WITH_IMM of 0 bytes, keeps this order too: it
/// notifies the peer that everything posted before has arrived.
///
/// A READ of data that an earlier WRITE wrote needs FENCE, because completions of one rail say
/// nothing about the others. The report of a request [when it is
/// done](crate::verbs::ReportOrder::WhenDone) says nothing about earlier requests. Pass-through
/// requests are reported when they complete, in no order with fragmented ones. Over one rail the
/// order is that of a reliable connection.
///
/// With DQPLB, a SOLICITED request starts when all earlier WRITE_WITH_IMMs that are not SOLICITED
/// are complete. Otherwise an unsolicited fragment could be the last one to arrive, and the
/// receiver would not wake.
///
/// # Rails that fail
///
/// With [`RailFailure::Reroute`](super::RailFailure::Reroute), chosen at both ends, the failure of
/// a rail loses no request. Both ends move the rail's queue pair to the error state and send each
/// other the number of requests that arrived. The others are posted again, and may then be
/// reported. A request is never reported while a lost copy of it may still be executed. The page
/// [rails that fail](crate::docs::rails_that_fail) explains the protocol.
///
/// The owner carries control messages between the ends ([`next_control`](Self::next_control) and
/// [`control`](Self::control)), and makes a new queue pair for a rail that is
/// [Down](super::RailState::Down) ([`replace_rail`](Self::replace_rail)). It may declare a rail
/// failed ([`fail_rail`](Self::fail_rail), [`lose_rail`](Self::lose_rail)), and it reads the events
/// ([`take_rail_event`](Self::take_rail_event)). Meanwhile:
///
/// | waits for | |
/// |---|---|
/// | the other rails' credits | fragments |
/// | the fence of the rail that failed | reports, notifications and FENCE behind what it lost |
/// | a new queue pair for rail 0 | SENDs, atomics, receives with buffers |
/// | a new notify queue pair | notifications of SPRAY, and what is posted behind them and in their order |
///
/// A WRITE may be executed more than once until it is reported, so a peer that polls its memory
/// must not reuse the memory before it is notified. A lost atomic fails, and the virtual queue pair
/// with it, because the sender cannot determine whether it was executed. INLINE requests are
/// refused, because their data may change before they are posted again. All completion queues must
/// be polled: an unpolled queue keeps the fence waiting.
///
/// The virtual queue pair fails for good ([`failure`](Self::failure)) after an error that every
/// rail would have (a bad key or length), when one request was lost in more than twice as many
/// failures of devices and drivers as there are rails, with fewer rails in service than
/// [`min_rails`](super::Config::min_rails), when the peer failed, and when the peer lost
/// completions. [`unfenced`](Self::unfenced) then names the rails through which the peer's memory
/// may still be written.
///
/// # Standby rails
///
/// The data rails in [`Config::standby`](super::Config::standby) carry fragments only while no other
/// data rail, a *home rail*, is in service. A home rail is in service if it has not failed and its
/// owner has not taken it [out of service](Self::set_rail_in_service). Home rails without credits are
/// in service: requests wait for them.
///
/// | event | standby rails |
/// |---|---|
/// | the last home rail leaves service | open at once: waiting requests go over them, and so does what the home rail lost |
/// | a home rail enters service | close at once: they get no new fragments, and what is in flight on them completes |
/// | a standby rail failed and a home rail is in service | what the standby rail lost goes over home rails |
/// | no rail is in service | requests wait (with [`min_rails`](super::Config::min_rails) 0) |
///
/// One exception: if the driver of a standby rail took only the front of a batch, the rest follows
/// on the same rail, also after a home rail has returned.
///
/// Rail 0 begins as a home rail; [`set_standby`](Self::set_standby) changes the role of a rail, for
/// example before it returns on another device. The notify queue pair of SPRAY is not a data rail: it
/// carries all notifications, whichever rails are in service. Standby rails count for
/// [`min_rails`](super::Config::min_rails). Only the sender decides which rails carry fragments, so the
/// two ends may choose differently; with DQPLB, the receives of all rails stay posted. Without
/// [`RailFailure::Reroute`](super::RailFailure::Reroute), home rails leave service only by
/// [`set_rail_in_service`](Self::set_rail_in_service).
///
/// # Time
///
/// The type and the arguments of a call bound its number of steps. The length of a request does not
/// matter: fragments without room on the rails are not visited before there is room.
///
/// | call | steps at most |
/// |---|---|
/// | [`post_send`](Self::post_send) | the credits of all rails, `RAILS` x `DEPTH`; a doorbell a rail |
/// | [`post_list`](Self::post_list) | the same, and for each doorbell the buffers of the list |
/// | [`post_many`](Self::post_many) | the requests given, and the credits of all rails |
/// | [`post_recv`](Self::post_recv), [`prepare_receives`](Self::prepare_receives) | `DEPTH` receives a rail |
/// | what a [poll](crate::virtual_cq::VirtualCq::poll) does here, for each batch of completions | the completions, the credits of all rails, and `WRS` requests that are passed in the ring |
/// | each report of a request that does not wait for its turn, or that passed through behind others | `WRS` |
/// | [`control`](Self::control), [`fail_rail`](Self::fail_rail), [`lose_rail`](Self::lose_rail), [`replace_rail`](Self::replace_rail), [`fail`](Self::fail), and polls while rails are down | what was lost, `RAILS` x `DEPTH` requests, and what a poll does |
///
/// With [`LeastFinishTime`](super::RailChoice::LeastFinishTime), each doorbell distributes up to as
/// many fragments as there are credits, and visits every rail for each fragment. With DQPLB, while
/// rails are down and afterwards, each WRITE_WITH_IMM searches all requests in flight for the
/// oldest number.
///
/// # One rail
///
/// With one rail, everything passes through to its queue pair: the caller's `wr_id`, the driver's
/// queue-full, and no tracking.
#[derive(Debug)]
#[repr(C, align(128))] // with a single rail all that traffic touches is the first pair of cache lines
pub struct VirtualQp<Q, const RAILS: usize, const DEPTH: usize, const WRS: usize> {
    pub(super) header: Header,
    pub(super) rails: ArrayVec<Rail<Q, DEPTH>, RAILS>,
    pub(super) config: Config,
    /// Whether it failed, and how.
    pub(super) health: Health,
    /// Which rail gets the next fragments.
    pub(super) chooser: Chooser<RAILS>,
    /// Send requests, from their post to their report.
    pub(super) sends: Sends<RAILS, WRS>,
    /// Notification receives, from their post to their report.
    pub(super) recvs: Recvs<WRS>,
    /// SENDs and atomics.
    pub(super) pass_through: PassThrough,
    /// Rails whose drivers refused requests that the engine offers again.
    pub(super) offers: Offers,
    /// Sends that were reported ahead of their turn.
    pub(super) ahead: Ahead,
    /// Places in the ring of sends that buffers have.
    pub(super) parts: usize,
    /// Maximum scatter/gather entries per request: the minimum over all rails, at most `MAX_SGE`.
    pub(super) max_sge: u32,
    /// Maximum scatter/gather entries per receive on rail 0, at most `MAX_SGE`.
    pub(super) max_recv_sge: u32,
    /// Which ring the next report looks at first; the two rings take turns.
    pub(super) recvs_first: bool,
    /// The devices of the rails.
    pub(super) devices: Devices<RAILS>,
    /// How a WRITE_WITH_IMM notifies its receiver.
    pub(super) scheme: SchemeState<Q, RAILS, DEPTH>,
    /// Receives with buffers.
    pub(super) data_receives: DataReceives<RAILS, DEPTH>,
    /// Recovery of failed rails.
    pub(super) reroute: Reroute,
    /// Requests that are being taken back.
    pub(super) being_taken_back: usize,
    /// A request was taken back, and may not be reported yet.
    pub(super) has_taken_back: bool,
    /// How the peer fences rails to take requests back; 0 if it does not.
    pub(super) peer_cancel_version: u32,
}

/// The part of the configuration that every request needs. Over a single rail, a request reads only
/// this and the rail, because with thousands of queue pairs each cache line is a miss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) virtual_qp_num: u32,
    pub(super) imm_order: ImmOrder,
    /// Of a fragmented request, as far as the configuration decides.
    pub(super) first_state: SlotState,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Whether requests are spread: more than one rail.
    #[inline]
    pub fn is_multi(&self) -> bool {
        // With RAILS = 1 the compiler removes all code for several rails.
        RAILS > 1 && self.rails.len() > 1
    }

    /// Returns the configuration, with the fragment size that
    /// [`limit_max_msg_size`](Self::limit_max_msg_size) has set.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the `qp_num` of its completions.
    #[inline]
    pub fn virtual_qp_num(&self) -> u32 {
        self.header.virtual_qp_num
    }

    /// The data rails, in order.
    pub fn rails(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.rails.iter().map(|rail| &rail.qp)
    }

    /// SPRAY's notify queue pair.
    pub fn notify_qp(&self) -> Option<&Q> {
        self.scheme.notify().map(|rail| &rail.qp)
    }

    /// Returns a physical queue pair, to connect it, query it, or move it to the error state.
    ///
    /// It may also go to SQD and back to RTS, for example to change its path: the driver accepts
    /// requests meanwhile and starts them once the send queue goes on. (If that takes long,
    /// [`check_stalled`](Self::check_stalled) names the rail.) It must not go to RESET, because
    /// outstanding requests would be dropped and never complete. To restart a rail, move it to ERR,
    /// which completes all its requests, and [replace it](Self::replace_rail).
    pub fn physical(&self, rail: RailId) -> Option<&Q> {
        self.rail(rail).map(|rail| &rail.qp)
    }

    /// Returns a physical queue pair mutably, for backends whose queue pairs need `&mut` for more
    /// than posting.
    ///
    /// # Safety
    ///
    /// The caller neither replaces the queue pair nor swaps it with another one: the engine would
    /// attribute completions to the wrong queue pair and report buffers that are in flight.
    /// Requests that the caller posts itself have a `wr_id` without
    /// [`ENGINE_WR_ID`](crate::hardware::ENGINE_WR_ID); their completions are
    /// [foreign](crate::virtual_cq::Event::Foreign).
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn physical_mut(&mut self, rail: RailId) -> Option<&mut Q> {
        self.rail_mut(rail).map(|rail| &mut rail.qp)
    }

    /// Returns the counters of a physical queue pair.
    pub fn counters(&self, rail: RailId) -> Option<RailCounters> {
        self.rail(rail).map(Rail::counters)
    }

    /// Returns the number of accepted sends that are not reported. Unsignaled sends count until
    /// they are complete. With one rail nothing is tracked, and the result is 0.
    pub fn unreported_sends(&self) -> usize {
        let in_ring = self.sends.unreported_count() - self.ahead.count() - self.parts;
        in_ring + self.pass_through.incomplete() - self.pass_through.unpassed()
    }

    /// Returns the number of accepted notification receives that are not reported.
    pub fn unreported_recvs(&self) -> usize {
        self.recvs.unreported_count()
    }

    /// Returns the completion queue entries that one physical queue pair of several can need at the
    /// same time: on an error, every request of both its queues completes. A single rail needs the
    /// sum of its driver's two limits instead.
    pub const fn cq_entries_per_qp() -> u32 {
        2 * DEPTH as u32
    }

    /// Returns the completion queue entries that all physical queue pairs together can need, the
    /// notify queue pair included, if there are several rails: the capacity of a completion queue
    /// for one virtual queue pair. Several that share a queue need the sum.
    pub const fn cq_entries() -> u32 {
        // One more for the notify queue pair.
        (RAILS as u32 + 1) * Self::cq_entries_per_qp()
    }

    /// The data rails, then the notify queue pair.
    pub(super) fn all_rails(&self) -> impl Iterator<Item = &Rail<Q, DEPTH>> {
        self.rails.iter().chain(self.scheme.notify())
    }

    /// The data rails, then the notify queue pair.
    pub(super) fn all_rails_mut(&mut self) -> impl Iterator<Item = &mut Rail<Q, DEPTH>> {
        self.rails.iter_mut().chain(self.scheme.notify_mut())
    }

    pub(super) fn rail(&self, id: RailId) -> Option<&Rail<Q, DEPTH>> {
        if let RailId::Data(at) = id { self.rails.get(at as usize) } else { self.scheme.notify() }
    }

    #[inline]
    pub(super) fn rail_mut(&mut self, id: RailId) -> Option<&mut Rail<Q, DEPTH>> {
        let Self { rails, scheme, .. } = self;
        if let RailId::Data(rail) = id { rails.get_mut(rail as usize) } else { scheme.notify_mut() }
    }

    /// Checks what must hold between any two calls. Called after every step in debug builds.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold, which is a bug of this crate.
    pub fn invariants(&self) {
        self.sends.invariants();
        self.recvs.invariants();
        if let SchemeState::Dqplb(dqplb) = &self.scheme {
            dqplb.invariants();
        }
        if !self.is_multi() {
            return;
        }
        for rail in self.all_rails() {
            rail.sends.invariants();
            assert!(rail.recvs.posted() <= rail.recvs.limit());
        }
        self.dispatch_invariants();
        self.pass_through_invariants();
        self.ahead_invariants();
        self.list_invariants();
        self.taken_back_invariants();
    }

    #[inline]
    pub(super) fn debug_invariants(&self) {
        #[cfg(debug_assertions)]
        self.invariants();
    }
}
