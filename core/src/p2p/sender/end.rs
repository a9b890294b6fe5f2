//! The sender itself: its parts, and what its owner may look at.

use super::slot::{Slot, Stage, State};
use crate::hardware::QueuePair;
use crate::p2p::card::{Ports, ReceiverCard, RemoteMemory, SenderCard};
use crate::p2p::entry::{ENTRY_BYTES, EntryForm, ring_words};
use crate::p2p::error::{BuildError, CardError, Failure};
use crate::p2p::immediate::{ImmLayout, MAX_SLOTS, SIZE_UNIT};
use crate::p2p::lane::Lane;
use crate::p2p::lanes::{Devices, Lanes, connect, devices, lanes, ports};
use crate::p2p::mask::Mask;
use crate::p2p::memory::{Region, Words};
use crate::p2p::record::{RECORD_BYTES, RECORD_WORDS};
use crate::p2p::split::{Split, SplitPolicy};
use crate::rail::{MAX_RAILS, RailCounters, RailState, Reroute};

/// What can be chosen about a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderConfig {
    /// Its number on its virtual completion queue, where each target has its own.
    pub virtual_qp_num: u32,
    /// How many rails there are, 1 to 8; the same at both ends.
    pub rails: u8,
    /// How long messages are spread over rails.
    pub split: SplitPolicy,
    /// Buffers up to this many bytes go over one rail, in turn. 64 KiB by default.
    pub split_threshold: u32,
    /// Messages of one buffer of this many bytes or more announce their payload with a separate
    /// request, instead of with the payload: networks route requests with an immediate less freely.
    /// With `None`, the default, only messages that one request cannot carry have a separate one.
    pub separate_signal: Option<u32>,
    /// How the receiver is to write entries. [`EntryForm::Plain`] saves the hash, on devices that
    /// promise to write in order.
    pub entry_form: EntryForm,
    /// Other rails take over from one that fails; the same at both ends. See
    /// [Rails that fail](crate::p2p::Sender#rails-that-fail).
    pub reroutes: bool,
    /// With fewer rails in service the connection fails at once, if it re-routes. With 0, messages
    /// wait for a rail for as long as its owner likes.
    pub min_rails: u8,
    /// Rails that carry nothing of a new message while another rail is in service, for example rails
    /// over a slower network; none by default. See [Standby
    /// rails](crate::p2p::Sender#standby-rails).
    pub standby: Mask,
}

impl Default for SenderConfig {
    fn default() -> Self {
        Self {
            virtual_qp_num: 0,
            rails: 1,
            split: SplitPolicy::default(),
            split_threshold: 64 << 10,
            separate_signal: None,
            entry_form: EntryForm::default(),
            reroutes: false,
            min_rails: 1,
            standby: Mask::EMPTY,
        }
    }
}

