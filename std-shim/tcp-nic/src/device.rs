//! Devices: a network interface with an address.

use crate::commands::token;
use crate::ending;
use crate::interface;
use crate::outgoing::MOST_BUFFERS;
use crate::place::ThreadPlace;
use crate::shared::{Command, DeviceShared, IoThread};
use crate::socket::Buffers;
use polyrail_core::hardware::{CommitError, Refusal};
use polyrail_core::verbs::DeviceId;
use polyrail_nic_parts::address::{Gid, Mtu};
use polyrail_nic_parts::error::{errno, vendor};
use polyrail_nic_parts::event::AsyncEvent;
use polyrail_nic_parts::event_log::{EventCursor, EventLog};
use polyrail_nic_parts::interface::{addresses, exists, index_of};
use polyrail_nic_parts::memory::{MemoryTable, RegionCount};
use polyrail_nic_parts::options::DeviceLimits;
use polyrail_nic_parts::random::random;
use polyrail_nic_parts::sync::{Apart, lock, nanos};
use polyrail_process::{Forked, Process};
use socket2::SockRef;
use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

/// Device numbers are unique in a process: the software NIC counts from 0, and real verbs from
/// 2^31.
const FIRST_DEVICE: u32 = 1 << 30;

static NEXT_DEVICE: AtomicU32 = AtomicU32::new(FIRST_DEVICE);

/// Whether the number is that of a device of this NIC. Then [`vendor`](crate::vendor) explains the
/// vendor codes of its completions.
pub fn is_device(id: DeviceId) -> bool {
    (FIRST_DEVICE..NEXT_DEVICE.load(Ordering::Relaxed)).contains(&id.0)
}

/// Number of events that a device keeps for its readers.
const EVENTS: usize = 256;

/// Queue pair numbers have 24 bits.
const MAX_QP_NUM: u32 = (1 << 24) - 1;

/// Connections that wait to be accepted, in the kernel.
const BACKLOG: i32 = 128;

/// The only port of a device.
pub const PORT: u8 = 1;

/// The options of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// TCP port of its listener; 0, the default: the system chooses one. Firewalls must permit
    /// connections to it.
    pub port: u16,
    /// Address and port at which peers connect to the listener, if they differ from its own because
    /// a router or a host translates them (NAT); port 0: that of the listener. `None`, the default:
    /// its own.
    pub advertised: Option<SocketAddr>,
    /// Its limits; by default those of [`DeviceLimits`], with on-demand paging. `max_sge` is at
    /// most 255, so that one system call takes a request with its header.
    pub limits: DeviceLimits,
    /// Where its I/O thread runs; anywhere by default.
    pub thread_place: ThreadPlace,
    /// How long its I/O thread looks for more before it sleeps, after it has had something to do;
    /// 0, the default: it sleeps at once. Data that comes meanwhile is placed without the time that
    /// it takes to wake a thread, and the thread uses a processor all that time. Devices that share
    /// a thread share the longest time. While a program polls, the thread has nothing to do.
    pub spin: Duration,
    /// Bytes of the buffer in which each connection keeps what is sent and not acknowledged
    /// (SO_SNDBUF); 0, the default: the system chooses, and increases it as needed
    /// (`net.ipv4.tcp_wmem`). Limited by `net.core.wmem_max`; the system doubles it for its own
    /// data.
    pub send_buffer: u32,
    /// Bytes of the buffer for what is received and not read, of each connection (SO_RCVBUF); 0,
    /// the default: the system chooses, and increases it as needed (`net.ipv4.tcp_rmem`). Limited
    /// by `net.core.rmem_max`; the system doubles it for its own data.
    pub recv_buffer: u32,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        let limits = DeviceLimits { on_demand_paging: true, ..DeviceLimits::default() };
        Self {
            port: 0,
            advertised: None,
            limits,
            thread_place: ThreadPlace::Anywhere,
            spin: Duration::ZERO,
            send_buffer: 0,
            recv_buffer: 0,
        }
    }
}

