//! The virtual queue pair: one queue pair made of many.
//!
//! A request's way, in the order of the files:
//!
//! 1. `post`: the request is checked, then takes a slot of the ring, or passes straight through;
//! 2. `dispatch`: its fragments go to rails, in batches; `choose` says to which;
//! 3. `complete`: completions retire batches;
//! 4. `notify`: what is acknowledged moves on, and SPRAY's receiver is told;
//! 5. `report`: finished requests come out, in posting order.
//!
//! `deferred` is about SENDs and atomics that have to wait, `receive` about receives; `failure` is what
//! happens when a rail fails; `rail` and `slot` hold the state of one rail and of one request; `config`
//! and `error` are plain data.

mod choose;
mod complete;
mod config;
mod deferred;
mod dispatch;
mod error;
mod failure;
mod notify;
mod numbers;
mod post;
mod rail;
mod receive;
mod report;
mod slot;

pub use config::{
    BuildError, Config, FRAGMENT_ALIGN, PassThroughOrder, PeerWindow, RailChoice, RailFailure,
    Scheme,
};
pub use error::{PostError, ProtocolError, RailError, RailId};
pub use failure::{QpState, RailSet};
pub use rail::RailCounters;
pub use receive::PeerWindowError;

use crate::hardware::QueuePair;
use crate::routing::Role;
use crate::tracker::WrTracker;
use crate::verbs::DeviceId;
use crate::window::SequenceWindow;
use arrayvec::ArrayVec;
use choose::Chooser;
use deferred::Deferred;
use numbers::SendNumbers;
use rail::Rail;
use receive::ReceiveKind;
use slot::{RecvSlot, SendSlot};

/// Rails that one virtual queue pair can have.
pub const MAX_RAILS: usize = 8;

