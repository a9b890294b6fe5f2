//! How the network treats a side's packets.

use polyrail::backend::ConnectOptions;

/// What switches and routers go by when they treat a side's packets before or after others. The software NIC
/// has no network, and ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QualityOfService {
    /// See [`ConnectOptions::traffic_class`].
    pub traffic_class: u8,
    /// See [`ConnectOptions::service_level`]; at most 15.
    pub service_level: u8,
}

impl QualityOfService {
    /// Adds it to the options of a connection.
    pub(crate) const fn chosen(self, options: ConnectOptions) -> ConnectOptions {
        let Self { traffic_class, service_level } = self;
        ConnectOptions { traffic_class, service_level, ..options }
    }
}
