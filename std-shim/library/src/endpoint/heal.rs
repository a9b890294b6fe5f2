//! Healing within one process: both ends are here, so what they tell each other needs no link, and rails
//! that are Down get queue pairs on both sides in one call.

use super::devices::Devices;
use super::qp::{EndpointQp, Place, rail_ids};
use super::replace::{Source, put_in_place};
use super::replace_error::ReplaceError;
use super::replacement::Replacement;
use super::set::EndpointSet;
use super::single::Endpoint;
use super::sizes::MAX_DEVICES;
use crate::backend::Connect;
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{self, RailId};

/// Heals two endpoints that [`connect_endpoints`](super::connect_endpoints) connected: loses rails whose
/// devices are gone, carries messages both ways until there are none, and gives every rail that is Down
/// at both ends new queue pairs, if the ports of both are up. To be called after polls; it costs little
/// while nothing fails, and does nothing unless rails are re-routed.
///
/// ```
/// use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints, heal_endpoints};
/// use polyrail::nic::{DeviceConfig, Fabric};
/// use polyrail::virtual_qp::{QpState, RailFailure, RailId};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::threaded();
/// # let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
/// # let here = device("here")?;
/// # let there = device("there")?;
/// let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute);
/// let mut near: Endpoint = builder.build(&[&here])?;
/// let mut far: Endpoint = builder.build(&[&there])?;
/// connect_endpoints(&mut near, &mut far)?;
///
/// near.fail_rail(RailId::Data(2));
/// assert_eq!(near.state(), QpState::Degraded);
/// while near.state() != QpState::Ready || far.state() != QpState::Ready {
///     _ = near.poll(16);
///     _ = far.poll(16);
///     heal_endpoints(&mut near, &mut far)?;
/// }
/// let told: Vec<String> = std::iter::from_fn(|| near.take_rail_event()).map(|e| e.to_string()).collect();
/// assert_eq!(told[0], "rail 2 (device here) was given up here");
/// assert_eq!(told[2], "rail 2 (device here) is back in service: generation 1");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// A rail could not be given new queue pairs, the first one that is returned; the others were. It stays
/// Down, and the next call tries again.
pub fn heal_endpoints<Q, C>(
    a: &mut Endpoint<Q, C>,
    b: &mut Endpoint<Q, C>,
) -> Result<(), ReplaceError>
where
    Q: Connect,
    C: CompletionQueue,
{
    let qps = [&mut a.qp, &mut b.qp];
    let owner_a = Owner { cq: &mut a.cq, devices: &a.devices };
    let owner_b = Owner { cq: &mut b.cq, devices: &b.devices };
    Healing { qps, indices: [0; 2], owners: Owners(owner_a, Some(owner_b)) }.heal()
}

/// [`heal_endpoints`] for two virtual queue pairs of two sets, by number.
///
/// # Errors
///
/// As there; or there is none of this number.
pub fn heal_members<Q, C, const ROUTES: usize>(
    (a, number_a): (&mut EndpointSet<Q, C, ROUTES>, usize),
    (b, number_b): (&mut EndpointSet<Q, C, ROUTES>, usize),
) -> Result<(), ReplaceError>
where
    Q: Connect,
    C: CompletionQueue,
{
    let qps = [a.members.member_mut(number_a)?, b.members.member_mut(number_b)?];
    let owner_a = Owner { cq: &mut a.cq, devices: &a.devices };
    let owner_b = Owner { cq: &mut b.cq, devices: &b.devices };
    let indices = [number_a as u16, number_b as u16];
    Healing { qps, indices, owners: Owners(owner_a, Some(owner_b)) }.heal()
}

impl<Q, C, const ROUTES: usize> EndpointSet<Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    /// [`heal_endpoints`] for two virtual queue pairs of this set, which are connected with each other.
    ///
    /// # Errors
    ///
    /// As there; or there are no two of these numbers.
    pub fn heal_between(&mut self, a: usize, b: usize) -> Result<(), ReplaceError> {
        let members = &mut self.members.0;
        let count = members.len();
        let number = a.max(b);
        let Ok(qps) = members.get_disjoint_mut([a, b]) else {
            return Err(ReplaceError::NoMember { number, count });
        };
        let owner = Owner { cq: &mut self.cq, devices: &self.devices };
        Healing { qps, indices: [a as u16, b as u16], owners: Owners(owner, None) }.heal()
    }
}

