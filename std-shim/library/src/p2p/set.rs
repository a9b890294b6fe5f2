//! Messages with many peers, over the same devices.

use super::builder::P2pBuilder;
use super::endpoint::P2pEndpoint;
use super::error::P2pBuildError;
use super::member::P2pMember;
use super::shared::Shared;
use super::sizes::P2P_ROUTES;
use crate::backend::{Domain, DomainRef, listed};
use crate::endpoint::{Armed, WaitError};
use polyrail_core::hardware::CqError;
use polyrail_core::virtual_cq::{CompletionTarget, Event, Polled, TargetSet};
use polyrail_software_nic as nic;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Messages with many peers: [members](P2pMember) on the same devices, which share a completion
/// queue and a pool of receives per device, so that one poll serves all.
///
/// A member is identified by its number, from 0; numbers of removed members are reused. Each is
/// connected, called and monitored separately, by [`get_mut`](Self::get_mut), and the failure
/// of one does not affect the others.
///
/// # Capacities
///
/// Each member has the capacities of an endpoint. The completion queues are sized for the maximum
/// number of members; a device with a lower limit refuses. `ROUTES`, a power of two, is the size of
/// the routing table. Three quarters of it can be used, two routes for each queue pair of a
/// direction, and one for each flushing queue pair: the default of 256 is enough for 48 members of
/// two rails. Members with [one direction](P2pBuilder::only) take half of that. There are at most
/// `ROUTES / 2` members in any case.
///
/// Each member that receives also reserves 512 receives of every device's shared receive queue. The
/// software NIC and devices over TCP have room for 2048 such members, unless their
/// [limits](nic::DeviceLimits) are changed. Real devices often have fewer: `max_srq_wr` of
/// `ibv_devinfo -v`, divided by 512. Beyond that, [`add`](Self::add) refuses; use several sets.
///
/// # Example
///
/// ```
/// use polyrail::memory::RegisteredBuffer;
/// use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
/// use polyrail::p2p::{P2pBuilder, P2pEndpointSet, RecvBuffer, connect_endpoints};
/// use polyrail::verbs::AccessFlags;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::threaded();
/// let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
/// let (hub, left, right) = (device("hub")?, device("left")?, device("right")?);
///
/// // One process with two peers.
/// let builder = P2pBuilder::new().rails(1);
/// let mut set: P2pEndpointSet = P2pEndpointSet::build(&builder, &[&hub], 2)?;
/// let mut peers = [builder.build(&[&left])?, builder.build(&[&right])?];
/// let mut numbers = Vec::new();
/// for peer in &mut peers {
///     let number = set.add()?;
///     connect_endpoints(set.get_mut(number).ok_or("just added")?, peer)?;
///     numbers.push(number);
/// }
///
/// // Each peer sends a byte.
/// let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
/// let to = RegisteredBuffer::new(2, writable, &[&hub])?;
/// let keys = to.own_keys();
/// let mut receives = Vec::new();
/// for (at, &number) in numbers.iter().enumerate() {
///     let offered = RecvBuffer { local: to.local(at, 1)?, tag: 7, keys: &keys };
///     let member = set.get_mut(number).ok_or("just added")?;
///     receives.push((number, member.irecv(&[offered])?));
/// }
/// for ((peer, domain), number) in peers.iter_mut().zip([&left, &right]).zip(&numbers) {
///     let from = RegisteredBuffer::new(1, AccessFlags::empty(), &[domain])?;
///     let send = loop {
///         set.poll(16).check()?;
///         // After a failure its offer would never arrive.
///         assert!(set.get(*number).is_some_and(|member| member.failure().is_none()));
///         match peer.isend(from.local(0, 1)?, 7, &from.own_keys()) {
///             Err(error) if error.is_not_now() => peer.poll(16).check()?,
///             sent => break sent?,
///         }
///     };
///     while !peer.test_send(send)? {
///         peer.poll(16).check()?;
///         set.poll(16).check()?;
///     }
/// }
/// for (number, receive) in receives {
///     let received = loop {
///         set.poll(16).check()?;
///         let member = set.get_mut(number).ok_or("just added")?;
///         if let Some(received) = member.test_recv(receive)? {
///             break received;
///         }
///     };
///     assert_eq!(received.sizes(), [1]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct P2pEndpointSet<D: Domain = nic::ProtectionDomain, const ROUTES: usize = 256> {
    /// By number. Dropped before the completion queues of their queue pairs.
    members: Members<D>,
    most: u16,
    shared: Shared<D, ROUTES>,
}

