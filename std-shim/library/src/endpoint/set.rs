//! Many virtual queue pairs on the same completion queues.

use super::build_error::BuildError;
use super::builder::EndpointBuilder;
use super::make::{Common, EndpointPlan, Made, make};
use super::members::Members;
use super::qp::EndpointQp;
use super::repair::Owner;
use super::single::{Endpoint, PollBatch};
use super::sizes::{ENDPOINT_ROUTES, MAX_DEVICES, SET_ROUTES};
use crate::backend::{Connect, Domain, DomainRef, Notify, listed};
use crate::heal::{HEAL_EVERY, Polls};
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq};
use polyrail_software_nic as nic;
use std::time::Instant;

/// Virtual queue pairs that share one virtual completion queue, and so one physical completion
/// queue per device: a poll serves all of them.
///
/// They are numbered from 0, in the order of [`build`](EndpointSet::build). Each is connected,
/// posted to and monitored separately, like an [`Endpoint`]. A completion names its virtual queue
/// pair in [`qp_num`](polyrail_core::virtual_cq::VirtualWc::qp_num); see
/// [`number_of`](Self::number_of). The failure of one does not affect the others. A broken
/// completion queue affects those that [complete on it](EndpointQp::completes_on).
///
/// # Capacities
///
/// Each virtual queue pair has the capacities of an [`EndpointQp`]. `ROUTES`, a power of two, is
/// the size of the routing table. Three quarters of it can be used, one route for each rail and
/// notify queue pair. [`build`](EndpointSet::build) uses [`SET_ROUTES`], enough for more than a
/// thousand virtual queue pairs of four rails; [`with_routes`](Self::with_routes) takes another
/// size. A completion queue has room for [`DEPTH`](super::DEPTH) requests per direction on each
/// queue pair of its device, and for twice as many on virtual queue pairs with a single rail, since
/// drivers may grant more than requested; a device with a lower limit refuses.
///
/// A thousand virtual queue pairs with four rails and a notify queue pair, over two devices, take
/// 91 MB of engine state, and completion queues of 640,000 entries on each device. On the software
/// NIC they are built in 0.05 s and take 113 MB in all (`set_of_1000` of
/// `benches/docs/figures.md`).
///
/// They can be [added](Self::add) and [removed](Self::remove) while the others work, and a failed
/// one can be [rebuilt](Self::rebuild).
///
/// # Example
///
/// ```
/// use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
/// use polyrail::memory::RegisteredBuffer;
/// use polyrail::nic::{DeviceConfig, Fabric};
/// use polyrail::verbs::{AccessFlags, RecvWr, SendWr};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::threaded();
/// let a = fabric.create_device(DeviceConfig::named("a")).alloc_pd()?;
/// let b = fabric.create_device(DeviceConfig::named("b")).alloc_pd()?;
/// // Four rails over both devices, and two virtual queue pairs with a single rail.
/// let four = EndpointBuilder::new();
/// let one = EndpointBuilder::new().rails(1);
/// let members = [(four, vec![&a, &b]), (one, vec![&a]), (one, vec![&a])];
/// let mut set = EndpointSet::build(members)?;
/// let [near, far] = set.get_disjoint_mut([1, 2]).expect("there are three");
/// connect_endpoints(near, far)?;
///
/// // Registered with all devices, so any rail can use it: keys are found by device.
/// let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
/// let buffer = RegisteredBuffer::new(4096, writable, &[&a, &b])?;
/// let keys = buffer.toward(&buffer.remote())?;
/// far.post_recv(&RecvWr::notification(7))?;
/// let from = buffer.local(0, 64)?;
/// near.post_send(&SendWr::write_with_imm(8, from, buffer.addr() + 64, 42, &keys))?;
/// let mut completed = Vec::new();
/// while completed.len() < 2 {
///     let polled = set.poll_with(16, |event| completed.extend(event.completion()));
///     assert_eq!(polled.error, None);
///     // A failed write sends no notification.
///     assert!(completed.iter().all(|wc| wc.status.is_success()), "{completed:?}");
/// }
/// completed.sort_by_key(|wc| wc.wr_id);
/// let whose: Vec<_> = completed.iter().map(|wc| set.number_of(wc.qp_num)).collect();
/// assert_eq!(whose, [Some(2), Some(1)]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EndpointSet<
    Q = nic::QueuePair,
    C = nic::CompletionQueue,
    const ROUTES: usize = SET_ROUTES,
> {
    pub(super) members: Members<Q>,
    pub(super) common: Common<Q, C, ROUTES>,
    polls: Polls,
}

impl<Q, C> EndpointSet<Q, C>
where
    Q: Connect,
    C: Notify,
{
    /// Builds one virtual queue pair for each builder, on the devices given with it, as
    /// [`EndpointBuilder::build`] does, and one completion queue per device, deep enough for
    /// everything that can be in flight there.
    ///
    /// # Errors
    ///
    /// [`BuildError::QueuePairs`]: the routing table is too small; nothing was built.
    /// [`BuildError::Cqs`]: more than [`MAX_DEVICES`] devices. Otherwise a device or the engine
    /// refuses.
    pub fn build<'d, D, S>(
        members: impl IntoIterator<Item = (EndpointBuilder, S)>,
    ) -> Result<Self, BuildError>
    where
        D: Domain<Qp = Q, Cq = C> + 'd,
        S: IntoIterator<Item: DomainRef<'d, D>>,
    {
        Self::with_routes(members)
    }
}

