//! Connects queue pairs.

use crate::backend::{Connect, DeviceError, Gone, Port};
use polyrail_software_nic::{ConnectOptions, QpAttributes, QpState, QueuePair, RemoteQp};

impl Connect for QueuePair {
    fn init(&self, port: &Port, options: &ConnectOptions) -> Result<(), DeviceError> {
        let attributes = QpAttributes { port_num: Some(port.number), ..options.to_init() };
        Ok(self.modify(QpState::Init, &attributes)?)
    }

    fn ready_to_receive(
        &self,
        _port: &Port,
        peer: &RemoteQp,
        options: &ConnectOptions,
    ) -> Result<(), DeviceError> {
        Ok(self.modify(QpState::Rtr, &options.to_rtr(peer))?)
    }

    fn ready_to_send(&self, psn: u32, options: &ConnectOptions) -> Result<(), DeviceError> {
        Ok(self.modify(QpState::Rts, &options.to_rts(psn))?)
    }

    fn fail(&self) -> Result<(), DeviceError> {
        Ok(self.to_error()?)
    }

    fn gone(&self) -> Option<Gone> {
        // SAFETY: a removed device moves no data, and transfers that were in progress at its
        // removal have ended.
        self.device_is_gone().then(|| unsafe { Gone::new() })
    }
}
