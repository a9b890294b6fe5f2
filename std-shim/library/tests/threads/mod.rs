//! Two endpoints for messages, each with a progress thread, on the software NIC.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use crate::fixture::{Host, LONG};
use polyrail::nic::{Fabric, ProtectionDomain};
use polyrail::p2p::{
    HealingLink, P2P_ROUTES, P2pBuilder, P2pEndpoint, RecvBuffer, connect_endpoints,
};
use polyrail::progress::SubmitError;
use polyrail::progress::messages::{P2pHandle, P2pThread, PendingDone, PendingRecv};
use polyrail::verbs::DeviceKeys;
use std::time::Duration;

pub const BYTES: usize = 1 << 20;

/// One end: a host, and a thread with an endpoint on all its devices.
pub struct Side {
    pub host: Host,
    pub keys: Vec<DeviceKeys>,
    pub thread: P2pThread<ProtectionDomain, P2P_ROUTES>,
    /// If the rails are re-routed.
    pub link: Option<HealingLink>,
}

impl Side {
    pub fn handle(&self) -> P2pHandle {
        self.thread.handle(0).unwrap()
    }

    /// Offers buffers of given place, length and tag.
    pub fn offer(
        &self,
        handle: &mut P2pHandle,
        buffers: &[(usize, u32, u32)],
    ) -> Result<PendingRecv, SubmitError> {
        let offered = buffers.iter().map(|&(at, length, tag)| RecvBuffer {
            local: self.host.buffer.local(at, length).unwrap(),
            tag,
            keys: &self.keys,
        });
        handle.irecv(&offered.collect::<Vec<_>>())
    }

    pub fn send(
        &self,
        handle: &mut P2pHandle,
        (at, length, tag): (usize, u32, u32),
    ) -> Result<PendingDone, SubmitError> {
        handle.isend(self.host.buffer.local(at, length).unwrap(), tag, &self.keys)
    }

    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.host.buffer.read_at(at, &mut bytes).unwrap();
        bytes
    }
}

pub struct World {
    pub near: Side,
    pub far: Side,
}

impl World {
    pub fn new(devices: usize, builder: &P2pBuilder) -> Self {
        Self::with_patience(devices, builder, LONG)
    }

    /// Shutdowns wait that long.
    pub fn with_patience(devices: usize, builder: &P2pBuilder, patience: Duration) -> Self {
        Self::connected(devices, builder, patience, |near, far| {
            connect_endpoints(near, far).unwrap();
        })
    }

    /// As if the ends were in two processes: their repair messages have to be carried.
    pub fn apart(devices: usize, builder: &P2pBuilder) -> Self {
        Self::connected(devices, builder, LONG, |near, far| {
            let (address_near, address_far) = (near.address(), far.address());
            near.connect(&address_far).unwrap();
            far.connect(&address_near).unwrap();
        })
    }

    /// The far thread sleeps on completion channels, the near one for naps.
    fn connected(
        devices: usize,
        builder: &P2pBuilder,
        patience: Duration,
        connect: impl FnOnce(&mut P2pEndpoint, &mut P2pEndpoint),
    ) -> Self {
        let fabric = Fabric::threaded();
        let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, devices, BYTES));
        let [near, far] = &hosts;
        let mut near = builder.build(&near.all()).unwrap();
        let mut far = builder.completion_channel(0).build(&far.all()).unwrap();
        connect(&mut near, &mut far);
        let mut ends = [near, far].into_iter();
        let [near, far] = hosts.map(|host| {
            let keys = host.buffer.own_keys();
            let end = ends.next().unwrap();
            let link = end.healing_link();
            Side { host, keys, thread: P2pThread::spawn_with(end, patience).unwrap(), link }
        });
        Self { near, far }
    }
}