/// Why a device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refuses to list its addresses and their interfaces.
    #[error("cannot list the addresses of this host")]
    List(#[source] io::Error),
    /// No interface has the name, or it has no address.
    #[error(
        "{} is not a network interface with an address, nor an address of this host; there are {}",
        if name.is_empty() { "\"\"" } else { name },
        known.join(", ")
    )]
    NotFound {
        /// The name.
        name: String,
        /// The interfaces that have an address.
        known: Vec<String>,
    },
    /// Several interfaces have the address.
    #[error("{address} is an address of {}: add the interface, such as {address}%{}", interfaces.join(", "), interfaces[0])]
    Ambiguous {
        /// The address.
        address: String,
        /// The interfaces.
        interfaces: Vec<String>,
    },
    /// The interface has no address.
    #[error("network interface {interface} has no address: assign one (ip addr add)")]
    NoAddress {
        /// Its name.
        interface: String,
    },
    /// No peer of the device can connect to the address that is to be advertised.
    #[error(
        "{advertised} cannot be advertised for a device at {address}: an address of one host is needed, of the same version of IP"
    )]
    Advertised {
        /// What was to be advertised.
        advertised: SocketAddr,
        /// Address of the device.
        address: IpAddr,
    },
    /// The listener cannot be made.
    #[error("cannot listen on {address}")]
    Listen {
        /// Its address.
        address: SocketAddr,
        /// The system's error: EADDRINUSE for a port that is taken, EMFILE without descriptors.
        source: io::Error,
    },
    /// The thread that moves data cannot be started, or cannot serve another listener.
    #[error("cannot serve the device by an I/O thread")]
    Thread(#[source] io::Error),
    /// The thread that moves data cannot be started, or cannot run on the processor.
    #[error("cannot serve the device by an I/O thread on processor {processor}")]
    Processor {
        /// Its number.
        processor: u32,
        /// The system's error: EINVAL if this process may not use the processor.
        source: io::Error,
    },
    /// The system has no random bytes.
    #[error("cannot draw random bytes")]
    Random(#[source] io::Error),
}

impl DeviceShared {
    /// Whether the owner lets packets pass: see [`Device::set_link`].
    pub(crate) fn carries(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.carries() && self.has_carrier.load(Ordering::Acquire)
    }

    /// Whether the device belongs to the process that this one is a fork of.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_current()
    }

    /// Refuses a fork of the process that opened the device.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Refusal> {
        if self.is_forked() { Err(Refusal::Driver(errno::EPERM)) } else { Ok(()) }
    }

    /// [`check_process`](Self::check_process) for a whole batch.
    #[inline]
    pub(crate) fn check_batch(&self) -> Result<(), CommitError> {
        self.check_process().map_err(|refusal| CommitError { accepted: 0, refusal })
    }

    /// Returns a number that no queue pair of the device has.
    pub(crate) fn next_number(&self) -> u32 {
        let qps = lock(&self.qps);
        loop {
            let number = self.next_qp_num.fetch_add(1, Ordering::Relaxed) & MAX_QP_NUM;
            // 0 and 1 are the queue pairs of subnet management on InfiniBand.
            if number > 1 && !qps.contains_key(&number) {
                return number;
            }
        }
    }

    /// Looks whether an interface still has the address, and carrier, and reports a change. The
    /// name of the interface may change. If one of several has lost them, the port stays up, and
    /// the connections over that one are lost.
    ///
    /// # Errors
    ///
    /// The system refuses to list interfaces, or has no descriptor left to ask for their kind.
    pub(crate) fn look_at_interface(&self) -> io::Result<()> {
        // Held from the list to its effect: of two threads that look, the one with the newer list
        // is last.
        let mut known = lock(&self.places);
        let places = interface::places(self)?;
        let names: Vec<_> =
            places.into_iter().filter(interface::has_carrier).map(|own| own.interface).collect();
        let was_up = self.is_up();
        self.has_carrier.store(!names.is_empty(), Ordering::Release);
        self.report_change(was_up);
        if names.is_empty() {
            // Which connections are lost is known when an interface has the address again.
            return Ok(());
        }
        let before = mem::replace(&mut *known, names.clone());
        drop(known);
        if before.iter().any(|name| !names.contains(name)) {
            self.lose_connections_except(&names);
        }
        Ok(())
    }

    /// Ends the connections that are bound to other interfaces than these.
    fn lose_connections_except(&self, interfaces: &[String]) {
        let qps: Vec<_> = lock(&self.qps).values().filter_map(Weak::upgrade).collect();
        for qp in qps {
            if qp.socket.get().is_some_and(|socket| socket.is_bound_to_none_of(interfaces)) {
                qp.lose(vendor::LINK_DOWN);
                ending::run(&qp);
            }
        }
    }

    fn report_change(&self, was_up: bool) {
        let up = self.is_up();
        if up != was_up {
            let down = AsyncEvent::PortError { port: PORT };
            self.events.push(if up { AsyncEvent::PortActive { port: PORT } } else { down });
        }
    }
}

