//! Two connected endpoints with a ring of slots each.

use super::drive::{self, Sender};
use super::{Limit, Operation, PerfConfig, Round, Threads};
use crate::DeviceCountMismatch;
use crate::RemoteBuffer;
use crate::backend::{ConnectOptions, DeviceError, Domain};
use crate::endpoint::{BuildError, ConnectError, Endpoint, EndpointBuilder, EndpointError};
use crate::memory::{OutOfRange, RegisteredBuffer};
use crate::nic::{DeviceConfig, Fabric, NicError, ProtectionDomain};
use polyrail_core::verbs::{AccessFlags, DeviceKeys, LocalBuffer};
use polyrail_core::virtual_qp::{Config, PostError, RailCounters, Scheme};
use std::sync::atomic::{AtomicBool, Ordering};

/// Why nothing could be measured.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// Requests of no bytes, which rails cannot share.
    #[error("requests of 0 bytes")]
    Empty,
    /// A window that cannot be.
    #[error("a window of {0} requests: 1 to {max} can be", max = drive::MAX_WINDOW)]
    Window(u32),
    /// The system gave no memory to compare with.
    #[error("no memory to compare with: {0}")]
    Memory(String),
    /// A device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The endpoints could not be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The endpoints could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The buffers do not go together.
    #[error(transparent)]
    Devices(#[from] DeviceCountMismatch),
    /// A slot does not lie within its buffer.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// A request was refused.
    #[error("posting: {0}")]
    Post(#[from] PostError),
    /// An endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// Bytes of either ring at most. Beyond, requests share slots.
const MAX_RING_BYTES: usize = 256 << 20;

/// Slots of registered memory.
#[derive(Debug)]
pub(super) struct Ring<R> {
    buffer: RegisteredBuffer<R>,
    pub(super) slots: usize,
    pub(super) message_size: u32,
}

impl<R> Ring<R> {
    fn new<D: Domain<Region = R>>(
        config: &PerfConfig,
        domains: &[D],
        byte: u8,
    ) -> Result<Self, PerfError> {
        let message_size = config.message_size;
        let stride = Self::stride(message_size);
        let slots = (config.window as usize).min((MAX_RING_BYTES / stride).max(1));
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let domains: Vec<&D> = domains.iter().collect();
        let buffer = RegisteredBuffer::new(slots * stride, access, &domains)?;
        buffer.fill(0, buffer.len(), byte)?;
        Ok(Self { buffer, slots, message_size })
    }

    fn stride(message_size: u32) -> usize {
        (message_size as usize).next_multiple_of(128)
    }

    /// Place of a request's slot in the ring, in bytes.
    pub(super) fn offset(&self, request: u64) -> usize {
        (request % self.slots as u64) as usize * Self::stride(self.message_size)
    }

    pub(super) fn local(&self, request: u64) -> Result<LocalBuffer, OutOfRange> {
        self.buffer.local(self.offset(request), self.message_size)
    }
}

/// One end.
pub(super) struct End<D: Domain> {
    pub(super) endpoint: Endpoint<D::Qp, D::Cq>,
    pub(super) ring: Ring<D::Region>,
    /// Keys of requests from this ring to the other end's.
    pub(super) keys: Vec<DeviceKeys>,
    /// The other end's ring.
    pub(super) peer: RemoteBuffer,
}

/// Two ends that are connected.
pub(super) struct Rig<D: Domain> {
    sender: Sender<D>,
    receiver: drive::Receiver<D>,
    threads: Threads,
}

impl Rig<ProtectionDomain> {
    /// Two ends on software NICs.
    pub(super) fn new(config: &PerfConfig) -> Result<Self, PerfError> {
        let fabric = Fabric::threaded();
        let open = |prefix: &str| -> Result<Vec<ProtectionDomain>, NicError> {
            let name = |number| DeviceConfig::named(format!("{prefix}{number}"));
            (0..config.devices).map(|n| fabric.create_device(name(n)).alloc_pd()).collect()
        };
        let failed = |error| PerfError::Device(DeviceError::from(error));
        Self::between(config, &open("tx").map_err(failed)?, &open("rx").map_err(failed)?)
    }
}

impl<D> Rig<D>
where
    D: Domain<Qp: Send, Cq: Send, Region: Send>,
{
    /// Two ends on these devices.
    fn between(config: &PerfConfig, here: &[D], there: &[D]) -> Result<Self, PerfError> {
        if config.message_size == 0 {
            return Err(PerfError::Empty);
        }
        if config.window == 0 || config.window > drive::MAX_WINDOW {
            return Err(PerfError::Window(config.window));
        }
        let (from, to) = (Ring::new(config, here, 1)?, Ring::new(config, there, 2)?);
        let mut endpoint = make_endpoint(config, here)?;
        let mut other = make_endpoint(config, there)?;
        crate::endpoint::connect_endpoints(&mut endpoint, &mut other)?;
        let (near, far) = (from.buffer.remote(), to.buffer.remote());
        let keys = from.buffer.toward(&far)?;
        let sender = End { endpoint, ring: from, keys, peer: far };
        let keys = to.buffer.toward(&near)?;
        let receiver = End { endpoint: other, ring: to, keys, peer: near };
        Ok(Self {
            sender: Sender::new(config, sender),
            receiver: drive::Receiver::new(config, receiver)?,
            threads: config.threads,
        })
    }

    /// Slots of either ring.
    pub(super) fn slots(&self) -> usize {
        self.sender.slots()
    }

    /// Lets everything happen once before it is measured.
    pub(super) fn warm_up(&mut self) -> Result<(), PerfError> {
        let requests = 2 * self.slots() as u64 + 16;
        self.run(Limit::Count(requests)).map(|_| ())
    }

    /// What the sender's rails did so far, summed up.
    pub(super) fn sender_counters(&self) -> RailCounters {
        self.sender.counters()
    }

    /// One round: requests up to the limit, until all of them are over at both ends.
    pub(super) fn run(&mut self, limit: Limit) -> Result<Round, PerfError> {
        let Self { sender, receiver, threads } = self;
        if *threads == Threads::One {
            return sender.run(limit, |sent| {
                receiver.poll()?;
                Ok(receiver.has_all(sent))
            });
        }
        let stop = AtomicBool::new(false);
        let round = std::thread::scope(|scope| {
            let other = scope.spawn(|| -> Result<(), PerfError> {
                let result = receiver.run_until(&stop);
                stop.store(true, Ordering::Release);
                result
            });
            let round = sender.run(limit, |_| Ok(true));
            stop.store(true, Ordering::Release);
            let received = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            received.and(round)
        })?;
        while !receiver.has_all(sender.posted()) {
            receiver.poll()?;
        }
        Ok(round)
    }
}

fn make_endpoint<D: Domain>(
    config: &PerfConfig,
    domains: &[D],
) -> Result<Endpoint<D::Qp, D::Cq>, PerfError> {
    // A SEND consumes a receive, which DQPLB would have posted for notifications.
    let scheme = if config.operation == Operation::Send { Scheme::Spray } else { config.scheme };
    let engine = Config {
        scheme,
        max_msg_size: config.max_msg_size,
        max_msgs_per_qp: u32::MAX,
        ..Config::default()
    };
    let domains: Vec<&D> = domains.iter().collect();
    // A receiver that is late must not cost a millisecond: 10 us.
    let options = ConnectOptions { min_rnr_timer: 1, ..ConnectOptions::default() };
    let builder =
        EndpointBuilder::new().rails(config.rails).config(engine).connect_options(options);
    Ok(builder.build(&domains)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::recorded::{Log, Recorded};
    use crate::nic::{Fault, When};
    use polyrail_core::virtual_qp::RailId;
    use std::time::{Duration, Instant};

    /// Silences the device of a sender's rail, and runs until that is found.
    fn fall_silent(config: &PerfConfig, device: usize) -> PerfError {
        let fabric = Fabric::threaded();
        let open = |prefix: &str| -> Vec<ProtectionDomain> {
            let name = |number| DeviceConfig::named(format!("{prefix}{number}"));
            (0..config.devices).map(|n| fabric.create_device(name(n)).alloc_pd().unwrap()).collect()
        };
        let (here, there) = (open("tx"), open("rx"));
        let mut rig = Rig::between(config, &here, &there).unwrap();
        rig.warm_up().unwrap();
        here[device].device().inject(When::Now, Fault::Silent(true));
        rig.run(Limit::Count(1000)).unwrap_err()
    }

    #[test]
    fn any_backend_can_be_measured() {
        let (fabric, log) = (Fabric::threaded(), Log::default());
        let open = |name: &str| {
            let device = fabric.create_device(DeviceConfig::named(name));
            [Recorded::new(device.alloc_pd().unwrap(), &log)]
        };
        let config = PerfConfig { rails: 2, message_size: 70_000, ..PerfConfig::default() };
        let mut rig = Rig::between(&config, &open("a"), &open("b")).unwrap();
        assert_eq!(rig.run(Limit::Count(20)).unwrap().requests, 20);
    }

    #[test]
    fn a_silent_rail_ends_a_measurement() {
        const TIMEOUT: Duration = Duration::from_millis(200);
        for (rails, operation, threads) in [
            (4, Operation::Write, Threads::One),
            (4, Operation::WriteImm, Threads::Two),
            (4, Operation::Read, Threads::One),
            (1, Operation::Write, Threads::One),
            (1, Operation::Send, Threads::Two),
        ] {
            let config = PerfConfig {
                rails,
                devices: rails,
                operation,
                threads,
                message_size: 1 << 20,
                stall_timeout: TIMEOUT,
                ..PerfConfig::default()
            };
            let (begin, device) = (Instant::now(), rails - 1);
            let error = fall_silent(&config, device);
            let PerfError::Endpoint(EndpointError::Silent { rail, device: name, waited }) = error
            else {
                panic!("{error}")
            };
            assert_eq!((rail, name), (RailId::Data(device as u8), format!("tx{device}")));
            assert!(waited == TIMEOUT && begin.elapsed() >= TIMEOUT);
            assert!(begin.elapsed() < 20 * TIMEOUT, "{:?}", begin.elapsed());
        }
    }
}
