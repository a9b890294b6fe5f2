//! What happens to devices.

/// Something that happened to a device, as far as endpoints care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// A port carries no data any more.
    PortDown {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port carries data again, or its addresses or partitions are others: what failed is worth a new
    /// try. [`Domain::port`](super::Domain::port) knows whether the port is up by now; it may be still down.
    PortUp {
        /// Its number, from 1 on.
        port: u8,
    },
    /// The device was removed, or is beyond repair: everything on it fails. That it does not access memory
    /// any more is not said: see [`Connect::gone`](super::Connect::gone).
    Gone,
}
