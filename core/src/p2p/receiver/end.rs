//! The receiver itself: its parts, and what its owner may look at.

use super::slot::{Slot, State, Withdrawal};
use crate::hardware::{QueuePair, ReceiveQueue};
use crate::p2p::card::{Ports, ReceiverCard, RemoteMemory, SenderCard};
use crate::p2p::entry::{ENTRY_BYTES, EntryForm, MAX_BUFFERS, ring_words};
use crate::p2p::error::{BuildError, CardError, Failure};
use crate::p2p::immediate::{ImmLayout, MAX_SLOTS};
use crate::p2p::lane::Lane;
use crate::p2p::lanes::{Devices, Lanes, connect, devices, lanes, ports};
use crate::p2p::mask::Mask;
use crate::p2p::memory::{Region, Words};
use crate::p2p::pool::Account;
use crate::p2p::record::RECORD_WORDS;
use crate::rail::{MAX_RAILS, RailCounters, Reroute};
use crate::verbs::DeviceId;
use arrayvec::ArrayVec;

/// What can be chosen about a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// Its number on its virtual completion queue, where each target has its own.
    pub virtual_qp_num: u32,
    /// How many rails there are, 1 to 8; the same at both ends.
    pub rails: u8,
    /// Other rails take over from one that fails; the same at both ends. See
    /// [Rails that fail](crate::p2p::Sender#rails-that-fail).
    pub reroutes: bool,
    /// With fewer rails in service the connection fails at once, if it re-routes. With 0, messages
    /// wait for a rail for as long as its owner likes.
    pub min_rails: u8,
    /// Rails over which no entries are written while another rail is in service; none by default.
    /// The sender's [`standby`](crate::p2p::SenderConfig::standby) decides over which rails messages
    /// come.
    pub standby: Mask,
}

impl Default for ReceiverConfig {
    fn default() -> Self {
        Self { virtual_qp_num: 0, rails: 1, reroutes: false, min_rails: 1, standby: Mask::EMPTY }
    }
}

/// The receiving end of a connection.
///
/// `QPS`, `DEPTH` and `SLOTS` are as those of the [`Sender`](crate::p2p::Sender); `S` is a handle
/// of a device's shared receive queue, `M` the memory of its records. All its state is inside the
/// value; nothing is allocated, ever, and it may be moved at any time.
///
/// # Method families
///
/// *Set-up*, in this order: [`new`](Self::new); [`card`](Self::card), for the peer, and
/// [`connect`](Self::connect) with the peer's;
/// [`VirtualCq::attach`](crate::virtual_cq::VirtualCq::attach).
///
/// *Messages*: [`irecv`](Self::irecv), [`test`](Self::test), [`flush`](Self::flush),
/// [`test_flush`](Self::test_flush). Everything that does not happen in them is driven by
/// [`VirtualCq::poll`](crate::virtual_cq::VirtualCq::poll); no report comes out of it.
///
/// *Health*: [`failure`](Self::failure), [`is_drained`](Self::is_drained), [`fail`](Self::fail),
/// [`counters`](Self::counters).
///
/// *Rails that fail*: the methods of [`ConnectionEnd`](crate::p2p::ConnectionEnd).
///
/// # Buffer ownership
///
/// Buffers belong to the connection, and so to the peer, from [`irecv`](Self::irecv) until
/// [`test`](Self::test) says that they are done, or that the connection has failed. It says that
/// only when the peer can write them no more.
///
/// # When the connection fails
///
/// A peer that breaks the protocol fails the connection, and so does a rail that fails, unless
/// others take over ([Rails that fail](crate::p2p::Sender#rails-that-fail)); no other connection on
/// the same pools: the first [failure](Self::failure) is kept, all queue pairs are moved to the
/// error state and drained, by polls, until none of them takes a receive any more. Then every
/// receive that is not done gives its buffers back with that failure.
#[derive(Debug)]
pub struct Receiver<Q, S, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize> {
    pub(super) config: ReceiverConfig,
    pub(super) layout: ImmLayout,
    /// Number of the next receive.
    pub(super) next: u64,
    /// Number of the first receive whose entries are not written yet: from here to `next`,
    /// receives are held.
    pub(super) unwritten: u64,
    /// Buffers of one receive: as many as have their entries in one message of each port of both
    /// ends. Known when the ends are connected.
    pub(super) max_buffers: u8,
    /// Slots that are held, or whose immediates are waited for.
    pub(super) waiting: u32,
    /// Account and rails of each device.
    pub(super) pools: ArrayVec<DevicePool<S>, MAX_RAILS>,
    pub(super) lanes: Lanes<Q, QPS, DEPTH>,
    /// Rails of which a queue pair has been fenced: their shares may come by others.
    pub(super) fenced: Mask,
    /// Rails of which a queue pair has failed.
    pub(super) failed: Mask,
    pub(super) devices: Devices,
    /// The first queue pair of each device, as long as none was replaced.
    pub(super) first_lanes: [u8; MAX_RAILS],
    pub(super) region: Region<M>,
    /// The keys of that for requests on each device.
    pub(super) lkeys: [u32; MAX_RAILS],
    pub(super) is_connected: bool,
    /// The version of cancel on the sender's card.
    pub(super) peer_cancel_version: u32,
    /// The sender is to be asked to give receives back.
    pub(super) wants_back: bool,
    /// Where the sender's entries are to be written, and how.
    pub(super) ring: RemoteMemory,
    pub(super) form: EntryForm,
    /// The loopback queue pair of each device that has one, in no order.
    pub(super) flushes: ArrayVec<FlushLane<Q, DEPTH>, MAX_RAILS>,
    pub(super) slots: [Slot; SLOTS],
}

