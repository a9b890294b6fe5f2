//! The virtual queue pair itself: its parts, and what its owner may look at.

use super::choose::Chooser;
use super::config::Config;
use super::data_receives::DataReceives;
use super::error::Health;
use super::pass_through::PassThrough;
use super::reroute::Reroute;
use super::scheme::{Offers, SchemeState};
use super::slot::{Ahead, Devices, Recvs, Sends, SlotState};
use crate::hardware::QueuePair;
use crate::rail::{Rail, RailCounters, RailId};
use crate::verbs::ImmOrder;
use arrayvec::ArrayVec;

/// One queue pair made of up to `RAILS` physical ones.
///
/// Each rail may have `DEPTH` requests in flight; `WRS` sends and `WRS` receives may be
/// unreported. Both are powers of two, `DEPTH` from 8 to 2^15. All memory is inside the value,
/// `size_of` tells how much; nothing is allocated, ever, and the value may be moved at any time.
///
/// # Method families
///
/// *Set-up*, in this order: [`new`](Self::new); with DQPLB [`prepare_receives`](Self::prepare_receives)
/// while the queue pairs are in INIT, and [`set_peer_window`](Self::set_peer_window) with what the
/// peer's card says; [`limit_max_msg_size`](Self::limit_max_msg_size) if the peer's fragments are shorter;
/// [`pair_devices`](Self::pair_devices) if the peer has another number of devices;
/// [`VirtualCq::attach`](crate::virtual_cq::VirtualCq::attach).
///
/// *Data path*: [`post_send`](Self::post_send), [`post_many`](Self::post_many),
/// [`post_list`](Self::post_list), [`post_recv`](Self::post_recv),
/// [`post_recv_list`](Self::post_recv_list). Completions come
/// out of [`VirtualCq::poll`](crate::virtual_cq::VirtualCq::poll), which drives everything that
/// does not happen inside a post.
///
/// *Health*: [`state`](Self::state), [`failure`](Self::failure), [`first_error`](Self::first_error),
/// [`take_protocol_error`](Self::take_protocol_error), [`check_stalled`](Self::check_stalled),
/// [`set_rail_in_service`](Self::set_rail_in_service), [`reserve_rail`](Self::reserve_rail),
/// [`counters`](Self::counters).
///
/// *Rails that fail*: [`next_control`](Self::next_control), [`control`](Self::control),
/// [`take_rail_event`](Self::take_rail_event), [`replace_rail`](Self::replace_rail) and others, see below.
///
/// # Example
///
/// Over any backend; `core/examples/loopback` is a whole one, and runs.
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
/// only after every completion of its posted fragments is in, failed or not, so a reported buffer
/// is never touched again.
///
/// # Order
///
/// Over several rails. *Fragmented* are WRITE, WRITE_WITH_IMM and READ; *pass-through* are SENDs and
/// atomics, which all use rail 0. *Complete* is what the peer's NIC has acknowledged, the notify
/// included. Everything that is not in the table may overtake, and what waits holds up nothing else
/// but what is posted behind it and of its own kind.
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
/// A fragmented request with FENCE may wait, besides, for SENDs and atomics that were posted after it,
/// as long as others are ahead of it.
///
/// A [signal](crate::verbs::SendWr::signal), a WRITE_WITH_IMM of no bytes, keeps this order too: it tells
/// the peer that what was posted before is there.
///
/// So a READ of what an earlier WRITE wrote needs FENCE: one rail says nothing about the others.
/// A request that is reported [when it is done](crate::verbs::ReportOrder::WhenDone) tells nothing of those before it.
/// Pass-through requests are reported when they complete, neither before nor after fragmented ones.
/// Over one rail the order is that of a reliable connection.
///
/// With DQPLB a request that is SOLICITED starts when earlier ones with immediate that are not are
/// complete: a fragment that wakes nobody could be the last to arrive.
///
/// # Rails that fail
///
/// With [`RailFailure::Reroute`](super::RailFailure::Reroute), chosen at both ends, a rail that fails
/// costs no request. The rail's queue pair is moved to the error state, at both ends; each end tells the
/// other how many requests arrived; what did not arrive is posted again, and may then be reported. A
/// request is never reported while a lost copy of it may still be carried out.
///
/// The owner carries the ends' messages, [`next_control`](Self::next_control) and
/// [`control`](Self::control), over whatever link it has, and makes a new queue pair for a rail that is
/// [Down](super::RailState::Down) ([`replace_rail`](Self::replace_rail)); it may say itself that a rail has
/// failed ([`fail_rail`](Self::fail_rail), [`lose_rail`](Self::lose_rail)), and reads what happened
/// ([`take_rail_event`](Self::take_rail_event)). Until then:
///
/// | waits for | |
/// |---|---|
/// | the other rails' credits | fragments |
/// | the fence of the rail that failed | reports, notifications and FENCE behind what it lost |
/// | a new queue pair for rail 0 | SENDs, atomics, receives with buffers |
/// | a new notify queue pair | notifications of SPRAY, and what is posted behind them and in their order |
///
/// Until it is reported, a WRITE may be carried out more than once: a peer that watches its memory must
/// not reuse it before it is told. An atomic that was lost fails, and the virtual queue pair with it: nobody
/// can know whether it was carried out. INLINE requests are refused, since their data would be gone.
/// Completions of every queue must be polled: one that is not, for long, keeps the fence waiting.
///
/// What no other rail would do better (a bad key, a length) fails for good, as does a request behind more
/// than twice as many failures of devices and drivers as there are rails; so do fewer rails in service than
/// [`min_rails`](super::Config::min_rails), a peer that failed for good, and one that lost completions
/// ([`failure`](Self::failure)). Then [`unfenced`](Self::unfenced) names the rails through which the peer's
/// memory may still be written.
///
/// # Time
///
/// Every call ends after a number of steps that the type and its arguments bound. The length of a request is not among
/// them: what finds no room on the rails now is not looked at before there is room.
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
/// With [`LeastFinishTime`](super::RailChoice::LeastFinishTime) each doorbell deals out as many fragments as there are
/// credits, for each of which it looks at every rail. With DQPLB, while rails are down and after that, each request
/// with immediate looks at all requests in flight for the oldest number.
///
/// # One rail
///
/// A virtual queue pair of one rail is that queue pair: the caller's `wr_id`, the driver's
/// queue-full, and no tracking at all.
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
    /// What is to be offered to drivers again.
    pub(super) offers: Offers,
    /// Sends that were reported ahead of their turn.
    pub(super) ahead: Ahead,
    /// Places in the ring of sends that buffers have.
    pub(super) parts: usize,
    /// Buffers that a request of any rail can have, as far as the engine makes use of them.
    pub(super) max_sge: u32,
    /// Buffers that a receive on rail 0 can have, in the same way.
    pub(super) max_recv_sge: u32,
    /// Which ring is looked at first for the next report: they take turns.
    pub(super) recvs_first: bool,
    /// The devices of the rails.
    pub(super) devices: Devices<RAILS>,
    /// How receivers of a WRITE_WITH_IMM learn of it.
    pub(super) scheme: SchemeState<Q, RAILS, DEPTH>,
    /// Receives with buffers.
    pub(super) data_receives: DataReceives<RAILS, DEPTH>,
    /// What becomes of rails that fail.
    pub(super) reroute: Reroute,
}

