//! Where queue pairs are.

use crate::backend::Port;
use polyrail_core::virtual_qp::{MAX_RAILS, RailId};

/// Where a queue pair is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Place of its device in the list of devices.
    pub(super) device: usize,
    pub(super) port: Port,
}

/// Rails that a virtual queue pair can have, and the notify queue pair behind them.
pub(super) const RAIL_IDS: usize = MAX_RAILS + 1;

/// These rails, in their order.
pub(super) fn rail_ids() -> impl Iterator<Item = RailId> {
    (0..MAX_RAILS as u8).map(RailId::Data).chain([RailId::Notify])
}

/// The place of a rail in this order, if an endpoint can have it.
pub(super) fn rail_index(rail: RailId) -> Option<usize> {
    match rail {
        RailId::Data(number) => Some(usize::from(number)).filter(|at| *at < MAX_RAILS),
        RailId::Notify => Some(MAX_RAILS),
    }
}
