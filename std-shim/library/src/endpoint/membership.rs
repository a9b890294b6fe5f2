//! Adds virtual queue pairs to a set, and removes them.

use super::build_error::BuildError;
use super::builder::EndpointBuilder;
use super::make::EndpointPlan;
use super::qp::EndpointQp;
use super::set::EndpointSet;
use super::sizes::Needs;
use crate::backend::{Connect, Domain, DomainRef, Notify, listed};

impl<Q, C, const ROUTES: usize> EndpointSet<Q, C, ROUTES>
where
    Q: Connect,
    C: Notify,
{
    /// Builds another virtual queue pair, as [`EndpointBuilder::build`] does, and returns its
    /// number: the lowest free one. The others keep working.
    ///
    /// The completion queues of its devices are enlarged if they lack room for everything that can
    /// be in flight. A device that is new to the set gets a completion queue.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, EndpointSet, connect_endpoints};
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::threaded();
    /// # let here = fabric.create_device(DeviceConfig::named("here")).alloc_pd()?;
    /// # let there = fabric.create_device(DeviceConfig::named("there")).alloc_pd()?;
    /// let builder = EndpointBuilder::new();
    /// let mut set = EndpointSet::build([(builder, [&here])])?;
    /// let mut peer = builder.build(&[&there])?;
    /// let number = set.add(builder, &[&here])?;
    /// assert_eq!(number, 1);
    /// let added = set.get_mut(number).expect("it was added");
    /// connect_endpoints(added, &mut peer)?;
    ///
    /// // Remove it: first complete all its requests, then take it out. With one rail, `unreported`
    /// // is always 0: count your own requests instead.
    /// added.fail();
    /// let mut back = Vec::new();
    /// while set.get(number).is_some_and(|qp| qp.unreported() > 0) {
    ///     let polled = set.poll_with(16, |event| back.extend(event.completion()));
    ///     if let Some(error) = polled.error {
    ///         return Err(error.into());
    ///     }
    /// }
    /// drop(set.remove(number));
    /// assert_eq!((set.len(), set.add(builder, &[&here])?), (1, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`build`](EndpointSet::build). No virtual queue pair was added, but completion queues may
    /// have been enlarged.
    pub fn add<'d, D>(
        &mut self,
        builder: EndpointBuilder,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<usize, BuildError>
    where
        D: Domain<Qp = Q, Cq = C>,
    {
        let domains = listed(domains);
        let plan = EndpointPlan::new(builder, &domains)?;
        self.common.make_room(self.taken(), std::slice::from_ref(&plan))?;
        let number = self.members.free();
        let names = self.common.devices.names();
        let member = self.common.make(&plan, number as u16, &names)?;
        self.members.put(number, member);
        Ok(number)
    }

    /// Removes a virtual queue pair from the set and returns it; its number becomes free. Returns
    /// `None` if there is none with this number.
    ///
    /// Its later completions are [foreign](polyrail_core::virtual_cq::Event::Foreign), and its
    /// unreported requests are never reported. To complete them first, call
    /// [`fail`](EndpointQp::fail) and poll until all are reported:
    /// [`unreported`](EndpointQp::unreported) counts them, except with one rail.
    ///
    /// # Buffer ownership
    ///
    /// Once the returned queue pair is dropped, its physical queue pairs are destroyed, and its
    /// devices access no buffer any more, reported or not.
    pub fn remove(&mut self, number: usize) -> Option<EndpointQp<Q>> {
        let member = self.members.take(number)?;
        self.common.cq.detach(number as u16);
        Some(member)
    }

    /// Builds a new virtual queue pair to replace one, such as a failed one, under the same number;
    /// it must then be connected. Returns the old one, as [`remove`](Self::remove) does. The old
    /// one still exists while the new one is built, so none of its completions can be taken for one
    /// of the new.
    ///
    /// ```
    /// use polyrail::endpoint::{EndpointBuilder, EndpointSet};
    /// use polyrail::virtual_qp::QpState;
    /// # use polyrail::nic::{DeviceConfig, Fabric};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let domain = Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd()?;
    /// let builder = EndpointBuilder::new();
    /// let mut set = EndpointSet::build([(builder, [&domain]); 2])?;
    /// let failed = set.get_mut(1).expect("there are two");
    /// # failed.post_recv(&polyrail::verbs::RecvWr::notification(1))?;
    /// failed.fail();
    /// # while set.poll(16).completions.is_empty() {}
    /// let old = set.rebuild(1, builder, &[&domain])?;
    /// assert_eq!(old.state(), QpState::Error);
    /// assert!(set.qps().all(|qp| qp.state() == QpState::Ready));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add); or there is none with this number. The old one stays.
    pub fn rebuild<'d, D>(
        &mut self,
        number: usize,
        builder: EndpointBuilder,
        domains: impl IntoIterator<Item: DomainRef<'d, D>>,
    ) -> Result<EndpointQp<Q>, BuildError>
    where
        D: Domain<Qp = Q, Cq = C>,
    {
        let none = BuildError::NoMember { number, count: self.len() };
        let mut taken = self.taken();
        taken.queue_pairs -= self.get(number).ok_or(none.clone())?.needs.queue_pairs;
        let domains = listed(domains);
        let plan = EndpointPlan::new(builder, &domains)?;
        self.common.make_room(taken, std::slice::from_ref(&plan))?;
        let member = plan.make(self.common.cq.cqs(), &self.common.devices.names())?;
        let old = self.remove(number).ok_or(none)?;
        match self.common.cq.attach(number as u16, member.virtual_qp()) {
            Ok(()) => {
                self.members.put(number, member);
                Ok(old)
            }
            Err(error) => {
                self.common.cq.attach(number as u16, old.virtual_qp())?;
                self.members.put(number, old);
                Err(error.into())
            }
        }
    }

    /// What the virtual queue pairs take of what they share.
    fn taken(&self) -> Needs {
        let mut taken = Needs::default();
        self.members.iter().for_each(|(_, member)| taken.add(&member.needs));
        taken
    }
}
