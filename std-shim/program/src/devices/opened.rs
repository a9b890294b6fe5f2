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
///
/// # Errors
///
/// They cannot be opened. The error says so if they were chosen only by an option that is for them.
#[cfg(feature = "verbs")]
pub(super) fn open_verbs(
    choice: &DeviceChoice,
    not_used: &mut NotUsed<'_>,
) -> Result<OpenedDevices, DevicesError> {
    use polyrail::rdma::{OpenError, OpenOptions, open_devices_with};
    let options =
        OpenOptions { gid_index: choice.gid_index, near: choice.near.unwrap_or_default() };
    let opened = open_devices_with(choice.verbs_names(), &options, |device, reason| {
        not_used(device, reason);
    });
    match opened {
        Ok(domains) => Ok(OpenedDevices::Verbs(domains)),
        Err(error @ OpenError::NoPciDevice(_)) => Err(error.into()),
        Err(error) => Err(none(choice, error.into())),
    }
}

/// Without verbs, RDMA devices cannot be opened.
#[cfg(not(feature = "verbs"))]
pub(super) fn open_verbs(
    choice: &DeviceChoice,
    _: &mut NotUsed<'_>,
) -> Result<OpenedDevices, DevicesError> {
    Err(none(choice, DevicesError::WithoutVerbs))
}

/// Returns the error that no RDMA device can be used.
fn none(choice: &DeviceChoice, error: DevicesError) -> DevicesError {
    match choice.only_verbs_option() {
        Some(option) => DevicesError::OnlyByOption { option, source: Box::new(error) },
        None => error,
    }
}
