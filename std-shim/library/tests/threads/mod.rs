//! Two endpoints for messages, each with a progress thread, on the software NIC.

#![allow(dead_code, reason = "every test program uses its own part")]
#![allow(unreachable_pub, reason = "a module of several test programs")]

use crate::fixture::{Host, LONG};
use polyrail::nic::{Fabric, ProtectionDomain};
use polyrail::p2p::{P2P_ROUTES, P2pBuilder, RecvBuffer, connect_endpoints};
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

    /// Shutdowns wait that long. The far thread sleeps on completion channels, the near one for
    /// naps.
    pub fn with_patience(devices: usize, builder: &P2pBuilder, patience: Duration) -> Self {
        let fabric = Fabric::threaded();
        let hosts = ["near", "far"].map(|name| Host::new(&fabric, name, devices, BYTES));
        let [near, far] = &hosts;
        let mut near = builder.build(&near.all()).unwrap();
        let mut far = builder.completion_channel(0).build(&far.all()).unwrap();
        connect_endpoints(&mut near, &mut far).unwrap();
        let mut ends =
            [near, far].map(|end| P2pThread::spawn_with(end, patience).unwrap()).into_iter();
        let [near, far] = hosts.map(|host| {
            let keys = host.buffer.own_keys();
            Side { host, keys, thread: ends.next().unwrap() }
        });
        Self { near, far }
    }
}
