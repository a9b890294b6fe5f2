//! What an endpoint whose rails are re-routed remembers.

use super::message::P2pMessage;
use super::queue_pair::Shape;
use super::stalls::Stalls;
use crate::backend::{Domain, EventCursor, Port};
use crate::endpoint::{Attempts, Healing};
use std::collections::VecDeque;
use std::time::Instant;

/// What an endpoint whose rails are re-routed remembers.
#[derive(Debug)]
pub(super) struct Healer<D: Domain> {
    /// The devices of its rails, in their order, and how far their events have been read.
    pub(super) domains: Vec<(D, EventCursor)>,
    /// What new queue pairs are made with.
    pub(super) shape: Shape,
    pub(super) options: Healing,
    /// For each place of a sender's queue pair.
    pub(super) places: Vec<Care<D::Qp>>,
    pub(super) outbox: VecDeque<P2pMessage>,
    pub(super) stalls: Stalls,
}

/// A place of a sender's queue pair.
#[derive(Debug)]
pub(super) struct Care<Q> {
    pub(super) attempts: Attempts,
    pub(super) offered: Option<Offered<Q>>,
}

/// A queue pair in INIT that waits for its other end.
#[derive(Debug)]
pub(super) struct Offered<Q> {
    pub(super) queue_pair: Q,
    pub(super) port: Port,
    pub(super) generation: u16,
    pub(super) since: Instant,
}

impl<D: Domain> Healer<D> {
    pub(super) fn new(domains: &[D], places: usize, shape: Shape, options: Healing) -> Self {
        let domains = domains.iter().map(|domain| (domain.clone(), domain.event_cursor()));
        let care = || Care { attempts: Attempts::default(), offered: None };
        Self {
            domains: domains.collect(),
            shape,
            options,
            places: (0..places).map(|_| care()).collect(),
            outbox: VecDeque::new(),
            stalls: Stalls::default(),
        }
    }
}