/// The sending end of a connection.
///
/// `QPS` is how many queue pairs it has room for, the same number for each rail; `DEPTH`, how many
/// requests each may have in flight; `SLOTS`, how many messages may be under way, 8 to 256 and the
/// same at both ends. `M` is the memory of its ring. All its state is inside the value; nothing is
/// allocated, ever, and it may be moved at any time.
///
/// # Method families
///
/// *Set-up*, in this order: [`new`](Self::new); [`card`](Self::card), for the peer, and
/// [`connect`](Self::connect) with the peer's;
/// [`VirtualCq::attach`](crate::virtual_cq::VirtualCq::attach).
///
/// *Messages*: [`isend`](Self::isend), [`test`](Self::test). Everything that does not happen in
/// them is driven by [`VirtualCq::poll`](crate::virtual_cq::VirtualCq::poll); no report comes out
/// of it.
///
/// *Health*: [`failure`](Self::failure), [`is_drained`](Self::is_drained), [`fail`](Self::fail),
/// [`counters`](Self::counters).
///
/// *Rails that fail*: the methods of [`ConnectionEnd`]; see below.
///
/// # Buffer ownership
///
/// A buffer belongs to the connection from [`isend`](Self::isend) until [`test`](Self::test) says
/// that it is done, or that the connection has failed. It says that only when no device reads the
/// buffer any more.
///
/// # When the connection fails
///
/// A peer that breaks the protocol fails the connection, and so does a rail that fails, unless
/// others take over: the first [failure](Self::failure) is kept, all queue pairs are moved to the
/// error state and drained, by polls. Then every request that is not done gives its buffer back
/// with that failure.
///
/// # Rails that fail
///
/// With [`reroutes`](SenderConfig::reroutes), chosen at both ends, a queue pair that fails costs no
/// message. It is moved to the error state at both ends. The receiver reports how many immediates
/// arrived on it, and shares beyond that number are sent again by others. A share never goes out
/// again while the lost one may still be executed.
///
/// The owners of both ends use the trait [`ConnectionEnd`]. They carry the ends' messages,
/// [`next_control`](crate::p2p::ConnectionEnd::next_control) and
/// [`control`](crate::p2p::ConnectionEnd::control), over any link, and make a new queue pair for
/// one that is [Down](crate::virtual_qp::RailState::Down)
/// ([`replace_queue_pair`](crate::p2p::ConnectionEnd::replace_queue_pair)). They may report
/// themselves that one has failed ([`fail_queue_pair`](crate::p2p::ConnectionEnd::fail_queue_pair),
/// [`lose_queue_pair`](crate::p2p::ConnectionEnd::lose_queue_pair)), and read what happened
/// ([`take_rail_event`](crate::p2p::ConnectionEnd::take_rail_event)).
///
/// [`ConnectionEnd`]: crate::p2p::ConnectionEnd
///
/// What no other rail would do better (a bad key, a length) fails the connection, as does a message
/// behind more than twice as many failures of devices and drivers as there are rails.
///
/// # Standby rails
///
/// Rails in [`standby`](SenderConfig::standby) carry new messages, and shares that were lost, only
/// while no other rail, a *home rail*, is in service: while no queue pair of a home rail is. Home
/// rails without credits are in service, so [`isend`](Self::isend) returns
/// [`NoCredits`](crate::p2p::NotNow::NoCredits) then. When a home rail returns, shares that were
/// assigned to standby rails are completed there. The receiver takes shares over any rail, so only
/// the sender's choice matters for them; the receiver's
/// [`standby`](crate::p2p::ReceiverConfig::standby) decides for the entries that it writes. Receives
/// are posted on the devices of standby rails as on others, and standby rails count for
/// [`min_rails`](SenderConfig::min_rails).
#[derive(Debug)]
pub struct Sender<Q, M, const QPS: usize, const DEPTH: usize, const SLOTS: usize> {
    pub(super) config: SenderConfig,
    pub(super) layout: ImmLayout,
    /// Number of the message that is sent next, or is being matched.
    pub(super) next: u64,
    pub(super) split: Split,
    /// Messages of one buffer of up to this many bytes are one request, over one rail.
    pub(super) longest_short: u32,
    /// Those of up to this many bytes are one request on each rail.
    pub(super) longest_fast: u32,
    /// Queue pairs of each rail.
    pub(super) each: usize,
    /// Which of its queue pairs had a rail's last turn.
    pub(super) turns: [u8; MAX_RAILS],
    /// Bytes that each rail has to do.
    pub(super) outstanding: [u64; MAX_RAILS],
    pub(super) lanes: Lanes<Q, QPS, DEPTH>,
    /// The share whose requests a queue pair has not been given all: of that message, of that rail.
    pub(super) owed: [Option<(u64, u8)>; QPS],
    pub(super) owes: bool,
    /// Shares wait for another queue pair.
    pub(super) has_lost: bool,
    /// A send was refused when no rail was in service, and none has returned since.
    pub(super) waits_for_rail: bool,
    pub(super) devices: Devices,
    pub(super) region: Region<M>,
    pub(super) is_connected: bool,
    /// The ends are connected and have not failed, and the receiver wants no receive back whose turn
    /// is to come.
    // One flag, so that a send tests one.
    pub(super) may_send: bool,
    /// Messages that are being taken back, or whose receivers do not know yet that they were.
    pub(super) being_taken_back: u32,
    /// Receives whose turn is to come and which the receiver wants back.
    pub(super) withdrawn: u32,
    /// The receiver is to be sent an answer.
    pub(super) owes_answers: bool,
    /// The version of cancel on the receiver's card.
    pub(super) peer_cancel_version: u32,
    /// The receiver's records.
    pub(super) records: RemoteMemory,
    pub(super) slots: [Slot; SLOTS],
}

