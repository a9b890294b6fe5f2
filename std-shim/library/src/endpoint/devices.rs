//! The devices of an endpoint or a set, kept so that queue pairs can be made on them later.

use super::qp::DeviceNames;
use super::sizes::Shape;
use crate::backend::{
    Connect, ConnectOptions, Connecting, DeviceError, DeviceEvent, Domain, EventCursor, Port, QpCap,
};
use polyrail_core::hardware::CompletionQueue;
use polyrail_core::verbs::DeviceId;
use std::fmt;

/// Devices of one type, whatever it is.
pub(super) struct Devices<Q, C>(Vec<Box<dyn Device<Q, C>>>);

/// What is needed of a [`Domain`] once everything is made.
trait Device<Q, C>: Send + Sync {
    fn id(&self) -> DeviceId;

    fn name(&self) -> &str;

    fn max_qp_wr(&self) -> u32;

    fn max_sge(&self) -> u32;

    fn port(&self, number: u8) -> Result<Port, DeviceError>;

    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError>;

    fn make_aside(
        &self,
        cq: &C,
        cap: QpCap,
        port: u8,
        options: ConnectOptions,
    ) -> Connecting<(Q, Port)>;

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent>;
}

impl<D: Domain> Device<D::Qp, D::Cq> for D {
    fn id(&self) -> DeviceId {
        self.device_id()
    }

    fn name(&self) -> &str {
        self.device_name()
    }

    fn max_qp_wr(&self) -> u32 {
        Domain::max_qp_wr(self)
    }

    fn max_sge(&self) -> u32 {
        Domain::max_sge(self)
    }

    fn port(&self, number: u8) -> Result<Port, DeviceError> {
        Domain::port(self, number)
    }

    fn port_mbps(&self, number: u8) -> Result<u32, DeviceError> {
        Domain::port_mbps(self, number)
    }

    fn make_aside(
        &self,
        cq: &D::Cq,
        cap: QpCap,
        port: u8,
        options: ConnectOptions,
    ) -> Connecting<(D::Qp, Port)> {
        Domain::make_aside(self, (cq, None), cap, port, move |queue_pair, port| {
            queue_pair.init(&port, &options)?;
            Ok((queue_pair, port))
        })
    }

    fn next_event(&self, reader: &mut EventCursor) -> Option<DeviceEvent> {
        Domain::next_event(self, reader)
    }
}

impl<Q, C: CompletionQueue> Devices<Q, C> {
    pub(super) const NONE: Self = Self(Vec::new());

    pub(super) fn add<D: Domain<Qp = Q, Cq = C>>(&mut self, domain: &D) {
        self.0.push(Box::new(domain.clone()));
    }

    /// Their names, for people.
    pub(super) fn names(&self) -> DeviceNames {
        self.0.iter().map(|device| (device.id(), device.name().to_owned())).collect()
    }

    /// A port as it is now.
    pub(super) fn port(&self, device: DeviceId, number: u8) -> Result<Port, DeviceError> {
        self.find(device)?.port(number)
    }

    /// The name of a device, and the present rate of a port in Mbit/s.
    pub(super) fn port_mbps(
        &self,
        device: DeviceId,
        number: u8,
    ) -> Result<(&str, u32), DeviceError> {
        let device = self.find(device)?;
        Ok((device.name(), device.port_mbps(number)?))
    }

    /// The next thing that happened to a device; nothing, if it is not one of these.
    pub(super) fn next_event(
        &self,
        device: DeviceId,
        reader: &mut EventCursor,
    ) -> Option<DeviceEvent> {
        self.find(device).ok()?.next_event(reader)
    }

    /// Begins to create a queue pair in INIT on this port as it is now. The queue pair has the size
    /// of the first ones, and completes on the device's queue among `cqs`.
    pub(super) fn make_aside(
        &self,
        device: DeviceId,
        cqs: &[C],
        shape: Shape,
        port: u8,
        options: ConnectOptions,
    ) -> Connecting<(Q, Port)> {
        let cq = cqs.iter().find(|cq| cq.device() == device).ok_or(DeviceError::NotOpened);
        match self.find(device).and_then(|device| Ok((device, cq?))) {
            Ok((device, cq)) => {
                let cap = shape.cap(device.max_qp_wr(), device.max_sge());
                device.make_aside(cq, cap, port, options)
            }
            Err(error) => Connecting::done(Err(error)),
        }
    }

    fn find(&self, id: DeviceId) -> Result<&dyn Device<Q, C>, DeviceError> {
        let found = self.0.iter().find(|device| device.id() == id);
        found.map(Box::as_ref).ok_or(DeviceError::NotOpened)
    }
}

impl<Q, C> fmt::Debug for Devices<Q, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|device| device.name())).finish()
    }
}