/// What is needed of the configuration for every request, of a single rail all beside that rail: with thousands of
/// queue pairs each cache line is a miss.
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
        // A type of one rail knows it when it is compiled.
        RAILS > 1 && self.rails.len() > 1
    }

    /// What it was built with, and of fragments what was [agreed on](Self::limit_max_msg_size) since.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number that its completions carry.
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

    /// A physical queue pair, to be connected, queried, or moved to the error state.
    ///
    /// SQD and back to RTS is fine too, to change its path, say: its driver takes requests meanwhile, and starts
    /// them when the send queue goes on. ([`check_stalled`](Self::check_stalled) names a rail that takes long.) RESET
    /// is not: what is outstanding would be forgotten, and never complete. A rail begins again with ERR, which
    /// completes all that it has, and with [another queue pair](Self::replace_rail).
    pub fn physical(&self, rail: RailId) -> Option<&Q> {
        self.rail(rail).map(|rail| &rail.qp)
    }

    /// A physical queue pair for backends whose queue pairs want `&mut` for more than posting.
    ///
    /// # Safety
    ///
    /// The queue pair is neither replaced nor swapped with another one: the engine would take the
    /// completions of one for those of the other, and report buffers that are in flight. What is
    /// posted to it past the engine has `wr_id`s without [`ENGINE_WR_ID`](crate::hardware::ENGINE_WR_ID);
    /// its completions come out as [foreign](crate::virtual_cq::Event::Foreign).
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn physical_mut(&mut self, rail: RailId) -> Option<&mut Q> {
        self.rail_mut(rail).map(|rail| &mut rail.qp)
    }

    /// What a physical queue pair has done so far.
    pub fn counters(&self, rail: RailId) -> Option<RailCounters> {
        self.rail(rail).map(Rail::counters)
    }

    /// Sends that were accepted and are not complete, or not reported; unsignaled ones count until they
    /// are complete. With one rail nothing is tracked: 0.
    pub fn unreported_sends(&self) -> usize {
        let in_ring = self.sends.unreported_count() - self.ahead.count() - self.parts;
        in_ring + self.pass_through.incomplete() - self.pass_through.unpassed()
    }

    /// Notification receives that were accepted and not reported.
    pub fn unreported_recvs(&self) -> usize {
        self.recvs.unreported_count()
    }

    /// Completion queue entries that one physical queue pair of several can need at the same time:
    /// on an error every request of both its queues completes. The only rail of a virtual queue
    /// pair takes what its driver takes: there it is the sum of the driver's two limits.
    pub const fn cq_entries_per_qp() -> u32 {
        2 * DEPTH as u32
    }

    /// Completion queue entries that all physical queue pairs together can need, the notify
    /// queue pair included, if there are several.
    pub const fn cq_entries() -> u32 {
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
        match id {
            RailId::Data(rail) => self.rails.get(rail as usize),
            RailId::Notify => self.scheme.notify(),
        }
    }

    #[inline]
    pub(super) fn rail_mut(&mut self, id: RailId) -> Option<&mut Rail<Q, DEPTH>> {
        let Self { rails, scheme, .. } = self;
        if let RailId::Data(rail) = id { rails.get_mut(rail as usize) } else { scheme.notify_mut() }
    }

    /// Whether a data rail may be given requests, credits aside. One that has lost fragments posts
    /// those first, and no others: their places are taken.
    #[inline]
    fn may_carry(&self, at: usize) -> bool {
        self.rails[at].carries && !self.is_owed(at)
    }

    /// Whether the driver of a data rail is to be offered something again before anything else.
    #[inline]
    pub(super) fn is_owed(&self, at: usize) -> bool {
        let rail = &self.rails[at];
        rail.sends.is_partial() || self.offers.sends.contains(rail.id)
    }

    /// Whether a data rail may be given fragments, credits aside.
    #[inline]
    pub(super) fn may_accept(&self, at: usize) -> bool {
        self.may_carry(at) && (!self.rails[at].is_reserved || self.stands_alone(at))
    }

    /// Whether no other data rail takes fragments.
    #[cold]
    fn stands_alone(&self, at: usize) -> bool {
        let takes = |(other, rail): (usize, &Rail<Q, DEPTH>)| {
            other != at && rail.carries && !rail.is_reserved
        };
        !self.rails.iter().enumerate().any(takes)
    }

    /// Takes note of what may have changed whether a data rail takes fragments.
    #[inline]
    pub(super) fn update_availability(&mut self, at: usize) {
        let accepts = self.may_accept(at);
        let rail = &mut self.rails[at];
        rail.set_accepts(accepts);
        let has_credit = rail.sends.credits() > 0;
        self.chooser.set_available(rail.turn_bit, rail.accepts() && has_credit);
    }

    /// Whether rail 0 takes a new pass-through request now.
    pub(super) fn rail_0_has_room(&self) -> bool {
        self.may_carry(0) && self.rails[0].sends.credits() > 0
    }

    /// Whether rail 0 takes a pass-through request now that was accepted before. No other rail can carry it, so it
    /// does not matter whether the owner has taken rail 0 out of service meanwhile.
    pub(super) fn rail_0_has_room_for_accepted(&self) -> bool {
        let Rail { lifecycle, sends, .. } = &self.rails[0];
        lifecycle.is_in_service() && !sends.has_lost() && !self.is_owed(0) && sends.credits() > 0
    }

    /// Checks what must hold between any two calls. Called after every step in debug builds.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
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
    }

    #[inline]
    pub(super) fn debug_invariants(&self) {
        #[cfg(debug_assertions)]
        self.invariants();
    }
}
