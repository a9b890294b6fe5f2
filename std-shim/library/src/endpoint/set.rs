//! Many virtual queue pairs on the same completion queues.

use super::build_error::BuildError;
use super::builder::EndpointBuilder;
use super::healing::{HEAL_EVERY, Owner};
use super::make::{Common, EndpointPlan, Made, make};
use super::members::Members;
use super::poll_batch::PollBatch;
use super::qp::EndpointQp;
use super::single::Endpoint;
use super::sizes::{ENDPOINT_ROUTES, MAX_DEVICES, SET_ROUTES};
use crate::backend::{Connect, Domain, Notify};
use crate::heal::Polls;
use polyrail_core::hardware::{CompletionQueue, QueuePair};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq};
use polyrail_software_nic as nic;
use std::time::Instant;

/// Virtual queue pairs that share one virtual completion queue, and so one physical completion queue
/// for each device: a poll serves all of them.
///
/// They have numbers, from 0 on in the order of [`build`](EndpointSet::build), and each is connected, posted
/// to and watched by itself, as an [`Endpoint`] is. A completion names its virtual queue pair in
/// [`qp_num`](polyrail_core::virtual_cq::VirtualWc::qp_num); see [`number_of`](Self::number_of). One
/// that fails costs the others nothing. A completion queue that breaks concerns those that [complete on
/// it](EndpointQp::completes_on).
///
/// # Capacities
///
/// Each virtual queue pair has those of an [`EndpointQp`]. `ROUTES`, a power of two, is the size of the
/// routing table, of which three quarters can be used, one route for each rail and notify queue pair.
/// [`build`](EndpointSet::build) takes [`SET_ROUTES`], which serves more than a thousand virtual queue pairs of four
/// rails; who needs more, or wants to save memory, names another number
/// ([`with_routes`](Self::with_routes)). A completion queue has room for [`DEPTH`](super::DEPTH) requests each
/// way on each queue pair of its device, and of a virtual queue pair of a single rail for drivers that grant
/// twice as many; a device with a lower limit refuses.
///
/// A thousand virtual queue pairs of four rails and a notify queue pair, over two devices, take 105 MB of engine
/// state, and completion queues of 640,000 entries on each device. On the software NIC they are made in 0.1 s
/// and take 400 MB in all (`set_of_1000` of `benches/docs/figures.md`).
///
/// They [come](Self::add) and [go](Self::remove) while the others work, and one that failed can be [made
/// anew](Self::rebuild).
///
/// # Example
///
/// ```
/// use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
/// use polyrail::nic::{DeviceConfig, Fabric, RegisteredBuffer};
/// use polyrail::verbs::{AccessFlags, RecvWr, SendWr};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fabric = Fabric::threaded();
/// let a = fabric.create_device(DeviceConfig::named("a")).alloc_pd()?;
/// let b = fabric.create_device(DeviceConfig::named("b")).alloc_pd()?;
/// // Four rails over both devices, and two times a single one.
/// let four = EndpointBuilder::new();
/// let one = EndpointBuilder::new().rails(1);
/// let members = [(four, vec![&a, &b]), (one, vec![&a]), (one, vec![&a])];
/// let mut set = EndpointSet::build(members)?;
/// let [near, far] = set.get_disjoint_mut([1, 2]).expect("there are three");
/// connect_endpoints(near, far)?;
///
/// // Registered with all devices, it serves all: keys are found by device.
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
///     // A write that fails notifies nobody.
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
    /// Makes one virtual queue pair for each builder, on the devices that come with it, as
    /// [`EndpointBuilder::build`] does, and one completion queue for each device, deep enough for
    /// all that can be in flight there.
    ///
    /// # Errors
    ///
    /// [`BuildError::QueuePairs`]: the routing table has no room for that many, and nothing was made.
    /// [`BuildError::Cqs`]: more than [`MAX_DEVICES`] devices. Otherwise what the devices or the engine
    /// refuse.
    pub fn build<'d, D, S>(
        members: impl IntoIterator<Item = (EndpointBuilder, S)>,
    ) -> Result<Self, BuildError>
    where
        D: Domain<Qp = Q, Cq = C> + 'd,
        S: AsRef<[&'d D]>,
    {
        Self::with_routes(members)
    }
}