struct Members<D: Domain>(Vec<Option<P2pMember<D>>>);

impl<D: Domain, const ROUTES: usize> fmt::Debug for P2pEndpointSet<D, ROUTES>
where
    P2pMember<D>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("P2pEndpointSet").field("members", &self.members.0).finish_non_exhaustive()
    }
}

impl<D: Domain> TargetSet for Members<D> {
    type Target = dyn CompletionTarget;

    #[inline]
    fn target(&mut self, index: u16) -> Option<&mut Self::Target> {
        self.0.get_mut(usize::from(index / 2))?.as_mut()?.target(index)
    }
}

/// Why a member was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum P2pRemoveError {
    /// There is no member with this number.
    #[error("the set has no member {number}")]
    NoMember {
        /// The number.
        number: usize,
    },
    /// Devices may still access buffers of its messages: [fail](P2pEndpointSet::give_up) it, and
    /// poll.
    #[error("member {number} is not drained: give it up, then poll until it is")]
    NotDrained {
        /// The number.
        number: usize,
    },
}

/// Converts an endpoint to a set with one member, number 0.
impl<D: Domain> From<P2pEndpoint<D>> for P2pEndpointSet<D, P2P_ROUTES> {
    fn from(endpoint: P2pEndpoint<D>) -> Self {
        let P2pEndpoint { member, shared } = endpoint;
        Self { members: Members(vec![Some(member)]), most: 1, shared }
    }
}

