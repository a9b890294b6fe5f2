//! The interface of connections to both kinds of devices, without type parameters for the backend.

use crate::log;
use crate::settings::names_device;
use arrayvec::ArrayVec;
use polyrail::backend::{DeviceError, DmaBuf, Domain};
use polyrail::endpoint::MAX_DEVICES;
use polyrail::hardware::CqError;
use polyrail::link::Reach;
use polyrail::memory::{CacheLimits, CachedBuffer, ForeignBuffer, RegistrationCache};
use polyrail::metrics::ConnectionMetrics;
use polyrail::p2p::{
    CallError, FlushHandle, HealingLink, NamedFailure, P2pAddress, P2pBuildError, P2pBuilder,
    P2pConnectError, P2pEndpoint, Received, RecvBuffer, RecvHandle, SendHandle,
};
use polyrail::pairing::{PairingError, positions_in_pairs_or_in_order};
use polyrail::verbs::{AccessFlags, DeviceKeys, LocalBuffer};
use polyrail::virtual_qp::RailEvent;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of completions per poll.
const BUDGET: usize = 32;

/// Access to registered memory: peers write messages, and this end's own devices read it for
/// flushes.
const ACCESS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);

/// One end of a connection, which sends or receives: a [`P2pEndpoint`] on any backend.
pub(crate) trait Wire: Send {
    fn address(&self) -> P2pAddress;
    /// Connects, without waiting. Returns whether it is connected.
    fn connect(&mut self, peer: &P2pAddress) -> Result<bool, P2pConnectError>;
    /// Polls for completions. Returns the error of a completion queue that has failed.
    fn poll(&mut self) -> Option<CqError>;
    fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError>;
    /// Like `isend`, inline. Only for memory that this process can read.
    fn isend_inline(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError>;
    fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError>;
    fn test_send(&mut self, handle: SendHandle) -> Result<bool, CallError>;
    fn test_recv(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError>;
    fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError>;
    fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError>;
    /// Returns the link of repair messages, if rails are re-routed.
    fn healing_link(&self) -> Option<HealingLink>;
    /// Handles the peer's repair messages, and creates messages for the peer.
    fn heal(&mut self);
    /// Returns the next event of a rail, with the name of its device.
    fn take_rail_event(&mut self) -> Option<(String, RailEvent)>;
    fn failure(&self) -> Option<NamedFailure>;
    /// Returns what it has counted.
    fn metrics(&self) -> ConnectionMetrics;
    fn fail(&mut self);
    fn give_up(&mut self, patience: Duration);
}

impl<D: Domain> Wire for P2pEndpoint<D>
where
    Self: Send,
{
    fn address(&self) -> P2pAddress {
        (**self).address()
    }

    fn connect(&mut self, peer: &P2pAddress) -> Result<bool, P2pConnectError> {
        (**self).try_connect(peer)
    }

    fn poll(&mut self) -> Option<CqError> {
        self.poll(BUDGET).error
    }

    fn isend(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        (**self).isend(buffer, tag, keys)
    }

    fn isend_inline(
        &mut self,
        buffer: LocalBuffer,
        tag: u32,
        keys: &[DeviceKeys],
    ) -> Result<SendHandle, CallError> {
        (**self).isend_inline(buffer, tag, keys)
    }

    fn irecv(&mut self, buffers: &[RecvBuffer<'_>]) -> Result<RecvHandle, CallError> {
        (**self).irecv(buffers)
    }

    fn test_send(&mut self, handle: SendHandle) -> Result<bool, CallError> {
        (**self).test_send(handle)
    }

    fn test_recv(&mut self, handle: RecvHandle) -> Result<Option<Received>, CallError> {
        (**self).test_recv(handle)
    }

    fn flush(&mut self, received: &Received) -> Result<FlushHandle, CallError> {
        (**self).flush(received)
    }

    fn test_flush(&self, handle: &FlushHandle) -> Result<bool, CallError> {
        (**self).test_flush(handle)
    }

    fn healing_link(&self) -> Option<HealingLink> {
        (**self).healing_link()
    }

    fn heal(&mut self) {
        self.heal();
    }

    fn metrics(&self) -> ConnectionMetrics {
        (**self).metrics()
    }

    fn take_rail_event(&mut self) -> Option<(String, RailEvent)> {
        let (_, place, event) = (**self).take_rail_event()?;
        let device = self.device_of(place).unwrap_or_default().to_owned();
        Some((device, event))
    }

    fn failure(&self) -> Option<NamedFailure> {
        (**self).failure()
    }

    fn fail(&mut self) {
        (**self).fail();
    }

    fn give_up(&mut self, patience: Duration) {
        self.give_up(patience);
    }
}

/// Memory of NCCL, registered with all NICs of a device until this is dropped.
pub(crate) struct Registered {
    addr: u64,
    length: usize,
    pub(crate) keys: ArrayVec<DeviceKeys, MAX_DEVICES>,
    /// Whether it is memory of a GPU, where data of a NIC can become visible after its completion.
    pub(crate) is_gpu: bool,
    _held: Box<dyn Any + Send>,
}

impl Registered {
    fn new(
        (addr, length): (u64, usize),
        keys: Vec<DeviceKeys>,
        is_gpu: bool,
        held: Box<dyn Any + Send>,
    ) -> Self {
        let keys = keys.into_iter().take(MAX_DEVICES).collect();
        Self { addr, length, keys, is_gpu, _held: held }
    }

    /// Describes `length` bytes from `addr`, if they lie within the memory.
    pub(crate) fn local(&self, addr: u64, length: u32) -> Option<LocalBuffer> {
        let offset = addr.checked_sub(self.addr)?;
        let end = offset.checked_add(length.into())?;
        // SAFETY: guaranteed by the caller of the registration: the memory stays, and requests may
        // use it.
        (end <= self.length as u64).then(|| unsafe { LocalBuffer::new(addr, length) })
    }
}

/// Why an end of a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoWire {
    /// No NIC here can reach one of the peer's.
    #[error(transparent)]
    Unpaired(#[from] PairingError),
    /// It could not be built.
    #[error(transparent)]
    Build(#[from] P2pBuildError),
}

impl NoWire {
    /// Returns whether the system has no file descriptor left for it, which is temporary.
    pub(crate) const fn lacks_descriptor(&self) -> bool {
        match self {
            Self::Unpaired(_) => false,
            Self::Build(error) => error.lacks_descriptor(),
        }
    }
}

/// The NICs of a device, one or several.
pub(crate) trait Nics: Send + Sync {
    /// Returns the number of NICs.
    fn count(&self) -> usize;

    /// Whether the setting of a rate names the device of a NIC.
    fn has_device(&self, given: &str) -> bool;

    /// Makes an end of a connection over these NICs. The end that answers puts them into the order of
    /// the peer's, which is at `peer`. `rates` in Mbit/s replace those of the NICs with these names.
    fn wire(
        &self,
        builder: &P2pBuilder,
        rates: &[(String, u32)],
        peer: Option<&Reach>,
    ) -> Result<Box<dyn Wire>, NoWire>;

    /// Registers memory with each NIC.
    ///
    /// # Safety
    ///
    /// The memory stays allocated until the result is dropped.
    unsafe fn register(
        &self,
        start: *mut u8,
        length: usize,
        is_gpu: bool,
    ) -> Result<Registered, DeviceError>;

    /// Registers memory behind a dma-buf with each NIC.
    ///
    /// # Safety
    ///
    /// As [`register`](Self::register).
    unsafe fn register_dma_buf(&self, dma_buf: &DmaBuf<'_>) -> Result<Registered, DeviceError>;
}

struct NicsOf<D: Domain> {
    domains: Vec<D>,
    /// Shares registrations of the same memory, and deregisters unused memory at once.
    cache: RegistrationCache<D>,
}

/// Makes the interface to these domains.
pub(crate) fn nics<D>(domains: Vec<D>) -> Arc<dyn Nics>
where
    D: Domain,
    P2pEndpoint<D>: Send,
    RegistrationCache<D>: Send + Sync,
    CachedBuffer<D::Region>: Send,
    ForeignBuffer<D::Region>: Send,
{
    let limits = CacheLimits { max_registrations: 0, max_bytes: 0 };
    let cache = RegistrationCache::new(&domains.iter().collect::<Vec<_>>(), limits);
    Arc::new(NicsOf { domains, cache })
}

impl<D> Nics for NicsOf<D>
where
    D: Domain,
    P2pEndpoint<D>: Send,
    RegistrationCache<D>: Send + Sync,
    CachedBuffer<D::Region>: Send,
    ForeignBuffer<D::Region>: Send,
{
    fn count(&self) -> usize {
        self.domains.len()
    }

    fn has_device(&self, given: &str) -> bool {
        self.domains.iter().any(|domain| names_device(given, domain.device_name()))
    }

    fn wire(
        &self,
        builder: &P2pBuilder,
        rates: &[(String, u32)],
        peer: Option<&Reach>,
    ) -> Result<Box<dyn Wire>, NoWire> {
        let not_in_turn = |why: &PairingError| {
            log::info(&format!("rails use the NICs here in the order of their device: {why}"));
        };
        let positions = match peer {
            Some(peer) => positions_in_pairs_or_in_order(&self.domains, peer, not_in_turn)?,
            None => (0..self.domains.len()).collect(),
        };
        let domains: Vec<&D> = positions.into_iter().map(|at| &self.domains[at]).collect();
        Ok(Box::new(with_rates(*builder, rates, &domains).build(&domains)?))
    }

    unsafe fn register(
        &self,
        start: *mut u8,
        length: usize,
        is_gpu: bool,
    ) -> Result<Registered, DeviceError> {
        // SAFETY: guaranteed by the caller; the cache keeps no unused registrations.
        let buffer = unsafe { self.cache.get(start, length, ACCESS) }?;
        let keys = buffer.own_keys();
        Ok(Registered::new((buffer.addr(), buffer.len()), keys, is_gpu, Box::new(buffer)))
    }

    unsafe fn register_dma_buf(&self, dma_buf: &DmaBuf<'_>) -> Result<Registered, DeviceError> {
        let domains: Vec<&D> = self.domains.iter().collect();
        // SAFETY: guaranteed by the caller; requests with memory of a GPU are never inline.
        let buffer = unsafe { ForeignBuffer::of_dma_buf(dma_buf, ACCESS, &domains) }?;
        let keys = buffer.own_keys();
        Ok(Registered::new((buffer.addr(), buffer.len()), keys, true, Box::new(buffer)))
    }
}

/// Returns the builder with the rates of these devices, which replace their own.
fn with_rates<D: Domain>(
    mut builder: P2pBuilder,
    rates: &[(String, u32)],
    domains: &[&D],
) -> P2pBuilder {
    for domain in domains {
        let is_it = |(name, _): &&(String, u32)| names_device(name, domain.device_name());
        if let Some((_, mbps)) = rates.iter().find(is_it) {
            builder = builder.device_mbps(*domain, *mbps);
        }
    }
    builder
}

#[cfg(all(test, feature = "tcp"))]
mod rt_tests {
    use super::*;
    use crate::abi::Logger;
    use polyrail::p2p::SplitPolicy;
    use polyrail::tcp::{DeviceOptions, ProtectionDomain, open_devices};
    use std::ffi::{CStr, c_char, c_int, c_ulong};
    use std::sync::Mutex;

    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Keeps the lines about NICs that are not in pairs.
    extern "C" fn logger(
        _: c_int,
        _: c_ulong,
        _: *const c_char,
        _: c_int,
        _: *const c_char,
        text: *const c_char,
    ) {
        // SAFETY: this plugin passes one text, which ends with a zero byte.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        if text.starts_with("rails use the NICs") {
            LINES.lock().unwrap().push(text.into_owned());
        }
    }

    fn open(addresses: &[&str]) -> Vec<ProtectionDomain> {
        open_devices(addresses, &DeviceOptions::default()).unwrap()
    }

    #[test]
    fn rates_name_devices_over_tcp_with_or_without_their_prefix() {
        let devices = open(&["127.0.0.1", "127.0.0.2"]);
        let domains: Vec<_> = devices.iter().collect();
        let shares = |rates: &[(&str, u32)]| {
            let rates: Vec<_> = rates.iter().map(|(name, mbps)| ((*name).into(), *mbps)).collect();
            let builder = with_rates(P2pBuilder::new().rails(2), &rates, &domains);
            let end: P2pEndpoint<_> = builder.build(&domains).unwrap();
            match end.sender().unwrap().config().split {
                SplitPolicy::LeastFinishTime { bandwidth_mbps: [a, b, ..] } => Some((a, b)),
                _ => None,
            }
        };
        for names in [["127.0.0.1", "127.0.0.2"], ["tcp:127.0.0.1", "127.0.0.2"]] {
            let (fast, slow) = shares(&[(names[0], 300), (names[1], 100)]).unwrap();
            assert_eq!(fast, 3 * slow, "{names:?}");
        }
        assert_eq!(shares(&[("127.0.0.1", 7), ("tcp:127.0.0.2", 7)]), None);
        assert!(nics(devices).has_device("127.0.0.2"));
        assert!(!nics(open(&["127.0.0.1"])).has_device("tcp:127.0.0.2"));
    }

    #[test]
    fn nics_are_in_pairs_or_in_the_order_of_their_device_which_is_logged_once() {
        // SAFETY: the plugin calls NCCL's logger with the arguments that this one takes.
        let logger = unsafe { std::mem::transmute::<*const (), Logger>(logger as *const ()) };
        log::use_logger(Some(logger));
        let own = nics(open(&["::1", "127.0.0.1"]));
        let toward = |addresses: &[&str]| {
            let builder = P2pBuilder::new().rails(addresses.len());
            let peer: P2pEndpoint<_> = builder.build(&open(addresses)).unwrap();
            let wire = own.wire(&builder, &[], Some(&peer.address().into()));
            let address = wire.unwrap().address();
            let gids = address.sending.iter().map(|of| of.address.gid.to_string());
            (gids.collect::<Vec<_>>(), std::mem::take(&mut *LINES.lock().unwrap()))
        };
        let (v6, v4) = ("::1", "::ffff:127.0.0.1");
        assert_eq!(toward(&["127.0.0.2", "::1"]), (vec![v4.into(), v6.into()], vec![]));
        let (gids, lines) = toward(&["127.0.0.2", "127.0.0.3", "::1"]);
        assert_eq!(gids, [v6, v4, v6]);
        assert_eq!(
            lines,
            [
                "rails use the NICs here in the order of their device: rails use devices in turn, but \
              the devices here that reach the peer's are, in this order: tcp:127.0.0.1 at \
              ::ffff:127.0.0.1, tcp:127.0.0.1 at ::ffff:127.0.0.1, tcp:::1 at ::1"
            ]
        );
    }
}