/// Peers are refused at once, and the port is free, even if a forked process has the socket, too.
/// That process does not end it.
impl Drop for DeviceShared {
    fn drop(&mut self) {
        if !self.is_forked() {
            self.io.remove(&self.listener);
            // A socket that does not listen any more has nothing to end.
            _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
            self.io.inbox.send(Command::Closed);
        }
    }
}

/// A device. A cheap handle: clones refer to the same device. A fork of the process that opened it
/// cannot use it: calls return [`NicError::Forked`](polyrail_nic_parts::error::NicError::Forked),
/// or do nothing.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<DeviceShared>);

impl Device {
    /// Opens the device of a network interface (`eth0`), or of one of its addresses (`10.0.0.1`,
    /// `fe80::1%eth0`). A link-local address needs its interface behind `%` only if several have
    /// it. Peers' link-local addresses are taken to be on the link of the device's interface. Of an
    /// interface, the first IPv4 address is used, or else the first IPv6 address; link-local
    /// addresses come last. Permanent IPv6 addresses come before those that expire unless they are
    /// renewed, then come temporary (RFC 8981), then deprecated ones.
    ///
    /// Connections to other hosts are bound to the interface, so that they use it even if a route
    /// prefers another one. From an address on a loopback or dummy interface, which lead nowhere,
    /// the routes decide.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(name: &str, options: &DeviceOptions) -> Result<Self, OpenError> {
        let mut all = interface::find(name).map_err(OpenError::List)?;
        if all.len() > 1 {
            let interfaces = all.into_iter().map(|own| own.interface).collect();
            return Err(OpenError::Ambiguous { address: name.into(), interfaces });
        }
        let Some(found) = all.pop() else {
            if exists(name).map_err(OpenError::List)? {
                return Err(OpenError::NoAddress { interface: name.into() });
            }
            let all = addresses().map_err(OpenError::List)?;
            let mut known: Vec<_> = all.into_iter().map(|own| own.interface).collect();
            known.sort();
            known.dedup();
            return Err(OpenError::NotFound { name: name.into(), known });
        };
        let leads_to_others = interface::leads_to_others(&found).map_err(OpenError::List)?;
        let has_carrier = interface::has_carrier(&found);
        let places = has_carrier.then(|| found.interface.clone()).into_iter().collect();
        check_advertised(options.advertised, found.ip)?;
        let address = found.at(options.port);
        let buffers = Buffers { send: options.send_buffer, recv: options.recv_buffer };
        let listener =
            listen(address, buffers).map_err(|source| OpenError::Listen { address, source })?;
        let address =
            listener.local_addr().map_err(|source| OpenError::Listen { address, source })?;
        let mut advertised = options.advertised.unwrap_or(address);
        if advertised.port() == 0 {
            advertised.set_port(address.port());
        }
        let no_random = |errno: rustix::io::Errno| OpenError::Random(errno.into());
        let seed = u64::from_ne_bytes(random().map_err(no_random)?);
        let first_number = u32::from_ne_bytes(random().map_err(no_random)?) & MAX_QP_NUM;
        let processors = options.thread_place.processors(&found.interface);
        let io = IoThread::for_device(processors).map_err(|source| match options.thread_place {
            ThreadPlace::Processor(processor) => OpenError::Processor { processor, source },
            ThreadPlace::Anywhere | ThreadPlace::BesideNic => OpenError::Thread(source),
        })?;
        let max_sge = options.limits.max_sge.min(MOST_BUFFERS as u32 - 1);
        let token = token();
        let device = Arc::new(DeviceShared {
            id: DeviceId(NEXT_DEVICE.fetch_add(1, Ordering::Relaxed)),
            name: format!("tcp:{name}"),
            index: index_of(&found.interface),
            interface: found.interface,
            leads_to_others,
            places: Mutex::new(places),
            process: Process::current(),
            address,
            advertised,
            listener,
            limits: DeviceLimits { max_sge, ..options.limits },
            memory: Apart::new(RwLock::new(MemoryTable::new(seed))),
            regions: RegionCount::default(),
            next_domain: AtomicU32::new(0),
            next_qp_num: AtomicU32::new(first_number),
            qps: Mutex::new(BTreeMap::new()),
            events: EventLog::new(EVENTS),
            events_read: Mutex::default(),
            has_carrier: AtomicBool::new(has_carrier),
            is_open: AtomicBool::new(true),
            io,
            spin: nanos(options.spin),
            buffers,
        });
        device.io.add_device(&device, token).map_err(|errno| OpenError::Thread(errno.into()))?;
        // Its interface may have changed since it was found, and another one may have the address.
        if device.look_at_interface().is_err() {
            device.io.look_at_interfaces();
        }
        Ok(Self(device))
    }

    /// Returns its number, unique in this process.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// Returns its name: `tcp:` and the name with which it was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the name of its network interface, when it was opened.
    pub fn interface(&self) -> &str {
        &self.0.interface
    }

    /// Returns the address and the port of its listener.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Returns the address and the port at which peers connect:
    /// [`DeviceOptions::advertised`], or else its [`address`](Self::address).
    pub fn advertised(&self) -> SocketAddr {
        self.0.advertised
    }

    /// Returns its advertised address as a GID: IPv4 addresses are mapped (`::ffff:10.0.0.1`).
    pub fn gid(&self) -> Gid {
        gid(self.0.advertised.ip())
    }

    /// Returns the largest MTU: it has no meaning over TCP.
    pub fn mtu(&self) -> Mtu {
        Mtu::default()
    }

    /// Returns its limits.
    pub fn limits(&self) -> &DeviceLimits {
        &self.0.limits
    }

    /// Returns the number of its memory regions.
    pub fn memory_regions(&self) -> u32 {
        self.0.regions.get()
    }

    /// Returns whether its interface is up and has carrier and its address.
    pub fn is_up(&self) -> bool {
        self.0.is_up()
    }

    /// Closes or opens its link: while it is closed, nothing is sent or received, as with a cable
    /// that is unplugged. For tests, which cannot change interfaces.
    pub fn set_link(&self, up: bool) {
        let device = &self.0;
        if device.is_forked() {
            return;
        }
        let was_up = device.is_up();
        device.is_open.store(up, Ordering::Release);
        device.report_change(was_up);
        if up {
            device.io.resume();
        }
    }

    /// Returns the oldest event that this method has not returned yet. The newest 256 events are
    /// kept.
    pub fn next_event(&self) -> Option<AsyncEvent> {
        if self.0.is_forked() {
            return None;
        }
        self.next_event_of(&mut lock(&self.0.events_read))
    }

    /// Returns a cursor for a new reader, which sees events from now on. Readers with cursors do
    /// not take events from each other, nor from [`next_event`](Self::next_event).
    pub fn event_cursor(&self) -> EventCursor {
        self.0.events.cursor()
    }

    /// Returns the oldest event that this reader has not seen. The newest 256 events are kept.
    pub fn next_event_of(&self, reader: &mut EventCursor) -> Option<AsyncEvent> {
        if self.0.is_forked() { None } else { self.0.events.next(reader) }
    }

    /// Refuses any process but the one that opened the device.
    ///
    /// # Errors
    ///
    /// This process is a fork of that one.
    pub fn check_process(&self) -> Result<(), Forked> {
        self.0.process.check()
    }
}

/// Refuses an address at which peers cannot connect to a device.
fn check_advertised(advertised: Option<SocketAddr>, address: IpAddr) -> Result<(), OpenError> {
    let Some(advertised) = advertised else { return Ok(()) };
    let ip = advertised.ip();
    let is_of_one_host = !ip.is_unspecified() && !ip.is_multicast() && ip != Ipv4Addr::BROADCAST;
    // Peers find the version by the address, and connect with their own.
    if is_of_one_host && ip.to_canonical().is_ipv4() == address.is_ipv4() {
        Ok(())
    } else {
        Err(OpenError::Advertised { advertised, address })
    }
}

/// Returns an address as a GID.
pub(crate) fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(ip) => Gid(ip.to_ipv6_mapped().octets()),
        IpAddr::V6(ip) => Gid(ip.octets()),
    }
}

fn listen(address: SocketAddr, buffers: Buffers) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A port that was chosen can be used again while connections of an earlier process linger.
    socket.set_reuse_address(true)?;
    // Connections that are accepted inherit them.
    buffers.set(&socket)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