impl<D: Domain, const ROUTES: usize> P2pEndpointSet<D, ROUTES> {
    /// Builds a set without members, for up to `most` members as `builder` describes: one
    /// completion queue per device, and if they receive, one shared receive queue with its pool.
    ///
    /// # Errors
    ///
    /// A device or the engine refuses.
    pub fn build<'d>(
        builder: &P2pBuilder,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
        most: u16,
    ) -> Result<Self, P2pBuildError> {
        let shared = Shared::new(*builder, &listed(domains), most.into())?;
        Ok(Self { members: Members(Vec::new()), most, shared })
    }

    /// Adds a member, with all its queue pairs in INIT, and returns its number.
    ///
    /// # Errors
    ///
    /// The set or the routing table is full, or a device or the engine refuses. Nothing changed.
    pub fn add(&mut self) -> Result<usize, P2pBuildError> {
        self.add_on(None)
    }

    /// Adds a member as [`add`](Self::add) does, whose rails use the devices in this order, such as
    /// that of [`positions_in_pairs`](crate::pairing::positions_in_pairs). `order` are positions of
    /// devices in the list with which the set was built. The member uses the devices in the order
    /// of the list if `order` does not have each device with rails once, or if some devices have
    /// more rails than others.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub fn add_in_order(&mut self, order: &[usize]) -> Result<usize, P2pBuildError> {
        self.add_on(Some(order))
    }

    fn add_on(&mut self, order: Option<&[usize]>) -> Result<usize, P2pBuildError> {
        let members = &self.members.0;
        let free = members.iter().position(Option::is_none).unwrap_or(members.len());
        let number = u16::try_from(free).ok().filter(|number| *number < self.most);
        let number = number.ok_or(P2pBuildError::Members { most: self.most })?;
        let member = self.shared.open(number, order, &mut self.members)?;
        let members = &mut self.members.0;
        match members.get_mut(free) {
            Some(place) => *place = Some(member),
            None => members.push(Some(member)),
        }
        Ok(free)
    }

    /// Destroys a member that was [failed](Self::give_up) and is drained. The other members use the
    /// receives that it leaves in the pools.
    ///
    /// # Errors
    ///
    /// There is no such member, or it is not drained; nothing changed.
    pub fn remove(&mut self, number: usize) -> Result<(), P2pRemoveError> {
        let member = self.members.0.get_mut(number);
        let member = member.ok_or(P2pRemoveError::NoMember { number })?;
        match member.take_if(|member| member.is_drained()) {
            Some(member) => {
                self.shared.close(member, &mut self.members);
                Ok(())
            }
            None if member.is_none() => Err(P2pRemoveError::NoMember { number }),
            None => Err(P2pRemoveError::NotDrained { number }),
        }
    }

    /// [Fails](P2pMember::fail) a member, then polls until no device accesses any buffer of its
    /// messages, or `timeout` has passed. The others keep working. If rails are re-routed, the last
    /// messages for the peer are in the member's [link](P2pMember::healing_link) afterwards.
    ///
    /// # Errors
    ///
    /// The error of the first completion queue that could not be polled.
    pub fn give_up(&mut self, number: usize, timeout: Duration) -> Result<(), CqError> {
        const BUDGET: usize = 64;
        let begin = Instant::now();
        if let Some(member) = self.get_mut(number) {
            member.fail();
        }
        self.heal();
        while self.get(number).is_some_and(|member| !member.is_drained())
            && begin.elapsed() < timeout
        {
            self.poll(BUDGET).check()?;
        }
        Ok(())
    }

    /// Returns a bound of the numbers: all are below it.
    pub(crate) fn bound(&self) -> usize {
        self.members.0.len()
    }

    /// Returns how often polls check for queue pairs without progress, if that has a time limit.
    pub(crate) fn stall_interval(&self) -> Option<Duration> {
        self.shared.stall_interval()
    }

    /// Whether rails of its members are [re-routed](P2pBuilder::rail_failure).
    pub(crate) const fn reroutes(&self) -> bool {
        self.shared.reroutes()
    }

    /// Arms the completion queues, and polls all available completions. Afterwards the caller may
    /// wait until [`completion_fd`](Self::completion_fd) is readable. A peer's offer of buffers is
    /// not a completion, so it does not make the file descriptor readable.
    pub(crate) fn poll_armed(&mut self) -> Result<Polled, WaitError> {
        self.poll_armed_all(&mut |_| ())
    }

    /// Returns a file descriptor that is readable when a completion queue has created an event
    /// since [`poll_armed`](Self::poll_armed); `None` if the completion queues are only polled.
    pub(crate) fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.completion_fd()
    }

    /// Iterates over the numbers of the members, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        self.members.0.iter().enumerate().filter_map(|(at, member)| member.as_ref().map(|_| at))
    }

    /// Returns a member.
    pub fn get(&self, number: usize) -> Option<&P2pMember<D>> {
        self.members.0.get(number)?.as_ref()
    }

    /// Returns a member, to connect and call it. Moving a member out of the set moves its routes as
    /// well, so its completions are lost.
    pub fn get_mut(&mut self, number: usize) -> Option<&mut P2pMember<D>> {
        self.members.0.get_mut(number)?.as_mut()
    }

    /// Drives everything of all members that waits for completions: takes at most `budget` of them
    /// together. Members that had to wait are served first next time, so none starves another. The
    /// result is that of [`P2pEndpoint::poll`].
    #[inline]
    pub fn poll(&mut self, budget: usize) -> Polled {
        let polled = self.shared.poll(&mut self.members, budget);
        if self.shared.is_time_to_heal(self.members.0.len()) {
            self.heal();
        }
        polled
    }

    /// Runs the [repair](crate::heal::Healing) step of polls immediately, for all members, if rails
    /// are re-routed. For owners that poll seldom.
    #[cold]
    pub fn heal(&mut self) {
        for member in self.members.0.iter_mut().flatten() {
            member.heal(&mut self.shared);
        }
    }
}

impl<D: Domain, const ROUTES: usize> Armed for P2pEndpointSet<D, ROUTES> {
    fn arm(&mut self) -> Result<(), WaitError> {
        self.shared.arm()
    }

    fn poll_all(&mut self, _: &mut dyn FnMut(Event)) -> Polled {
        self.poll(usize::MAX)
    }

    fn polls_before_waiting(&self) -> usize {
        self.shared.cq.polls_before_waiting()
    }
}
