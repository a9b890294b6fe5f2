//! Open devices of one backend.

use super::choice::DeviceChoice;
use super::error::DevicesError;
use crate::session::Backend;
use polyrail::backend::Domain;
#[cfg(feature = "verbs")]
use polyrail::rdma::VerbsDomain;
use polyrail::tcp::ProtectionDomain;
use std::error::Error;

/// Open devices of one backend, in the order in which rails use them.
#[derive(Debug)]
pub enum OpenedDevices {
    /// RDMA devices.
    #[cfg(feature = "verbs")]
    Verbs(Vec<VerbsDomain>),
    /// Network interfaces.
    Tcp(Vec<ProtectionDomain>),
}

impl OpenedDevices {
    /// Returns their kind.
    pub const fn backend(&self) -> Backend {
        match self {
            #[cfg(feature = "verbs")]
            Self::Verbs(_) => Backend::Verbs,
            Self::Tcp(_) => Backend::Tcp,
        }
    }

    /// Returns their names.
    pub fn names(&self) -> Vec<&str> {
        match self {
            #[cfg(feature = "verbs")]
            Self::Verbs(domains) => names(domains),
            Self::Tcp(domains) => names(domains),
        }
    }
}

pub(super) fn names<D: Domain>(domains: &[D]) -> Vec<&str> {
    domains.iter().map(Domain::device_name).collect()
}

/// Called with the name of a device that was not named and is left out, and the reason.
pub(super) type NotUsed<'a> = dyn FnMut(&str, &dyn Error) + 'a;

/// Opens the RDMA devices that were chosen.
#[cfg(feature = "verbs")]
pub(super) fn open_verbs(
    choice: &DeviceChoice,
    not_used: &mut NotUsed<'_>,
) -> Result<OpenedDevices, DevicesError> {
    use polyrail::rdma::{OpenOptions, open_devices_with};
    let options = OpenOptions { gid_index: choice.gid_index };
    let opened = open_devices_with(&choice.verbs_names(), &options, |device, reason| {
        not_used(device, reason);
    });
    Ok(OpenedDevices::Verbs(opened?))
}

/// Without verbs, RDMA devices cannot be opened.
#[cfg(not(feature = "verbs"))]
pub(super) fn open_verbs(
    _: &DeviceChoice,
    _: &mut NotUsed<'_>,
) -> Result<OpenedDevices, DevicesError> {
    Err(DevicesError::WithoutVerbs)
}
