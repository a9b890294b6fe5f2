//! Connecting queue pairs.

use super::connecting::Connecting;
use super::error::DeviceError;
use super::gone::Gone;
use super::port::Port;
use polyrail_core::hardware::QueuePair;
use polyrail_software_nic::{ConnectOptions, RemoteQp};

/// A queue pair that endpoints can move between states.
pub trait Connect: QueuePair {
    /// Moves from RESET to INIT, on a port: receives can be posted.
    ///
    /// # Errors
    ///
    /// The device refuses the transition.
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError>;

    /// Moves from INIT to RTR, on the same port: the peer's requests are executed. `path_mtu` of
    /// the options is the path's MTU, and `max_rd_atomic` is the limit that was sent to the peer.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn ready_to_receive(
        &self,
        port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError>;

    /// Moves from RTR to RTS: requests can be posted. `psn` is the packet sequence number that was
    /// sent to the peer, and `max_rd_atomic` of the options is the peer's limit.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError>;

    /// Moves to ERR, from any state but RESET: all outstanding requests complete, flushed.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn fail(&self) -> Result<(), DeviceError>;

    /// Executes `steps`, from INIT to RTS. Backends with slow transitions run them on another
    /// thread, so that the caller does not block.
    fn connect_aside(
        self,
        steps: impl FnOnce(&Self) -> Result<(), DeviceError> + Send + 'static,
    ) -> Connecting<Self>
    where
        Self: Sized,
    {
        Connecting::done(steps(&self).map(|()| self))
    }

    /// Destroys the queue pair. Backends on which that is slow do it on another thread, so that the
    /// caller does not block.
    fn retire(self)
    where
        Self: Sized,
    {
        drop(self);
    }

    /// Returns proof that the device was removed, if it was and the backend can detect it.
    fn gone(&self) -> Option<Gone> {
        None
    }
}