impl<Q, C, const ROUTES: usize> EndpointSet<Q, C, ROUTES>
where
    Q: Connect,
    C: Notify,
{
    /// [`build`](EndpointSet::build) with a routing table of `ROUTES` entries.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, EndpointSet};
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// // Three quarters of the entries: room for two with four rails and a notify queue pair each.
    /// let members = [(EndpointBuilder::new(), [&domain]); 2];
    /// let set = EndpointSet::<_, _, 16>::with_routes(members)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// An entry takes 32 bytes. In a program that is compiled without optimization, several copies
    /// of the table are on the stack for a moment: 65,536 entries, the most, need a thread with 12
    /// MiB.
    ///
    /// # Errors
    ///
    /// As [`build`](EndpointSet::build).
    pub fn with_routes<'d, D, S>(
        members: impl IntoIterator<Item = (EndpointBuilder, S)>,
    ) -> Result<Self, BuildError>
    where
        D: Domain<Qp = Q, Cq = C> + 'd,
        S: IntoIterator<Item: DomainRef<'d, D>>,
    {
        let listed = |(builder, domains)| (builder, listed(domains));
        let members: Vec<(EndpointBuilder, Vec<&D>)> = members.into_iter().map(listed).collect();
        let plans = members
            .iter()
            .map(|(builder, domains)| EndpointPlan::new(*builder, domains))
            .collect::<Result<Vec<_>, _>>()?;
        let Made { qps, common } = make(&plans)?;
        Ok(Self { members: qps.into_iter().collect(), common, polls: Polls::default() })
    }
}

impl<Q, C, const ROUTES: usize> EndpointSet<Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// Numbers are below this.
    pub(crate) fn bound(&self) -> usize {
        self.members.bound()
    }

    /// The virtual queue pairs with their numbers.
    pub(crate) fn numbered_mut(&mut self) -> impl Iterator<Item = (usize, &mut EndpointQp<Q>)> {
        self.members.iter_mut()
    }

    /// Returns the number of virtual queue pairs.
    pub fn len(&self) -> usize {
        self.members.iter().count()
    }

    /// Whether the set has no virtual queue pairs.
    pub fn is_empty(&self) -> bool {
        self.members.iter().next().is_none()
    }

    /// Iterates over the virtual queue pairs, in the order of their numbers.
    pub fn qps(&self) -> impl Iterator<Item = &EndpointQp<Q>> {
        self.members.iter().map(|(_, qp)| qp)
    }

    /// Iterates over the virtual queue pairs, to connect, post to or fail them. Swapping one with a
    /// queue pair of another set moves its routes as well, so its completions become foreign.
    pub fn qps_mut(&mut self) -> impl Iterator<Item = &mut EndpointQp<Q>> {
        self.members.iter_mut().map(|(_, qp)| qp)
    }

    /// Returns the virtual queue pair with this number.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&EndpointQp<Q>> {
        self.members.get(number)
    }

    /// Returns the virtual queue pair with this number, to post to it.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut EndpointQp<Q>> {
        self.members.get_mut(number)
    }

    /// Returns several virtual queue pairs; `None` if one does not exist, or a number is repeated.
    pub fn get_disjoint_mut<const N: usize>(
        &mut self,
        numbers: [usize; N],
    ) -> Option<[&mut EndpointQp<Q>; N]> {
        self.members.get_disjoint_mut(numbers)
    }

    /// Returns the number in this set of the virtual queue pair that a completion names.
    pub fn number_of(&self, virtual_qp_num: u32) -> Option<usize> {
        self.members.number_of(virtual_qp_num)
    }

    /// Passes at most `budget` events of all virtual queue pairs together to `sink`, and drives
    /// everything that waits for completions. Virtual queue pairs that had to wait are served first
    /// next time, so none starves another. If rails are re-routed, some polls also
    /// [repair](crate::heal::Healing) them. Allocates only for new queue pairs.
    #[inline]
    pub fn poll_with(&mut self, budget: usize, sink: impl FnMut(Event)) -> Polled {
        let polled = self.common.cq.poll(&mut self.members, budget, sink);
        self.heal_sometimes();
        polled
    }

    #[inline]
    fn heal_sometimes(&mut self) {
        if self.polls.is_turn(HEAL_EVERY + self.members.bound()) {
            self.heal();
        }
    }

    /// Runs the [repair](crate::heal::Healing) step of polls immediately, for all virtual queue
    /// pairs that repair their rails. For owners that poll seldom.
    #[cold]
    pub fn heal(&mut self) {
        let mut now = None;
        let Common { cq, devices, .. } = &mut self.common;
        for (number, qp) in self.members.iter_mut() {
            if qp.healer.is_some() {
                let now = *now.get_or_insert_with(Instant::now);
                qp.heal(Owner { cq, index: number as u16, devices }, now);
            }
        }
    }

    /// Like [`poll_with`](Self::poll_with), with the results in vectors.
    pub fn poll(&mut self, budget: usize) -> PollBatch {
        PollBatch::collect(|sink| self.poll_with(budget, sink))
    }

    /// Returns the completion queues, one per device.
    pub fn virtual_cq(&self) -> &VirtualCq<C, MAX_DEVICES, ROUTES> {
        &self.common.cq
    }
}

/// Converts an endpoint to a set of one.
impl<Q: QueuePair, C> From<Endpoint<Q, C>> for EndpointSet<Q, C, ENDPOINT_ROUTES> {
    fn from(Endpoint { qp, cq, devices, channels, polls }: Endpoint<Q, C>) -> Self {
        let common = Common { cq: Box::new(cq), devices, channels };
        Self { members: std::iter::once(qp).collect(), common, polls }
    }
}
