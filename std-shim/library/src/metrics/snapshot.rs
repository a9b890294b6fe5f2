//! What endpoints have counted so far, as plain data.

use crate::backend::Domain;
use crate::endpoint::{EndpointQp, EndpointSet, RailReport};
use crate::heal::{FailureCounts, RailHistory, RailTimes};
use crate::p2p::{End, P2pEndpointSet, P2pMember, QueuePairId};
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::virtual_qp::{QpState, RailCounters, RailId, RailState};
use std::time::Instant;

/// What the queue pairs of a rail carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Traffic {
    /// Requests in both directions: of an [`EndpointQp`].
    Requests,
    /// Messages that are sent: of the sending end of a [`P2pMember`].
    SentMessages,
    /// Messages that are received: of the receiving end of a [`P2pMember`].
    ReceivedMessages,
}

impl Traffic {
    /// Returns the name, for labels of metrics: `requests`, `sent_messages` or `received_messages`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::SentMessages => "sent_messages",
            Self::ReceivedMessages => "received_messages",
        }
    }

    const fn of(end: End) -> Self {
        match end {
            End::Sender => Self::SentMessages,
            End::Receiver => Self::ReceivedMessages,
        }
    }
}

/// A snapshot of one connection: an endpoint, or a member of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionMetrics {
    /// Distinguishes the connection from all others of the process: endpoints for requests have ids
    /// below 2^32, and those for messages from 2^32 on.
    pub id: u64,
    /// Whether it exchanges messages; otherwise it carries requests.
    pub has_messages: bool,
    /// Its state.
    pub state: QpState,
    /// Accepted requests or messages that are incomplete, or not reported to the caller yet. With
    /// one rail only the device counts requests, and this is 0.
    pub unreported: usize,
    /// Its queue pairs: the rails in their order, then the notify queue pair; for messages those of
    /// the sending end, then those of the receiving end.
    pub rails: Vec<RailMetrics>,
}

/// A snapshot of one queue pair and its predecessors in the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailMetrics {
    /// What it carries.
    pub traffic: Traffic,
    /// Its rail: `0` to `7`, or `notify`.
    pub rail: String,
    /// Its device's name.
    pub device: String,
    /// Its state.
    pub state: RailState,
    /// What the engine has counted.
    pub counters: RailCounters,
    /// Failures after which other rails took over, by reason. All counts from here on are 0 if
    /// rails are not re-routed.
    pub failures: FailureCounts,
    /// Failures after which both ends know what arrived.
    pub fences: u64,
    /// Requests that were in flight at a failure and had arrived.
    pub arrived: u64,
    /// Requests that were in flight at a failure and were posted again.
    pub posted_again: u64,
    /// How long it was in each phase.
    pub times: RailTimes,
}

impl RailMetrics {
    /// Adds what a history has counted.
    fn with(self, history: Option<&RailHistory>, now: Instant) -> Self {
        let Some(history) = history else { return self };
        Self {
            failures: history.failures,
            fences: history.fences,
            arrived: history.arrived,
            posted_again: history.posted_again,
            times: history.times(now),
            ..self
        }
    }
}

impl<Q: QueuePair> EndpointQp<Q> {
    /// Returns what it has counted so far. Allocates and reads the clock: not for every poll.
    pub fn metrics(&self) -> ConnectionMetrics {
        let now = Instant::now();
        let rails = (0..).map(RailId::Data).take(self.virtual_qp().rails().len());
        let notify = self.virtual_qp().notify_qp().map(|_| RailId::Notify);
        let rails = rails.chain(notify).zip(self.rail_reports()).map(|(id, report)| {
            let RailReport { rail, device, state, .. } = report;
            let RailReport { bytes, send_requests, doorbells, completions, errors, .. } = report;
            let metrics = RailMetrics {
                traffic: Traffic::Requests,
                rail,
                device,
                state,
                counters: RailCounters { bytes, send_requests, doorbells, completions, errors },
                failures: FailureCounts::default(),
                fences: 0,
                arrived: 0,
                posted_again: 0,
                times: RailTimes::default(),
            };
            metrics.with(self.rail_history(id), now)
        });
        ConnectionMetrics {
            id: self.virtual_qp().virtual_qp_num().into(),
            has_messages: false,
            state: self.state(),
            unreported: self.unreported(),
            rails: rails.collect(),
        }
    }
}

impl<Q: crate::backend::Connect, C: CompletionQueue, const ROUTES: usize>
    EndpointSet<Q, C, ROUTES>
{
    /// Returns what each virtual queue pair has counted so far; see [`EndpointQp::metrics`].
    pub fn metrics(&self) -> Vec<ConnectionMetrics> {
        self.qps().map(EndpointQp::metrics).collect()
    }
}

impl<D: Domain> P2pMember<D> {
    /// Returns what it has counted so far. Allocates and reads the clock: not for every poll.
    pub fn metrics(&self) -> ConnectionMetrics {
        let now = Instant::now();
        let mut rails = Vec::new();
        for end in [End::Sender, End::Receiver] {
            for (place, qp) in self.queue_pairs(end).enumerate() {
                let state = self.queue_pair_state(end, place).map(|(state, _)| state);
                let metrics = RailMetrics {
                    traffic: Traffic::of(end),
                    rail: self.rail_of(place).to_string(),
                    device: self.device_name(qp.device()).unwrap_or_default().to_owned(),
                    state: state.unwrap_or(RailState::InService),
                    counters: self.queue_pair_counters(end, place).unwrap_or_default(),
                    failures: FailureCounts::default(),
                    fences: 0,
                    arrived: 0,
                    posted_again: 0,
                    times: RailTimes::default(),
                };
                let id = QueuePairId { end, index: place as u8 };
                rails.push(metrics.with(self.queue_pair_history(id), now));
            }
        }
        let (sent, received) = self.unfinished();
        ConnectionMetrics {
            id: self.id(),
            has_messages: true,
            state: self.state(),
            unreported: sent + received,
            rails,
        }
    }
}

impl<D: Domain, const ROUTES: usize> P2pEndpointSet<D, ROUTES> {
    /// Returns what each member has counted so far; see [`P2pMember::metrics`].
    pub fn metrics(&self) -> Vec<ConnectionMetrics> {
        self.numbers().filter_map(|number| Some(self.get(number)?.metrics())).collect()
    }
}
