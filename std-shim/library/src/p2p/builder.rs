//! The options of an endpoint for messages.

use super::message::End;
use crate::backend::ConnectOptions;
use crate::endpoint::Healing;
use polyrail_core::p2p::{EntryForm, SplitPolicy};

/// The options of a [`P2pEndpoint`](super::P2pEndpoint), which [`build`](Self::build) makes.
#[derive(Clone, Copy, Debug)]
pub struct P2pBuilder {
    pub(super) rails: usize,
    pub(super) queue_pairs: usize,
    pub(super) only: Option<End>,
    pub(super) split: SplitPolicy,
    pub(super) split_threshold: u32,
    pub(super) separate_signal: Option<u32>,
    pub(super) entry_form: EntryForm,
    pub(super) max_inline_data: u32,
    pub(super) flushes: bool,
    pub(super) reroutes: bool,
    pub(super) min_rails: u8,
    pub(super) healing: Healing,
    pub(super) options: ConnectOptions,
    /// Which interrupt tells; `None`: completion queues are only polled.
    pub(super) comp_vector: Option<u32>,
}

impl Default for P2pBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl P2pBuilder {
    /// Two rails of one queue pair each way, even shares of messages over 64 KiB, no flushes.
    pub fn new() -> Self {
        Self {
            rails: 2,
            queue_pairs: 1,
            only: None,
            split: SplitPolicy::default(),
            split_threshold: 64 << 10,
            separate_signal: None,
            entry_form: EntryForm::default(),
            max_inline_data: 64,
            flushes: false,
            reroutes: false,
            min_rails: 1,
            healing: Healing::default(),
            options: ConnectOptions { rnr_retry: FOREVER, ..ConnectOptions::default() },
            comp_vector: None,
        }
    }

    /// Number of rails, 1 to 8; the same at both ends.
    #[must_use]
    pub fn rails(self, rails: usize) -> Self {
        Self { rails, ..self }
    }

    /// Queue pairs of each rail and direction, which messages take in turn; the same at both ends. All together,
    /// [`QUEUE_PAIRS`](super::QUEUE_PAIRS) at most.
    #[must_use]
    pub fn queue_pairs_per_rail(self, queue_pairs: usize) -> Self {
        Self { queue_pairs, ..self }
    }

    /// The endpoint has this end only, for messages that go one way, and the peer's has the other one: half the queue
    /// pairs, and a sender has no receives. By default it has both.
    #[must_use]
    pub fn only(self, end: impl Into<Option<End>>) -> Self {
        Self { only: end.into(), ..self }
    }

    /// Whether it has this end.
    pub(super) fn has(&self, end: End) -> bool {
        self.only.is_none_or(|only| only == end)
    }

    /// How long messages are spread over rails.
    #[must_use]
    pub fn split(self, split: SplitPolicy) -> Self {
        Self { split, ..self }
    }

    /// Buffers up to this many bytes go over one rail, in turn.
    #[must_use]
    pub fn split_threshold(self, bytes: u32) -> Self {
        Self { split_threshold: bytes, ..self }
    }

    /// Messages of this many bytes or more tell of their payload with a request of its own; see
    /// [`SenderConfig`](polyrail_core::p2p::SenderConfig::separate_signal).
    #[must_use]
    pub fn separate_signal(self, least: impl Into<Option<u32>>) -> Self {
        Self { separate_signal: least.into(), ..self }
    }

    /// Bytes that an inline request can have, 64 by default: of an entry that is written to the peer, and of
    /// [messages](super::P2pMember::isend_inline). A device that has less refuses to [build](Self::build).
    #[must_use]
    pub fn max_inline_data(self, max_inline_data: u32) -> Self {
        Self { max_inline_data, ..self }
    }

    /// How the peer is to write the entries of its receives. [`EntryForm::Plain`] only on devices that write in
    /// order: the software NIC does not.
    #[must_use]
    pub fn entry_form(self, entry_form: EntryForm) -> Self {
        Self { entry_form, ..self }
    }

    /// Whether received messages can be [flushed](super::P2pMember::flush): takes one more queue pair on each
    /// device, connected to itself.
    #[must_use]
    pub fn flushes(self, flushes: bool) -> Self {
        Self { flushes, ..self }
    }

    /// Whether other rails take over from one that fails; the same at both ends. Then the owners of both ends
    /// carry what they have to [tell each other](super::P2pMember::next_message).
    #[must_use]
    pub fn reroutes(self, reroutes: bool) -> Self {
        Self { reroutes, ..self }
    }

    /// With fewer rails in service the endpoint has failed, if it re-routes. 1 by default; with 0, messages wait for
    /// a rail for as long as there is none.
    #[must_use]
    pub fn min_rails(self, min_rails: u8) -> Self {
        Self { min_rails, ..self }
    }

    /// How endpoints that re-route heal: the intervals at which new queue pairs are made, how long a rail may make no
    /// headway with a message in flight, and how long rails may fail and come back without carrying anything
    /// ([`rail_timeout`](Healing::rail_timeout)). The rest does not concern them.
    #[must_use]
    pub fn healing(self, healing: Healing) -> Self {
        Self { healing, ..self }
    }

    /// Packet size, timeouts and retries of the connections. `rnr_retry` should stay 7, for ever: a peer that has
    /// used up the receives of a pool makes others wait, and nothing else.
    #[must_use]
    pub fn connect_options(self, options: ConnectOptions) -> Self {
        Self { options, ..self }
    }

    /// Whether completion queues tell a completion channel when they have something, so that a
    /// [`P2pThread`](crate::progress::messages::P2pThread) can sleep until they do, and which interrupt of every device
    /// tells, modulo the number of those that it has. By default they do not: they are only polled.
    #[must_use]
    pub fn completion_channel(self, comp_vector: impl Into<Option<u32>>) -> Self {
        Self { comp_vector: comp_vector.into(), ..self }
    }
}

/// The code of retries without end.
const FOREVER: u8 = 7;
