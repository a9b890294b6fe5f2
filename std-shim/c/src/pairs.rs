//! The order in which the rails of a connection use the devices of the two ends.

use crate::code::Code;
use crate::error::{Failure, Refusal};
use crate::types::POLYRAIL_MAX_DEVICES;
use arrayvec::ArrayVec;
use polyrail::backend::Domain;
use polyrail::link::Reach;
use polyrail::pairing::positions_in_pairs_or_in_order;

/// Positions of devices in the list of their domain. Empty: all, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order(ArrayVec<u8, POLYRAIL_MAX_DEVICES>);

impl Order {
    /// Returns the order in which the devices of this end reach those of the peer; that of the
    /// domain, if rails cannot join them in pairs, since routers may connect the networks. That is
    /// a line of the log.
    pub(crate) fn toward<D: Domain>(domains: &[D], peer: &Reach) -> Result<Self, Refusal> {
        // The library's event is a line of the log already.
        let positions = positions_in_pairs_or_in_order(domains, peer, |_| ())
            .map_err(|error| Failure::of(Code::Mismatch, &error))?;
        let is_plain = positions.iter().copied().eq(0..domains.len());
        match is_plain {
            true => Ok(Self::default()),
            false => Ok(Self::new(positions.into_iter().map(|at| at as u8))),
        }
    }

    /// Returns the order of these positions, of which only as many count as a domain has devices.
    pub(crate) fn new(positions: impl IntoIterator<Item = u8>) -> Self {
        Self(positions.into_iter().take(POLYRAIL_MAX_DEVICES).collect())
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn positions(&self) -> &[u8] {
        &self.0
    }

    /// Returns the values of devices in this order. Positions without a device are left out.
    pub(crate) fn of<'v, T>(&'v self, values: &'v [T]) -> impl Iterator<Item = &'v T> + 'v {
        let all = if self.is_plain() { values } else { &[] };
        all.iter().chain(self.0.iter().filter_map(|at| values.get(usize::from(*at))))
    }
}

/// The orders of both ends of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    pub(crate) own: Order,
    pub(crate) far: Order,
}

impl Pairs {
    /// Whether both ends use their devices in the order of their domains.
    #[inline]
    pub(crate) fn are_plain(&self) -> bool {
        self.own.is_plain() && self.far.is_plain()
    }
}

#[cfg(all(test, feature = "tcp"))]
mod rt_tests {
    use super::*;
    use polyrail::p2p::{P2pBuilder, P2pEndpoint};
    use polyrail::tcp::{DeviceOptions, ProtectionDomain, open_devices};

    fn open(addresses: &[&str]) -> Vec<ProtectionDomain> {
        open_devices(addresses, &DeviceOptions::default()).unwrap()
    }

    #[test]
    fn devices_are_in_pairs_or_in_the_order_of_the_domain() {
        let own = open(&["::1", "127.0.0.1"]);
        let toward = |addresses: &[&str]| {
            let builder = P2pBuilder::new().rails(addresses.len());
            let peer: P2pEndpoint<_> = builder.build(&open(addresses)).unwrap();
            Order::toward(&own, &peer.address().into()).unwrap()
        };
        assert_eq!(toward(&["127.0.0.2", "::1"]), Order::new([1, 0]));
        assert_eq!(toward(&["::1", "127.0.0.2"]), Order::default());
        // Rail 1 would use ::1.
        assert_eq!(toward(&["127.0.0.2", "127.0.0.3", "::1"]), Order::default());
    }
}