/// One queue pair made of up to `RAILS` physical ones.
///
/// Each rail may have `DEPTH` requests in flight; `WRS` sends and `WRS` receives may be
/// unreported. Both are powers of two. All memory is inside the value, `size_of` tells how much;
/// nothing is allocated, ever, and the value may be moved at any time.
///
/// # Method families
///
/// *Set-up*, in this order: [`new`](Self::new); with DQPLB [`prepare_receives`](Self::prepare_receives)
/// while the queue pairs are in INIT, and [`set_peer_window`](Self::set_peer_window) with what the
/// peer's card says; [`VirtualCq::attach`](crate::virtual_cq::VirtualCq::attach).
///
/// *Data path*: [`post_send`](Self::post_send), [`post_recv`](Self::post_recv). Completions come
/// out of [`VirtualCq::poll`](crate::virtual_cq::VirtualCq::poll), which drives everything that
/// does not happen inside a post.
///
/// *Health*: [`state`](Self::state), [`first_error`](Self::first_error),
/// [`take_protocol_error`](Self::take_protocol_error), [`check_stalled`](Self::check_stalled),
/// [`set_rail_in_service`](Self::set_rail_in_service), [`counters`](Self::counters).
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
/// | fragmented | fragmented | started in posting order, and reported in posting order; on the wire they overtake |
/// | fragmented | pass-through | may overtake |
/// | pass-through | pass-through | in posting order, as on one connection |
/// | pass-through | fragmented | [`Ordered`](PassThroughOrder::Ordered): starts when they are complete; [`Unordered`](PassThroughOrder::Unordered): may overtake |
/// | notification of a WRITE_WITH_IMM | fragmented | arrives when they are complete |
/// | notification of a WRITE_WITH_IMM | pass-through | `Ordered`: arrives when they are complete; `Unordered`: may overtake |
/// | any request with FENCE | any | starts when they are complete |
///
/// A fragmented request with FENCE may wait, besides, for SENDs and atomics that were posted after it,
/// as long as others are ahead of it.
///
/// So a READ of what an earlier WRITE wrote needs FENCE: one rail says nothing about the others.
/// Pass-through requests are reported when they complete, neither before nor after fragmented ones.
/// Over one rail the order is that of a reliable connection.
///
/// With DQPLB a request that is SOLICITED starts when earlier ones with immediate that are not are
/// complete: a fragment that wakes nobody could be the last to arrive.
///
/// # One rail
///
/// A virtual queue pair of one rail is that queue pair: the caller's `wr_id`, the driver's
/// queue-full, and no tracking at all.
#[derive(Debug)]
#[repr(C)] // with a single rail all that traffic touches stands at the front
pub struct VirtualQp<Q, const RAILS: usize, const DEPTH: usize, const WRS: usize> {
    config: Config,
    rails: ArrayVec<Rail<Q, DEPTH>, RAILS>,
    /// An error put the virtual queue pair into the error state.
    failed: bool,
    chooser: Chooser<RAILS>,
    sends: WrTracker<SendSlot<RAILS>, WRS>,
    recvs: WrTracker<RecvSlot, WRS>,
    /// Pass-through requests in flight that took no place in the ring.
    passing: u32,
    /// Pass-through requests that had to wait.
    deferred: Deferred,
    /// Rail 0's next request when the fence that is waited at came to the front.
    fence_mark: Option<u64>,
    /// Rails whose driver refused something that has to be offered again.
    retry: RailSet,
    /// Rails whose posted receives have sunk to the low-water mark (DQPLB), or whose driver refused
    /// receives that have to be offered again.
    refill: RailSet,
    /// The turn bit of the rail that completions came from last: waiting requests go there first.
    freed: u8,
    /// Which ring is looked at first for the next report: they take turns.
    recvs_first: bool,
    notify: Option<Rail<Q, DEPTH>>,
    /// The devices of the rails, each once; `keys` of a slot are in this order.
    devices: ArrayVec<DeviceId, RAILS>,
    numbers: SendNumbers,
    /// DQPLB: the request after the newest one that rails were given and that has no numbers,
    /// though a notification behind it tells of it.
    unnumbered_until: u64,
    /// DQPLB: the request after the newest one that has numbers and wakes nobody.
    unsolicited_until: u64,
    window: SequenceWindow<RAILS, DEPTH>,
    /// DQPLB notifications that arrived before their receives were posted.
    early_notifications: u64,
    /// What rail 0's receive queue is used for, once it is used.
    receive_kind: Option<ReceiveKind>,
    /// The callers' `wr_id`s of data receives on rail 0, by sequence number.
    data_recvs: [u64; DEPTH],
    first_error: Option<RailError>,
    protocol_error: Option<ProtocolError>,
    protocol_errors: u64,
    duplicates: u64,
}