impl<Q, C, const ROUTES: usize> EndpointSet<Q, C, ROUTES>
where
    Q: Connect,
    C: Notify,
{
    /// [`build`](EndpointSet::build) with a routing table of `ROUTES` places.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, EndpointSet};
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// // Three quarters of the places: room for two of four rails and a notify queue pair.
    /// let members = [(EndpointBuilder::new(), [&domain]); 2];
    /// let set = EndpointSet::<_, _, 16>::with_routes(members)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As there.
    pub fn with_routes<'d, D, S>(
        members: impl IntoIterator<Item = (EndpointBuilder, S)>,
    ) -> Result<Self, BuildError>
    where
        D: Domain<Qp = Q, Cq = C> + 'd,
        S: AsRef<[&'d D]>,
    {
        let members: Vec<(EndpointBuilder, S)> = members.into_iter().collect();
        let plans = members
            .iter()
            .map(|(builder, domains)| EndpointPlan::new(*builder, domains.as_ref()))
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

    /// How many virtual queue pairs there are.
    pub fn len(&self) -> usize {
        self.members.iter().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.iter().next().is_none()
    }

    /// The virtual queue pairs, in the order of their numbers.
    pub fn qps(&self) -> impl Iterator<Item = &EndpointQp<Q>> {
        self.members.iter().map(|(_, qp)| qp)
    }

    /// The virtual queue pairs, to be connected, posted to, failed. One that is swapped with one of another set
    /// takes its routes with it: its completions are foreign.
    pub fn qps_mut(&mut self) -> impl Iterator<Item = &mut EndpointQp<Q>> {
        self.members.iter_mut().map(|(_, qp)| qp)
    }

    /// The virtual queue pair with this number.
    #[inline]
    pub fn get(&self, number: usize) -> Option<&EndpointQp<Q>> {
        self.members.get(number)
    }

    /// The virtual queue pair with this number, to be posted to.
    #[inline]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut EndpointQp<Q>> {
        self.members.get_mut(number)
    }

    /// Several at once; `None` if one of them is not there, or named twice.
    pub fn get_disjoint_mut<const N: usize>(
        &mut self,
        numbers: [usize; N],
    ) -> Option<[&mut EndpointQp<Q>; N]> {
        self.members.get_disjoint_mut(numbers)
    }

    /// The number in this set of the virtual queue pair that a completion names.
    pub fn number_of(&self, virtual_qp_num: u32) -> Option<usize> {
        self.members.number_of(virtual_qp_num)
    }

    /// Hands at most `budget` events of all virtual queue pairs together to `sink`, and drives
    /// everything that waits for completions. Virtual queue pairs that had to wait are served first
    /// next time, so none starves another. Some polls [heal](super::Healing) those whose rails are re-routed, too.
    /// Apart from new queue pairs, allocates nothing.
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

    /// Does at once what some of the polls do, for all that [heal](super::Healing) by themselves. For owners that
    /// poll seldom.
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

    /// [`poll_with`](Self::poll_with) into vectors.
    pub fn poll(&mut self, budget: usize) -> PollBatch {
        PollBatch::collect(|sink| self.poll_with(budget, sink))
    }

    /// The completion queues, one for each device.
    pub fn virtual_cq(&self) -> &VirtualCq<C, MAX_DEVICES, ROUTES> {
        &self.common.cq
    }
}

/// A set of one.
impl<Q: QueuePair, C> From<Endpoint<Q, C>> for EndpointSet<Q, C, ENDPOINT_ROUTES> {
    fn from(Endpoint { qp, cq, devices, channels, polls }: Endpoint<Q, C>) -> Self {
        let common = Common { cq: Box::new(cq), devices, channels };
        Self { members: std::iter::once(qp).collect(), common, polls }
    }
}