impl<Q: QueuePair, M: Words, const QPS: usize, const DEPTH: usize, const SLOTS: usize>
    Sender<Q, M, QPS, DEPTH, SLOTS>
{
    pub(super) const RING_WORDS: usize = ring_words(SLOTS);

    /// Words that its region must have: the ring that the receiver writes entries into, and the
    /// sizes on their way to the receiver.
    pub const REGION_WORDS: usize = Self::RING_WORDS + SLOTS * RECORD_WORDS;

    /// The sending end over these queue pairs: the first one of each rail, then the second one of
    /// each, and so on. The i-th is to be connected to the receiver's i-th. They need no receives.
    ///
    /// # Errors
    ///
    /// What cannot work is refused here; what was given is dropped.
    pub fn new(
        config: SenderConfig,
        queue_pairs: impl IntoIterator<Item = Q>,
        region: Region<M>,
    ) -> Result<Self, BuildError> {
        const {
            assert!(SLOTS >= 8, "a receive of 8 buffers needs 8 sends");
            assert!(SLOTS <= MAX_SLOTS, "numbers of slots have 8 bits");
            assert!(QPS <= 1 << 7, "places of queue pairs have 7 bits");
        }
        let rails = config.rails;
        let SenderConfig { reroutes, min_rails, standby, .. } = config;
        let mut lanes = lanes(queue_pairs, rails, (reroutes, min_rails, standby))?;
        let devices = devices(&mut lanes);
        region.check(Self::REGION_WORDS, &devices)?;
        let layout = ImmLayout::new(rails).ok_or(BuildError::Rails { rails })?;
        Ok(Self {
            config,
            layout,
            next: 1,
            split: Split::new(config.split, config.split_threshold),
            longest_short: 0,
            longest_fast: 0,
            // `lanes` has refused every number of queue pairs that this does not divide.
            each: lanes.len() / usize::from(rails),
            turns: [0; MAX_RAILS],
            outstanding: [0; MAX_RAILS],
            lanes: Lanes::new(lanes, Reroute::new(reroutes, min_rails), standby),
            owed: [None; QPS],
            owes: false,
            has_lost: false,
            waits_for_rail: false,
            devices,
            region,
            is_connected: false,
            may_send: false,
            being_taken_back: 0,
            withdrawn: 0,
            owes_answers: false,
            peer_cancel_version: 0,
            records: RemoteMemory::default(),
            slots: [Slot::BLANK; SLOTS],
        })
    }

    /// Returns the description of this sender that the receiver needs to connect.
    pub fn card(&self) -> SenderCard {
        let Self { devices, region, config, .. } = self;
        let ring = RemoteMemory { addr: region.addr(0), rkeys: region.rkeys(devices) };
        SenderCard { ports: self.ports(), ring, form: config.entry_form }
    }

    fn ports(&self) -> Ports {
        ports(&self.lanes, self.config.rails, SLOTS, self.config.reroutes)
    }

    /// Takes the receiver's card. The queue pairs are connected by then, or will be before the
    /// first poll.
    ///
    /// # Errors
    ///
    /// The two ends do not fit; nothing changed.
    pub fn connect(&mut self, peer: &ReceiverCard) -> Result<(), CardError> {
        self.check_card(peer)?;
        connect(&mut self.lanes, &peer.ports);
        self.is_connected = true;
        self.may_send = self.withdrawn == 0 && self.lanes.failure.is_none();
        self.peer_cancel_version = peer.ports.cancel_version;
        self.records = peer.records;
        let ports = self.lanes.iter().map(|lane| lane.max_message);
        let shortest_port = ports.min().unwrap_or_default();
        let SenderConfig { rails, split_threshold, separate_signal, .. } = self.config;
        // The longest message that one immediate can describe, and that one request carries on
        // every rail.
        // A message of exactly `separate_signal` bytes has a separate signal already.
        let together = separate_signal.map_or(u32::MAX, |least| least.saturating_sub(1));
        let told = self.layout.largest_units().saturating_mul(SIZE_UNIT);
        self.longest_fast = together.min(told).min(shortest_port);
        // With one rail there is nothing to split over, whatever the threshold.
        let unsplit = if rails > 1 { split_threshold } else { u32::MAX };
        self.longest_short = self.longest_fast.min(unsplit);
        Ok(())
    }

    /// Whether [`connect`](Self::connect) would take this card, for owners that have more to
    /// connect.
    ///
    /// # Errors
    ///
    /// The error that `connect` would return.
    pub fn check_card(&self, peer: &ReceiverCard) -> Result<(), CardError> {
        if self.is_connected {
            return Err(CardError::Connected);
        }
        self.ports().fit(&peer.ports)?;
        peer.records.check(SLOTS * RECORD_BYTES)
    }

    /// Sets how the next messages above the threshold are divided among rails, in place of
    /// [`split`](SenderConfig::split), for example because a port has another rate now.
    pub fn set_split(&mut self, split: SplitPolicy) {
        self.split.set_policy(split);
        self.config.split = split;
    }

    /// What it was made with.
    pub const fn config(&self) -> &SenderConfig {
        &self.config
    }

    /// Its queue pairs, in their order.
    pub fn queue_pairs(&self) -> impl ExactSizeIterator<Item = &Q> {
        self.lanes.iter().map(|lane| &lane.qp)
    }

    /// What a queue pair has done so far.
    pub fn counters(&self, queue_pair: usize) -> Option<RailCounters> {
        self.lanes.get(queue_pair).map(Lane::counters)
    }

    /// Returns the payload bytes in flight on a rail, on all its queue pairs.
    pub fn bytes_in_flight(&self, rail: u8) -> u64 {
        self.outstanding.get(usize::from(rail)).copied().unwrap_or(0)
    }

    /// Messages that are not done, or that were not reported to their callers. A message that was
    /// only looked at, for a buffer that did not fit, does not count.
    pub fn unfinished(&self) -> usize {
        self.slots.iter().filter(|slot| slot.awaited != 0).count()
    }

    /// Returns the number of messages that the rails carry and that have not arrived, as far as is
    /// known. Messages that wait for sends of their other buffers, or only for their callers to
    /// test them, do not count.
    pub fn under_way(&self) -> usize {
        let is_carried = |state| matches!(state, State::Sending | State::TakingBack | State::Void);
        self.slots.iter().filter(|slot| is_carried(slot.state)).count()
    }

    /// Returns whether [`isend`](Self::isend) has refused a message, or a poll could not send a [void
    /// one](Self::owes_void_messages), while no rail was in service, and none has returned since. It
    /// is taken for a message that waits, because callers and polls try again.
    pub const fn waits_for_rail(&self) -> bool {
        self.waits_for_rail
    }

    /// Why the connection failed, if it did.
    pub const fn failure(&self) -> Option<&Failure> {
        self.lanes.failure.as_ref()
    }

    /// Whether no device accesses any buffer of this end any more, of a connection that failed.
    pub fn is_drained(&self) -> bool {
        self.lanes.failure.is_some() && self.lanes.iter().all(|lane| lane.is_drained)
    }

    /// Gives the connection up: what is not done fails.
    pub fn fail(&mut self) {
        self.give_up(Failure::Owner);
    }

    /// Gives the connection up because rails do not come back, or carry nothing: the engine reads
    /// no clock, so its owner decides when.
    pub fn not_healed(&mut self) {
        self.give_up(Failure::NotHealed);
    }

    /// Gives the connection up because the peer does not report what arrived on a rail that failed;
    /// its owner decides when.
    pub fn not_fenced(&mut self) {
        self.give_up(Failure::NotFenced);
    }

    /// The peer's end reports that it failed: so does this one.
    pub fn peer_failed(&mut self) {
        self.give_up(Failure::Peer);
    }

    #[cold]
    pub(super) fn give_up(&mut self, failure: Failure) {
        if self.lanes.give_up(failure) {
            // Nothing more is posted for messages that have failed.
            self.owed = [None; QPS];
            self.owes = false;
            self.has_lost = false;
            self.being_taken_back = 0;
            self.may_send = false;
            self.drain();
        }
    }

    pub(super) fn drain(&mut self) {
        for lane in self.lanes.iter_mut() {
            // The sender's queue pairs take no receives.
            lane.drain(false);
        }
    }

    /// Ends the connection, and gives queue pairs back. Buffers of messages that are not done are
    /// the caller's when they are destroyed.
    pub fn into_queue_pairs(self) -> impl Iterator<Item = Q> {
        self.lanes.all.into_iter().map(|lane| lane.qp)
    }

    /// The slot of a message.
    #[inline]
    pub(super) const fn slot_at(number: u64) -> usize {
        // Numbers begin with 1, as in the receiver, whose slots the sender's must match.
        (number.wrapping_sub(1) % SLOTS as u64) as usize
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    ///
    /// If it does not: a bug of this crate.
    pub fn invariants(&self) {
        self.lanes.invariants();
        let owes = self.owed.iter().any(Option::is_some);
        assert!(self.owes || !owes, "what is owed is known to be");
        assert!(!self.waits_for_rail || !self.lanes.any_in_service(), "there is a rail");
        let is_being_taken_back =
            |slot: &&Slot| matches!(slot.state, State::TakingBack | State::Void);
        let being_taken_back = self.slots.iter().filter(is_being_taken_back).count();
        if self.lanes.failure.is_none() {
            assert_eq!(being_taken_back, self.being_taken_back as usize);
            assert!(being_taken_back == 0 || self.lanes.needs_recovery, "polls look at them");
            let is_to_come = |slot: &&Slot| slot.withdrawal.number >= self.next;
            assert_eq!(self.slots.iter().filter(is_to_come).count(), self.withdrawn as usize);
        }
        let may_send = self.is_connected && self.withdrawn == 0 && self.lanes.failure.is_none();
        assert_eq!(self.may_send, may_send);
        let drains = self.lanes.failure.is_some() && !self.is_drained();
        assert!(!drains || self.lanes.needs_recovery, "polls drain it");
        for slot in &self.slots {
            if slot.state == State::Sending {
                assert!(!slot.mask.is_empty() && !slot.has_arrived());
            }
            assert!(slot.taken_back & !slot.awaited == 0 && slot.void <= slot.number);
            let shares = slot.mask.map(|rail| &slot.shares[usize::from(rail)]);
            for share in shares.filter(|_| self.lanes.failure.is_none()) {
                let lifecycle = &self.lanes[usize::from(share.lane)].health.lifecycle;
                let is_there = share.generation == lifecycle.generation()
                    && lifecycle.state() != RailState::Down;
                let waits = matches!(share.stage, Stage::Posting | Stage::Posted);
                assert!(is_there || !waits, "a share waits for a queue pair that is settled");
            }
        }
    }
}

const _: () = assert!(ENTRY_BYTES == 64 && RECORD_BYTES == 64, "what is 64-byte aligned stays so");