impl<Q: QueuePair, const RAILS: usize, const DEPTH: usize, const WRS: usize>
    VirtualQp<Q, RAILS, DEPTH, WRS>
{
    /// Makes one queue pair out of `rails`, with `notify` for SPRAY's notifies.
    ///
    /// The i-th rail is to be connected to the peer's i-th. Rail 0 also carries pass-through
    /// requests and data receives.
    ///
    /// # Errors
    ///
    /// What cannot work is refused here rather than in the middle of traffic; the queue pairs
    /// are dropped.
    pub fn new(
        config: Config,
        rails: impl IntoIterator<Item = Q>,
        notify: Option<Q>,
    ) -> Result<Self, BuildError> {
        const { assert!(RAILS >= 1 && RAILS <= MAX_RAILS, "1 to 8 rails") };
        let mut qp = Self::empty(config);
        for (number, rail) in rails.into_iter().enumerate() {
            let id = RailId::Data(number as u8);
            let rail = Rail::new(rail, id, config.max_msgs_per_qp);
            qp.rails.try_push(rail).map_err(|_| BuildError::TooManyRails { max: RAILS })?;
        }
        qp.notify = notify.map(|qp| Rail::new(qp, RailId::Notify, config.max_msgs_per_qp));
        qp.validate()?;
        qp.find_devices();
        qp.chooser = Chooser::new(&config, &mut qp.rails)?;
        qp.numbers = SendNumbers::new(qp.own_window());
        Ok(qp)
    }

    fn empty(config: Config) -> Self {
        Self {
            rails: ArrayVec::new(),
            config,
            failed: false,
            chooser: Chooser::EMPTY,
            sends: WrTracker::new(SendSlot::BLANK),
            recvs: WrTracker::new(RecvSlot::new(0)),
            passing: 0,
            deferred: Deferred::NONE,
            fence_mark: None,
            retry: RailSet::EMPTY,
            refill: RailSet::EMPTY,
            freed: 1,
            recvs_first: false,
            notify: None,
            devices: ArrayVec::new(),
            numbers: SendNumbers::default(),
            unnumbered_until: 0,
            unsolicited_until: 0,
            window: SequenceWindow::new(),
            early_notifications: 0,
            receive_kind: None,
            data_recvs: [0; DEPTH],
            first_error: None,
            protocol_error: None,
            protocol_errors: 0,
            duplicates: 0,
        }
    }

    fn validate(&self) -> Result<(), BuildError> {
        let bytes = self.config.max_msg_size;
        if bytes == 0 || !bytes.is_multiple_of(FRAGMENT_ALIGN) {
            return Err(BuildError::MaxMsgSize { bytes });
        }
        if self.rails.is_empty() {
            return Err(BuildError::NoRails);
        }
        if !self.is_multi() {
            return if self.notify.is_some() { Err(BuildError::UnexpectedNotify) } else { Ok(()) };
        }
        if self.notify.is_some() && self.config.scheme == Scheme::Dqplb {
            return Err(BuildError::UnexpectedNotify);
        }
        if self.config.max_msgs_per_qp == 0 {
            return Err(BuildError::NoMessages);
        }
        for (at, rail) in self.all_rails().enumerate() {
            let qp_num = rail.qp_num;
            if self.all_rails().take(at).any(|r| (r.device, r.qp_num) == (rail.device, qp_num)) {
                return Err(BuildError::Duplicate { device: rail.device, qp_num });
            }
            if rail.sends.limit() == 0 {
                return Err(BuildError::NoRoom { qp_num, send: true });
            }
            if self.config.scheme == Scheme::Dqplb && rail.recvs.limit == 0 {
                return Err(BuildError::NoRoom { qp_num, send: false });
            }
            let limit = rail.qp.limits().max_msg_size;
            if let RailId::Data(rail) = rail.id
                && limit < bytes
            {
                return Err(BuildError::RailMsgSize { rail, bytes, limit });
            }
        }
        Ok(())
    }

    /// Gives every rail the place of its device's keys. Rail 0's is 0.
    fn find_devices(&mut self) {
        for rail in &mut self.rails {
            let known = self.devices.iter().position(|device| *device == rail.device);
            rail.keys_at = known.unwrap_or(self.devices.len()) as u8;
            if known.is_none() {
                self.devices.push(rail.device);
            }
        }
    }

    /// Whether requests are spread: more than one rail.
    #[inline]
    pub fn is_multi(&self) -> bool {
        // A type of one rail knows it when it is compiled.
        RAILS > 1 && self.rails.len() > 1
    }

    /// What it was built with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number that its completions carry.
    #[inline]
    pub fn virtual_qp_num(&self) -> u32 {
        self.config.virtual_qp_num
    }

    /// The data rails, in order.
    pub fn rails(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.rails.iter().map(|rail| &rail.qp)
    }

    /// SPRAY's notify queue pair.
    pub fn notify_qp(&self) -> Option<&Q> {
        self.notify.as_ref().map(|rail| &rail.qp)
    }

    /// A physical queue pair, to be connected, queried or moved to the error state.
    pub fn physical(&self, rail: RailId) -> Option<&Q> {
        match rail {
            RailId::Data(rail) => self.rails.get(rail as usize).map(|rail| &rail.qp),
            RailId::Notify => self.notify.as_ref().map(|rail| &rail.qp),
        }
    }

    /// A physical queue pair for backends whose queue pairs want `&mut` for more than posting.
    ///
    /// # Safety
    ///
    /// The queue pair is neither replaced nor swapped with another one: the engine would take the
    /// completions of one for those of the other, and report buffers that are in flight. What is
    /// posted to it past the engine has `wr_id`s without [`Tag::MARK`](crate::tag::Tag::MARK);
    /// its completions come out as [foreign](crate::virtual_cq::Event::Foreign).
    #[allow(unsafe_code, reason = "a contract for the caller")]
    pub unsafe fn physical_mut(&mut self, rail: RailId) -> Option<&mut Q> {
        self.rail_mut(rail).map(|rail| &mut rail.qp)
    }

    /// What a physical queue pair has done so far.
    pub fn counters(&self, rail: RailId) -> Option<RailCounters> {
        let rail = match rail {
            RailId::Data(rail) => self.rails.get(rail as usize),
            RailId::Notify => self.notify.as_ref(),
        };
        rail.map(Rail::counters)
    }

    /// Sends that were accepted and are not complete, or not reported; unsignaled ones count until they
    /// are complete. With one rail nothing is tracked: 0.
    pub fn outstanding_sends(&self) -> usize {
        let (incomplete, in_ring) = self.deferred.count();
        self.sends.active_count() - in_ring as usize + (incomplete + self.passing) as usize
    }

    /// Notification receives that were accepted and not reported.
    pub fn outstanding_recvs(&self) -> usize {
        self.recvs.active_count()
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
    fn all_rails(&self) -> impl Iterator<Item = &Rail<Q, DEPTH>> {
        self.rails.iter().chain(&self.notify)
    }

    /// Calls `each` for every physical queue pair with its role and the completion queue entries
    /// that it can need.
    pub(crate) fn for_each_physical(&self, each: &mut dyn FnMut(&dyn PhysicalQp, Role, u32)) {
        for rail in self.all_rails() {
            let role = match rail.id {
                RailId::Data(_) if !self.is_multi() => Role::Single,
                RailId::Data(rail) => Role::Rail(rail),
                RailId::Notify => Role::Notify,
            };
            let entries = if self.is_multi() {
                rail.sends.limit() + rail.recvs.limit
            } else {
                let limits = rail.qp.limits();
                limits.max_send_wr.saturating_add(limits.max_recv_wr)
            };
            each(&rail.qp, role, entries);
        }
    }

    /// Checks what must hold between any two calls. Called after every step in debug builds.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub fn invariants(&self) {
        self.sends.invariants();
        self.recvs.invariants();
        self.window.invariants();
        if !self.is_multi() {
            return;
        }
        for rail in self.all_rails() {
            rail.sends.invariants();
            assert!(rail.recvs.posted() <= rail.recvs.limit);
        }
        self.dispatch_invariants();
        self.deferred_invariants();
    }

    #[inline]
    fn debug_invariants(&self) {
        if cfg!(debug_assertions) {
            self.invariants();
        }
    }
}

/// The part of [`QueuePair`] that identifies, as an object.
pub(crate) trait PhysicalQp {
    fn qp_num(&self) -> u32;
    fn device(&self) -> DeviceId;
    fn cq(&self) -> crate::hardware::CqId;
}

impl<Q: QueuePair> PhysicalQp for Q {
    fn qp_num(&self) -> u32 {
        QueuePair::qp_num(self)
    }

    fn device(&self) -> DeviceId {
        QueuePair::device(self)
    }

    fn cq(&self) -> crate::hardware::CqId {
        QueuePair::cq(self)
    }
}
