//! Connecting queue pairs.

use super::connecting::Connecting;
use super::error::DeviceError;
use super::gone::Gone;
use super::port::Port;
use polyrail_core::hardware::QueuePair;
use polyrail_nic_parts::address::{Meeting, RemoteQp};
use polyrail_nic_parts::options::ConnectOptions;

/// What moves a queue pair from INIT to RTS.
#[derive(Clone, Copy, Debug)]
pub struct ConnectSteps {
    /// The local port.
    pub port: Port,
    /// The peer's queue pair.
    pub peer: RemoteQp,
    /// The options of [`ready_to_receive`](Connect::ready_to_receive).
    pub receives: ConnectOptions,
    /// The packet sequence number that was sent to the peer.
    pub psn: u32,
    /// The options of [`ready_to_send`](Connect::ready_to_send).
    pub sends: ConnectOptions,
}

impl ConnectSteps {
    /// Moves a queue pair, on this thread.
    ///
    /// # Errors
    ///
    /// As [`Connect::init`]. The queue pair is in the state that was reached.
    pub fn run(&self, queue_pair: &impl Connect) -> Result<(), DeviceError> {
        queue_pair.ready_to_receive(&self.port, &self.peer, &self.receives)?;
        queue_pair.ready_to_send(self.psn, &self.sends)
    }
}

/// A queue pair that endpoints can move between states.
pub trait Connect: QueuePair {
    /// Moves from RESET to INIT, on a port: receives can be posted.
    ///
    /// # Errors
    ///
    /// The device refuses the transition.
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError>;

    /// Returns where and with which key the queue pair accepts its connection. It travels with its
    /// address to the peer. `None` on devices whose connections need none: all but TCP NICs.
    fn meeting(&self) -> Option<Meeting> {
        None
    }

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

    /// Moves from INIT to RTS. Backends with slow transitions make them on
    /// [another thread](Connecting::aside), so that the caller does not block. Until the result is
    /// there, the caller may post receives, [fail](Self::fail) the queue pair, and drop it: then no
    /// peer reaches it. If the result is dropped, the transitions may not be made.
    fn connect_aside(&self, steps: &ConnectSteps) -> Connecting<()>
    where
        Self: Sized,
    {
        Connecting::done(steps.run(self))
    }

    /// Returns whether data can reach the peer's queue pair, as far as the device knows. A TCP NIC
    /// makes the connection after RTR, in the background, and returns whether it exists and has not
    /// ended. All other devices return `true`.
    fn is_connected(&self) -> bool {
        true
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
