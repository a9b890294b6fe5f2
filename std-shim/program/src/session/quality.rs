//! Priorities of the packets of a side.

use polyrail::backend::ConnectOptions;

/// Priorities of the packets of a side, for switches and routers. The software NIC ignores them,
/// since it has no network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QualityOfService {
    /// See [`ConnectOptions::traffic_class`].
    pub traffic_class: u8,
    /// See [`ConnectOptions::service_level`]; at most 15.
    pub service_level: u8,
}

impl QualityOfService {
    /// Applies this to the options of a connection.
    pub(crate) const fn chosen(self, options: ConnectOptions) -> ConnectOptions {
        let Self { traffic_class, service_level } = self;
        ConnectOptions { traffic_class, service_level, ..options }
    }
}
