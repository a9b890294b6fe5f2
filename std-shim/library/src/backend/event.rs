//! Events of devices.

/// An event of a device that concerns endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// A port went down.
    PortDown {
        /// Its number, from 1 on.
        port: u8,
    },
    /// A port came up, or its addresses or partitions changed, so failed connections may now
    /// succeed. The port may still be down: see [`Domain::port`](super::Domain::port).
    PortUp {
        /// Its number, from 1 on.
        port: u8,
    },
    /// The data rate of a port has changed, because it lost a plane or a bonded port, or got it
    /// back; see [`Domain::port_mbps`](super::Domain::port_mbps). Rails stay in service. Some
    /// drivers also report it when a port goes down or comes up.
    SpeedChange,
    /// The device failed or was removed, so everything on it fails. The device may still access
    /// memory: see [`Connect::gone`](super::Connect::gone).
    Gone,
}
