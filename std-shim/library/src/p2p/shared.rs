//! The shared state of an owner's members: for each device a completion queue, and a shared receive
//! queue with its pool.

use super::builder::P2pBuilder;
use super::error::P2pBuildError;
use super::make::{Make, Shape};
use super::member::P2pMember;
use super::pools::Pools;
use super::sizes::{QUEUE_PAIRS, RAILS};
use crate::backend::Domain;
use crate::endpoint::{Channels, MAX_DEVICES, WaitError, arm, places};
use crate::heal::{HEAL_EVERY, Polls, SilenceWatch};
use crate::queue_pair::Place;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::{Polled, TargetSet, VirtualCq};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The shared state of an owner's members.
#[derive(Debug)]
pub(super) struct Shared<D: Domain, const ROUTES: usize> {
    /// The receives of each device. Declared before the completion queues, so that they are
    /// destroyed first.
    pub(super) pools: Pools<D::Srq>,
    pub(super) cq: VirtualCq<D::Cq, MAX_DEVICES, ROUTES>,
    /// The channels to which completion queues report events.
    channels: Channels,
    builder: P2pBuilder,
    /// The devices that get rails.
    pub(super) domains: Vec<D>,
    /// The places of the queue pairs of one direction: the first of each rail, then the second of
    /// each.
    places: Vec<Place>,
    polls: Polls,
}

impl<D: Domain, const ROUTES: usize> Shared<D, ROUTES> {
    /// Creates the shared state for up to `members` members as `builder` describes.
    pub(super) fn new(
        builder: P2pBuilder,
        domains: &[&D],
        members: u32,
    ) -> Result<Self, P2pBuildError> {
        let P2pBuilder { rails, queue_pairs: each, .. } = builder;
        let places = places(rails, domains)?;
        builder.standby_devices.check(domains.len().min(rails))?;
        builder.weights.check()?;
        let domains: Vec<D> = domains.iter().take(rails).map(|domain| (*domain).clone()).collect();
        if each == 0 || rails * each > QUEUE_PAIRS {
            return Err(P2pBuildError::QueuePairs { rails, each });
        }
        builder.options.check()?;
        let places = places.repeat(each);
        let make = Make { builder: &builder, domains: &domains, places: &places };
        let pools = make.pools(members)?;
        let cqs = make.completion_queues(&pools, members)?;
        let mut channels = Channels::default();
        cqs.iter().try_for_each(|cq| channels.add(cq))?;
        let mut cq = VirtualCq::new(cqs)?;
        let queues = cq.cqs().iter().map(CompletionQueue::id).collect::<Vec<_>>();
        for (queue, (pool, _)) in queues.into_iter().zip(&pools.0) {
            cq.set_aside(queue, pool.capacity())?;
        }
        Ok(Self { cq, pools, channels, builder, domains, places, polls: Polls::default() })
    }

    /// Builds a member with this number, which none of `members` has. Its rails use the devices in
    /// this order, if that is possible.
    pub(super) fn open<S: TargetSet + ?Sized>(
        &mut self,
        number: u16,
        order: Option<&[usize]>,
        members: &mut S,
    ) -> Result<P2pMember<D>, P2pBuildError> {
        let Self { cq, pools, builder, domains, places, .. } = self;
        let ordered =
            order.and_then(|order| in_order(places, (builder.rails, domains.len()), order));
        let places = ordered.as_deref().unwrap_or(places);
        let member = Make { builder, domains, places }.member(cq.cqs(), pools, number)?;
        let P2pMember { sender, receiver, .. } = &member;
        let sender = sender.as_deref().map(|sender| cq.attach(member.sender_index(), sender));
        let attached = sender.unwrap_or(Ok(())).and_then(|()| {
            let receiver = receiver.as_deref();
            receiver.map_or(Ok(()), |receiver| cq.attach(member.receiver_index(), receiver))
        });
        match attached {
            Ok(()) => Ok(member),
            Err(error) => {
                self.close(member, members);
                Err(error.into())
            }
        }
    }

    /// Destroys a member whose buffers no device accesses any more; `members` are the others. The
    /// next member uses the receives that it leaves, unless a completion queue cannot be polled
    /// now: drivers discard the completions of a destroyed queue pair, so it would be unknown which
    /// receives they took.
    pub(super) fn close<S: TargetSet + ?Sized>(&mut self, member: P2pMember<D>, members: &mut S) {
        self.cq.detach(member.sender_index());
        self.cq.detach(member.receiver_index());
        let P2pMember { sender, receiver, regions, .. } = member;
        let (receiving, accounts) = receiver.map(|receiver| receiver.into_parts()).unzip();
        self.pools.close(accounts.into_iter().flatten());
        match self.poll(members, usize::MAX).error {
            None => self.pools.note_empty(),
            Some(_) => self.pools.write_off(),
        }
        sender.into_iter().flat_map(|sender| sender.into_queue_pairs()).for_each(drop);
        receiving.into_iter().flatten().for_each(drop);
        drop(regions);
    }

    /// Takes up to `budget` completions.
    #[inline]
    pub(super) fn poll<S: TargetSet + ?Sized>(&mut self, members: &mut S, budget: usize) -> Polled {
        let Self { cq, pools, .. } = self;
        cq.poll(members, budget, |event| pools.note_foreign(&event))
    }

    /// Discards the events of the completion queues, and arms the queues for their next
    /// completions.
    pub(super) fn arm(&mut self) -> Result<(), WaitError> {
        arm(self.cq.cqs_mut())
    }

    /// Returns a file descriptor that is readable when a completion queue has created an event;
    /// `None` if the completion queues are only polled.
    pub(super) fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channels.fd()
    }

    /// Returns how often to check for queue pairs without progress, if that has a time limit.
    pub(super) fn stall_interval(&self) -> Option<Duration> {
        let timeout = self.builder.healing.stall_timeout.filter(|_| self.reroutes());
        timeout.map(SilenceWatch::<RAILS>::interval)
    }

    /// Whether rails are re-routed.
    pub(super) const fn reroutes(&self) -> bool {
        self.builder.reroutes
    }

    /// Returns the sizes of new queue pairs.
    pub(super) const fn shape(&self) -> Shape {
        Shape::of(&self.builder)
    }

    /// Whether this poll, for this number of members, runs a repair step.
    #[inline]
    pub(super) const fn is_time_to_heal(&mut self, members: usize) -> bool {
        self.builder.reroutes && self.polls.is_turn(HEAL_EVERY + members)
    }
}

/// Returns places at which queue pairs use the devices in this order; `None` if the devices are not
/// all in it, each once. Then queues would be too short for the queue pairs of some devices, as
/// they would be if some devices had more rails than others.
fn in_order(
    places: &[Place],
    (rails, devices): (usize, usize),
    order: &[usize],
) -> Option<Vec<Place>> {
    let is_each_there = (0..devices).all(|device| order.contains(&device));
    let fits = is_each_there && order.len() == devices && rails.is_multiple_of(devices);
    let place = |at: usize| places[at / devices * devices + order[at % devices]];
    fits.then(|| (0..places.len()).map(place).collect())
}
