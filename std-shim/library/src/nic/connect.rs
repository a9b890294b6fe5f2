//! Connects queue pairs.

use crate::backend::{Connect, ConnectSteps, Connecting, DeviceError, Gone, Port};
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

    /// At once, unless a fault lets it search for a path, which it does on another thread as a NIC
    /// does.
    fn connect_aside(&self, steps: &ConnectSteps) -> Connecting<()> {
        if !self.searches_paths() {
            return Connecting::done(steps.run(self));
        }
        let ConnectSteps { peer, receives, psn, sends, .. } = steps;
        let (to_rtr, to_rts) = (receives.to_rtr(peer), sends.to_rts(*psn));
        let connector = self.connector();
        Connecting::aside(move || Ok(connector.connect(&to_rtr, &to_rts)?))
    }

    fn gone(&self) -> Option<Gone> {
        // SAFETY: a removed device moves no data, and transfers that were in progress at its
        // removal have ended.
        self.device_is_gone().then(|| unsafe { Gone::new() })
    }
}
