//! Connects queue pairs.

use crate::backend::{Connect, ConnectOptions, DeviceError, Meeting, Port, RemoteQp};
use polyrail_tcp_nic::QueuePair;

impl Connect for QueuePair {
    fn init(&self, _port: &Port, options: &ConnectOptions) -> Result<(), DeviceError> {
        Ok(self.to_init(options)?)
    }

    fn meeting(&self) -> Option<Meeting> {
        Some(self.meeting())
    }

    fn ready_to_receive(
        &self,
        _port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        Ok(self.to_rtr(peer, options)?)
    }

    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError> {
        Ok(self.to_rts(psn, options)?)
    }

    fn fail(&self) -> Result<(), DeviceError> {
        Ok(self.to_error()?)
    }

    fn is_connected(&self) -> bool {
        QueuePair::is_connected(self)
    }
}
