//! The places of queue pairs: devices and ports.

use super::build_error::BuildError;
use super::sizes::MAX_DEVICES;
use crate::backend::{DeviceError, Domain, Port};
use crate::queue_pair::Place;
use polyrail_core::virtual_qp::{Config, MAX_RAILS, RailId};
use std::borrow::Borrow;

/// Returns the place of each rail: devices alternate, then the ports of each device. With more
/// devices than rails, the last devices get none.
pub(crate) fn places<D: Domain>(rails: usize, domains: &[&D]) -> Result<Vec<Place>, BuildError> {
    let devices = domains.len();
    if !(1..=MAX_RAILS).contains(&rails) {
        return Err(BuildError::Rails { rails, max: MAX_RAILS });
    }
    if !(1..=MAX_DEVICES).contains(&devices) {
        return Err(BuildError::Devices { devices, rails });
    }
    let domains = &domains[..devices.min(rails)];
    let ports = domains.iter().map(|domain| ports(*domain)).collect::<Result<Vec<_>, _>>()?;
    let place = |rail: usize| {
        let device = rail % domains.len();
        let turn = rail / domains.len();
        Place { device, port: ports[device][turn % ports[device].len()] }
    };
    Ok((0..rails).map(place).collect())
}

/// Positions of devices whose rails stand by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StandbyDevices {
    /// Bit p of each position p that a device can have.
    positions: u8,
    /// A position that no device can have.
    beyond: Option<usize>,
}

const _: () = assert!(MAX_DEVICES == u8::BITS as usize, "a bit for each device");

impl StandbyDevices {
    pub(crate) fn new(positions: impl IntoIterator<Item: Borrow<usize>>) -> Self {
        let mut standby = Self::default();
        for position in positions {
            let position = *position.borrow();
            if position < MAX_DEVICES {
                standby.positions |= 1 << position;
            } else {
                standby.beyond = Some(position);
            }
        }
        standby
    }

    /// Refuses positions that none of these devices has, and a set of all devices.
    pub(crate) fn check(self, devices: usize) -> Result<(), BuildError> {
        let has_it = |position: &usize| self.contains(*position);
        let unknown = (devices..MAX_DEVICES).find(has_it).or(self.beyond);
        if let Some(position) = unknown {
            return Err(BuildError::StandbyDevice { position, devices });
        }
        if (0..devices).all(|position| self.contains(position)) {
            return Err(BuildError::OnlyStandbyDevices { devices });
        }
        Ok(())
    }

    /// Returns which rails stand by, if rails have these places.
    pub(crate) fn rails(self, places: &[Place]) -> impl Iterator<Item = u8> {
        let rails = (0..).zip(places).filter(move |(_, place)| self.contains(place.device));
        rails.map(|(rail, _)| rail)
    }

    pub(super) const fn contains(self, position: usize) -> bool {
        position < MAX_DEVICES && self.positions >> position & 1 == 1
    }
}

/// Whether all data rails that begin on a device stand by, so that another rail stands by as well
/// while its queue pair is there. `homes` are the places of the rails at the beginning.
pub(super) fn stands_by(device: usize, homes: &[Place], config: &Config) -> bool {
    let rails = homes.iter().enumerate().filter(|(_, home)| home.device == device);
    let mut rails = rails.map(|(rail, _)| RailId::Data(rail as u8)).peekable();
    rails.peek().is_some() && rails.all(|rail| config.standby.contains(rail))
}

/// Returns the ports of a device, at least one.
fn ports<D: Domain>(domain: &D) -> Result<Vec<Port>, BuildError> {
    let ports = domain.ports().map_err(|source| refused(domain, source))?;
    if ports.is_empty() {
        return Err(BuildError::NoPort { device: domain.device_name().to_owned() });
    }
    Ok(ports)
}

pub(crate) fn refused<D: Domain>(domain: &D, source: DeviceError) -> BuildError {
    BuildError::Device { device: domain.device_name().to_owned(), source }
}

/// Rails that a virtual queue pair can have, and the notify queue pair behind them.
pub(super) const RAIL_IDS: usize = MAX_RAILS + 1;

/// Iterates over the rails, in the order of their places.
pub(super) fn rail_ids() -> impl Iterator<Item = RailId> {
    (0..MAX_RAILS as u8).map(RailId::Data).chain([RailId::Notify])
}

/// Returns the place of a rail in this order, if an endpoint can have the rail.
pub(super) fn rail_index(rail: RailId) -> Option<usize> {
    match rail {
        RailId::Data(number) => Some(usize::from(number)).filter(|at| *at < MAX_RAILS),
        RailId::Notify => Some(MAX_RAILS),
    }
}