/// What the owner of an end has.
struct Owner<'h, Q, C, const ROUTES: usize> {
    cq: &'h mut VirtualCq<C, MAX_DEVICES, ROUTES>,
    devices: &'h Devices<Q, C>,
}

impl<Q, C: CompletionQueue, const ROUTES: usize> Owner<'_, Q, C, ROUTES> {
    fn source(&self) -> Source<'_, Q, C> {
        Source { devices: self.devices, cqs: self.cq.cqs() }
    }
}

/// The owners of both ends; there may be one for both.
struct Owners<'h, Q, C, const ROUTES: usize>(
    Owner<'h, Q, C, ROUTES>,
    Option<Owner<'h, Q, C, ROUTES>>,
);

impl<'h, Q, C, const ROUTES: usize> Owners<'h, Q, C, ROUTES> {
    fn of(&mut self, end: usize) -> &mut Owner<'h, Q, C, ROUTES> {
        match &mut self.1 {
            Some(second) if end == 1 => second,
            _ => &mut self.0,
        }
    }
}

/// Both ends.
struct Healing<'h, Q, C, const ROUTES: usize> {
    qps: [&'h mut EndpointQp<Q>; 2],
    /// Where they are attached.
    indices: [u16; 2],
    owners: Owners<'h, Q, C, ROUTES>,
}

impl<Q, C, const ROUTES: usize> Healing<'_, Q, C, ROUTES>
where
    Q: Connect,
    C: CompletionQueue,
{
    fn heal(mut self) -> Result<(), ReplaceError> {
        for qp in &mut self.qps {
            qp.lose_gone_rails();
        }
        self.carry();
        let mut healed = Ok(());
        for rail in rail_ids() {
            if self.is_down(rail) {
                healed = healed.and(self.replace(rail));
            }
        }
        self.carry();
        healed
    }

    /// Carries messages both ways until there are none.
    fn carry(&mut self) {
        let [a, b] = &mut self.qps;
        // An end that does not understand the other one has failed, and tells that it has.
        let deliver = |from: &mut EndpointQp<Q>, to: &mut EndpointQp<Q>| match from.next_control() {
            Some(message) => {
                _ = to.control(message);
                true
            }
            None => false,
        };
        while deliver(a, b) | deliver(b, a) {}
    }

    /// Whether both ends have to give this rail a queue pair, of the same generation.
    fn is_down(&self, rail: RailId) -> bool {
        let [a, b] = self.qps.each_ref().map(|qp| qp.next_generation(rail).ok());
        a.is_some() && a == b
    }

    /// A queue pair at each end, on devices in the same place. The error is of the best place.
    fn make(&mut self, rail: RailId) -> Result<[Replacement<Q>; 2], ReplaceError> {
        let mut first = None;
        for place in self.qps[0].candidates(rail)? {
            match self.make_on(rail, place.device) {
                Ok(replacements) => return Ok(replacements),
                Err(error) => first = first.or(Some(error)),
            }
        }
        Err(first.unwrap_or(virtual_qp::ReplaceError::NoRail(rail).into()))
    }

    fn make_on(
        &mut self,
        rail: RailId,
        device: usize,
    ) -> Result<[Replacement<Q>; 2], ReplaceError> {
        let [place_a, place_b] = [self.look_up(0, rail, device)?, self.look_up(1, rail, device)?];
        let [qp_a, qp_b] = &self.qps;
        let a = self.owners.of(0).source().make_at(qp_a, rail, place_a)?;
        let b = self.owners.of(1).source().make_at(qp_b, rail, place_b)?;
        Ok([a, b])
    }

    /// Whether ports are up costs less to know than a queue pair does.
    fn look_up(&mut self, end: usize, rail: RailId, device: usize) -> Result<Place, ReplaceError> {
        let qp = &self.qps[end];
        let place = qp.candidate_on(rail, device)?;
        self.owners.of(end).source().look_up(qp, rail, place)
    }

    fn replace(&mut self, rail: RailId) -> Result<(), ReplaceError> {
        let [a, b] = self.make(rail)?;
        let (address_a, address_b) = (a.address, b.address);
        let [qp_a, qp_b] = &mut self.qps;
        put_in_place(self.owners.of(0).cq, self.indices[0], qp_a, a, &address_b)?;
        let replaced = put_in_place(self.owners.of(1).cq, self.indices[1], qp_b, b, &address_a);
        if replaced.is_err() {
            // Its new queue pair has no other end.
            qp_a.fail_rail(rail);
        }
        replaced
    }
}
