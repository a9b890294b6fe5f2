//! Two connected ends on devices of one fabric, and threads.

use crate::stepped::Stepped;
use polyrail::endpoint::{Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{CompletionQueue, DeviceConfig, Fabric, ProtectionDomain, QueuePair};
use polyrail_core::verbs::{AccessFlags, DeviceKeys, LocalBuffer, RecvWr, SendWr};

#[cfg(polyrail_loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(polyrail_loom))]
pub(crate) use std::thread::{spawn, yield_now};

/// A thread with room for an endpoint on its stack.
#[cfg(polyrail_loom)]
pub(crate) fn spawn<T: Send + 'static>(
    run: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    loom::thread::Builder::new().stack_size(1 << 17).spawn(run).unwrap()
}

pub(crate) type SteppedEndpoint = Endpoint<QueuePair, Stepped<CompletionQueue>>;

/// One end.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) endpoint: SteppedEndpoint,
    pub(crate) buffer: RegisteredBuffer,
}

fn host(fabric: &Fabric, name: &str, builder: &EndpointBuilder) -> Host {
    let domain: ProtectionDomain =
        fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
    let domain = Stepped(domain);
    let endpoint = builder.build(&[&domain]).unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    Host { endpoint, buffer: RegisteredBuffer::new(64, access, &[&domain.0]).unwrap() }
}

/// Two ends of a single rail, which report completions by events or are only polled.
pub(crate) fn hosts(tells: bool) -> [Host; 2] {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new().rails(1);
    let builder = if tells { builder.completion_channel(0) } else { builder };
    let mut hosts = ["near", "far"].map(|name| host(&fabric, name, &builder));
    let [near, far] = &mut hosts;
    connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
    hosts
}

/// Writes from one buffer to the other.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    from: LocalBuffer,
    addr: u64,
    keys: Vec<DeviceKeys>,
}

impl Route {
    pub(crate) fn new(from: &Host, to: &Host) -> Self {
        let keys = from.buffer.toward(&to.buffer.remote()).unwrap();
        let from = from.buffer.local(0, 8).unwrap();
        Self { from, addr: to.buffer.addr(), keys }
    }

    pub(crate) fn write(&self, wr_id: u64) -> SendWr<'_> {
        SendWr::write(wr_id, self.from, self.addr, &self.keys)
    }

    pub(crate) fn notify(&self, wr_id: u64) -> SendWr<'_> {
        SendWr::write_with_imm(wr_id, self.from, self.addr, 3, &self.keys)
    }
}

/// What a notification takes.
pub(crate) const fn receive(wr_id: u64) -> RecvWr<'static> {
    RecvWr::notification(wr_id)
}