/// A queue pair for flushes, which is connected to itself.
#[derive(Debug)]
pub(super) struct FlushLane<Q, const DEPTH: usize> {
    pub(super) lane: Lane<Q, DEPTH>,
    pub(super) posted: u64,
    pub(super) succeeded: u64,
}

/// The account of one device, and what a waiting slot needs there.
#[derive(Debug)]
pub(super) struct DevicePool<S> {
    pub(super) account: Account<S>,
    /// Immediates of one message that may come over this device.
    pub(super) each: u32,
    /// The most immediates of one message that may come over this device, if any rails fail.
    pub(super) most: u32,
}

impl<
    Q: QueuePair,
    S: ReceiveQueue,
    M: Words,
    const QPS: usize,
    const DEPTH: usize,
    const SLOTS: usize,
> Receiver<Q, S, M, QPS, DEPTH, SLOTS>
{
    pub(super) const RECORDS_WORDS: usize = SLOTS * RECORD_WORDS;
    pub(super) const STAGING_WORDS: usize = ring_words(SLOTS);
    pub(super) const SCRATCH_WORDS: usize = MAX_RAILS;

    /// Words that its region must have: the records that the sender writes sizes into, entries on
    /// their way to the sender, and what flushes read into.
    pub const REGION_WORDS: usize = Self::RECORDS_WORDS + Self::STAGING_WORDS + Self::SCRATCH_WORDS;

    /// The receiving end over these queue pairs: the first one of each rail, then the second one of
    /// each, and so on. The i-th is to be connected to the sender's i-th; their receives come from
    /// the shared receive queues of their devices, of each of which there is one account.
    /// `flush_queue_pairs`, at most one for each device, are connected to themselves; only
    /// [`flush`](Self::flush) needs them.
    ///
    /// # Errors
    ///
    /// What cannot work is refused here; what was given is dropped.
    pub fn new(
        config: ReceiverConfig,
        queue_pairs: impl IntoIterator<Item = Q>,
        flush_queue_pairs: impl IntoIterator<Item = Q>,
        accounts: impl IntoIterator<Item = Account<S>>,
        region: Region<M>,
    ) -> Result<Self, BuildError> {
        const {
            assert!(SLOTS >= 8, "a receive of 8 buffers needs 8 sends");
            assert!(SLOTS <= MAX_SLOTS, "numbers of slots have 8 bits");
            assert!(QPS <= 1 << 7, "places of queue pairs have 7 bits");
        }
        let rails = config.rails;
        let ReceiverConfig { reroutes, min_rails, standby, .. } = config;
        let mut lanes = lanes(queue_pairs, rails, (reroutes, min_rails, standby))?;
        // A queue pair with its own receive queue takes nothing from the shared one, whose receives
        // are all that this end posts.
        if let Some(own) = lanes.iter().find(|lane| lane.qp.limits().max_recv_wr > 0) {
            return Err(BuildError::OwnReceives { qp_num: own.qp_num });
        }
        let devices = devices(&mut lanes);
        region.check(Self::REGION_WORDS, &devices)?;
        let mut first_lanes = [0; MAX_RAILS];
        for (place, lane) in lanes.iter().enumerate().rev() {
            // Backwards, so that the first queue pair of each device is the one that stays.
            first_lanes[usize::from(lane.device_at)] = place as u8;
        }
        let layout = ImmLayout::new(rails).ok_or(BuildError::Rails { rails })?;
        let mut this = Self {
            config,
            layout,
            next: 1,
            unwritten: 1,
            max_buffers: 0,
            waiting: 0,
            pools: ArrayVec::new(),
            lanes: Lanes::new(lanes, Reroute::new(reroutes, min_rails), standby),
            fenced: Mask::EMPTY,
            failed: Mask::EMPTY,
            lkeys: region.lkeys(&devices),
            devices,
            first_lanes,
            region,
            is_connected: false,
            peer_cancel_version: 0,
            wants_back: false,
            ring: RemoteMemory::default(),
            form: EntryForm::default(),
            flushes: flush_lanes(flush_queue_pairs)?,
            slots: [Slot::BLANK; SLOTS],
        };
        this.take_accounts(accounts)?;
        Ok(this)
    }

    /// Puts the accounts into the order of the devices.
    fn take_accounts(
        &mut self,
        accounts: impl IntoIterator<Item = Account<S>>,
    ) -> Result<(), BuildError> {
        let mut given = ArrayVec::<_, MAX_RAILS>::new();
        for account in accounts {
            let device = account.device();
            let is_needed = self.devices.contains(&device);
            let is_new = given.iter().all(|other: &Account<S>| other.device() != device);
            if !is_needed || !is_new || given.try_push(account).is_err() {
                return Err(BuildError::Account { device });
            }
        }
        for device in &self.devices {
            let place = given.iter().position(|account| account.device() == *device);
            let account = place.and_then(|place| given.swap_pop(place));
            let account = account.ok_or(BuildError::Account { device: *device })?;
            self.pools.push(DevicePool { account, each: 0, most: 0 });
        }
        self.count_rails();
        Ok(())
    }

    /// Counts, for each device, the immediates of one message that may come over it: one for each
    /// rail that is on it, and one for each rail elsewhere that ever failed, whose shares may be
    /// moved here. None, if no queue pair on it takes any.
    pub(super) fn count_rails(&mut self) {
        let Self { pools, lanes, failed, config, .. } = self;
        for (at, pool) in pools.iter_mut().enumerate() {
            let takes = |lane: &&Lane<Q, DEPTH>| {
                usize::from(lane.device_at) == at && !lane.health.lifecycle.is_drained()
            };
            let own =
                lanes.iter().filter(takes).fold(Mask::EMPTY, |own, lane| own | Mask::of(lane.rail));
            let all = if config.reroutes { u32::from(config.rails) } else { own.count() };
            // On a device without a queue pair that takes receives, no share can arrive, moved or
            // not.
            let moved = if own.is_empty() { Mask::EMPTY } else { *failed };
            pool.each = (own | moved).count();
            pool.most = all;
        }
    }

    /// Returns the description of this receiver that the sender needs to connect.
    pub fn card(&self) -> ReceiverCard {
        let Self { devices, region, .. } = self;
        let records = RemoteMemory { addr: region.addr(0), rkeys: region.rkeys(devices) };
        let depth = self.lanes.iter().map(|lane| lane.queue.limit()).min().unwrap_or_default();
        ReceiverCard { ports: self.ports(), records, depth }
    }

    fn ports(&self) -> Ports {
        ports(&self.lanes, self.config.rails, SLOTS, self.config.reroutes)
    }

    /// Takes the sender's card. The queue pairs are connected by then, or will be before the first
    /// receive.
    ///
    /// # Errors
    ///
    /// The two ends do not fit; nothing changed.
    pub fn connect(&mut self, peer: &SenderCard) -> Result<(), CardError> {
        self.check_card(peer)?;
        connect(&mut self.lanes, &peer.ports);
        // The entries of a receive go in one message, through a port of either end.
        let shortest = self.lanes.iter().map(|lane| lane.max_message).min().unwrap_or_default();
        self.max_buffers = (shortest as usize / ENTRY_BYTES).min(MAX_BUFFERS) as u8;
        self.is_connected = true;
        self.peer_cancel_version = peer.ports.cancel_version;
        (self.ring, self.form) = (peer.ring, peer.form);
        Ok(())
    }

    /// Whether [`connect`](Self::connect) would take this card, for owners that have more to
    /// connect.
    ///
    /// # Errors
    ///
    /// The error that `connect` would return.
    pub fn check_card(&self, peer: &SenderCard) -> Result<(), CardError> {
        if self.is_connected {
            return Err(CardError::Connected);
        }
        self.ports().fit(&peer.ports)?;
        peer.ring.check(ring_words(SLOTS) * size_of::<u64>())
    }

    /// What it was made with.
    pub const fn config(&self) -> &ReceiverConfig {
        &self.config
    }

    /// The devices of its rails, in the order that the card means.
    pub fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// Its queue pairs, in their order.
    pub fn queue_pairs(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.lanes.iter().map(|lane| &lane.qp)
    }

    /// Its queue pairs for flushes.
    pub fn flush_queue_pairs(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.flushes.iter().map(|flush| &flush.lane.qp)
    }

    /// Its accounts, in the order of the devices.
    pub fn accounts(&self) -> impl ExactSizeIterator<Item = &Account<S>> {
        self.pools.iter().map(|pool| &pool.account)
    }

    /// What a queue pair has done so far.
    pub fn counters(&self, queue_pair: usize) -> Option<RailCounters> {
        self.lanes.get(queue_pair).map(Lane::counters)
    }

    /// Receives that are not done, or that were not reported to their callers.
    pub fn unfinished(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.is_reported()).count()
    }

    /// Why the connection failed, if it did.
    pub const fn failure(&self) -> Option<&Failure> {
        self.lanes.failure.as_ref()
    }

    /// Whether no device accesses any buffer of this end any more, of a connection that failed.
    pub fn is_drained(&self) -> bool {
        let drained = |lane: &Lane<Q, DEPTH>| lane.is_drained;
        self.lanes.failure.is_some()
            && self.lanes.iter().all(drained)
            && self.flushes.iter().all(|flush| flush.lane.is_drained)
    }

    /// Gives the connection up: what is not done fails.
    pub fn fail(&mut self) {
        self.give_up(Failure::Owner);
    }

    /// Gives the connection up because rails that came back carry nothing: the engine reads no
    /// clock, so its owner decides when.
    pub fn not_healed(&mut self) {
        self.give_up(Failure::NotHealed);
    }

    /// The peer's end reports that it failed: so does this one.
    pub fn peer_failed(&mut self) {
        self.give_up(Failure::Peer);
    }

    #[cold]
    pub(super) fn give_up(&mut self, failure: Failure) {
        // Once: the first failure is kept, and its draining has begun.
        if self.lanes.give_up(failure) {
            for flush in &mut self.flushes {
                flush.lane.stop();
            }
            self.drain();
        }
    }

    /// Goes on draining queue pairs, of a connection that failed. What they took at the cost of
    /// other connections is posted again.
    pub(super) fn drain(&mut self) {
        for lane in self.lanes.iter_mut() {
            lane.drain(true);
        }
        for flush in &mut self.flushes {
            flush.lane.drain(false);
        }
        for pool in &mut self.pools {
            // If its driver refuses, a later poll asks again.
            let _ = pool.account.pay_back();
        }
    }

    /// Ends the connection, and gives queue pairs and accounts back; those queue pairs for flushes
    /// come last. Buffers of receives that are not done are the caller's when the queue pairs are
    /// destroyed. Completions that come still are [foreign](crate::virtual_cq::Event::Foreign), and
    /// the [pool's](crate::p2p::Pool::note_foreign).
    pub fn into_parts(self) -> (impl Iterator<Item = Q>, impl Iterator<Item = Account<S>>) {
        let flushes = self.flushes.into_iter().map(|flush| flush.lane.qp);
        let queue_pairs = self.lanes.all.into_iter().map(|lane| lane.qp).chain(flushes);
        (queue_pairs, self.pools.into_iter().map(|pool| pool.account))
    }

    /// The slot of a receive.
    #[inline]
    pub(super) const fn slot_at(number: u64) -> usize {
        (number.wrapping_sub(1) % SLOTS as u64) as usize
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub fn invariants(&self) {
        self.lanes.invariants();
        for lane in self.lanes.iter() {
            let works = lane.health.lifecycle.is_in_service() && self.lanes.failure.is_none();
            assert!(works || lane.is_stopped, "nothing is posted to what failed");
        }
        let count = |state| self.slots.iter().filter(|slot| slot.state == state).count();
        let held = count(State::Held);
        assert_eq!(
            count(State::Waiting) + held,
            self.waiting as usize,
            "waiting slots are counted"
        );
        if self.lanes.failure.is_none() {
            let numbers = self.unwritten..self.next;
            assert_eq!(numbers.clone().count(), held, "what is held is written later");
            for number in numbers {
                let slot = &self.slots[Self::slot_at(number)];
                assert!(slot.number == number && slot.state == State::Held && slot.seen.is_empty());
                let is_unasked = matches!(slot.withdrawal(), None | Some(Withdrawal::Wanted));
                assert!(is_unasked, "the sender does not know of it");
            }
            for slot in self.slots.iter().filter(|slot| slot.state == State::Waiting) {
                assert!(!slot.is_complete() && (slot.seen & slot.mask) == slot.seen);
            }
            // What has come of waiting slots is not waited for any more. What shares that are moved
            // need is there before the peer is sent the message to move them, which may be later.
            let came = self.slots.iter().filter(|slot| slot.state == State::Waiting);
            let came: u32 = came.map(|slot| slot.seen.count()).sum();
            for (at, pool) in self.pools.iter().enumerate() {
                let each = if self.failed.is_empty() { pool.each } else { 0 };
                let promised = (self.waiting * each).saturating_sub(came);
                // What a driver did not take is asked for again.
                let is_posted = pool.account.covers(promised) || self.lanes.needs_recovery;
                assert!(is_posted, "what device {at} promised is posted");
            }
        }
    }
}

/// Makes lanes for flushes.
fn flush_lanes<Q: QueuePair, const DEPTH: usize>(
    queue_pairs: impl IntoIterator<Item = Q>,
) -> Result<ArrayVec<FlushLane<Q, DEPTH>, MAX_RAILS>, BuildError> {
    let mut lanes = ArrayVec::<FlushLane<Q, DEPTH>, MAX_RAILS>::new();
    for qp in queue_pairs {
        let lane = Lane::new(qp, lanes.len(), MAX_RAILS as u8);
        lane.check(1)?;
        let device = lane.device;
        let is_new = lanes.iter().all(|other| other.lane.device != device);
        let given = lanes.len() + 1;
        if !is_new {
            return Err(BuildError::Account { device });
        }
        let all = BuildError::QueuePairs { given, rails: MAX_RAILS as u8, max: MAX_RAILS };
        lanes.try_push(FlushLane { lane, posted: 0, succeeded: 0 }).map_err(|_| all)?;
    }
    Ok(lanes)
}
