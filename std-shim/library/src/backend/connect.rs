//! What endpoints ask of a queue pair, besides the data path.

use super::connecting::Connecting;
use super::error::DeviceError;
use super::gone::Gone;
use super::port::Port;
use polyrail_core::hardware::QueuePair;
use polyrail_software_nic::{ConnectOptions, RemoteQp};

/// A queue pair whose state an endpoint can change.
pub trait Connect: QueuePair {
    /// RESET to INIT, on a port: receives can be posted.
    ///
    /// # Errors
    ///
    /// The device refuses, as with the other transitions.
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError>;

    /// INIT to RTR, on the same port: the peer's requests are carried out. The options' `path_mtu` is
    /// the path's, and `max_rd_atomic` is what the peer was told.
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

    /// RTR to RTS: requests can be posted. `psn` is the packet sequence number that the peer was
    /// told, and the options' `max_rd_atomic` is what the peer takes.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError>;

    /// To ERR, from any state but RESET: everything outstanding completes, flushed.
    ///
    /// # Errors
    ///
    /// See [`init`](Self::init).
    fn fail(&self) -> Result<(), DeviceError>;

    /// Carries out the `steps` from INIT to RTS. Where they may take long, its owner does not wait for them.
    fn connect_aside(
        self,
        steps: impl FnOnce(&Self) -> Result<(), DeviceError> + Send + 'static,
    ) -> Connecting<Self>
    where
        Self: Sized,
    {
        Connecting::done(steps(&self).map(|()| self))
    }

    /// Destroys it. Where that may take long, its owner does not wait for it.
    fn retire(self)
    where
        Self: Sized,
    {
        drop(self);
    }

    /// The word that its device was removed, if that is so and the backend can know.
    fn gone(&self) -> Option<Gone> {
        None
    }
}
