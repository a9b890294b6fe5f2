//! The two sides of a meeting: who connects and who accepts, without waiting.

use crate::ending;
use crate::interface;
use crate::meeting::{
    CHALLENGE, Ended, HELLO, MAGIC, Meeting, Message, Nonce, PROOF, Parked, Session, Side, VERSION,
    WORDS, challenge, code, identity, nonce, number, say_goodbye, send,
};
use crate::shared::{DeviceShared, QpShared};
use crate::socket::{Buffers, Socket};
use crate::transmit;
use polyrail_nic_parts::address::RemoteQp;
use polyrail_nic_parts::error::vendor;
use polyrail_nic_parts::random::random;
use polyrail_nic_parts::state::QpState;
use polyrail_nic_parts::sync::lock;
use socket2::{Domain, Protocol, Type};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

/// Returns where the peer listens; `None` if its address has no port and key. A link-local address
/// is on the device's link.
fn listener_of(device: &DeviceShared, peer: &RemoteQp) -> Option<SocketAddr> {
    let port = peer.meeting?.port;
    let ip = Ipv6Addr::from(peer.gid.0).to_canonical();
    let mut address = SocketAddr::new(ip, port);
    if let (SocketAddr::V6(to), SocketAddr::V6(own)) = (&mut address, &device.address)
        && to.ip().is_unicast_link_local()
    {
        to.set_scope_id(match own.scope_id() {
            0 => interface::index(device),
            scope_id => scope_id,
        });
    }
    Some(address)
}

/// Whether this queue pair connects to its peer.
fn connects(qp: &QpShared, peer: &RemoteQp, listener: SocketAddr) -> bool {
    identity(qp.device.advertised, qp.number) < identity(listener, peer.qp_num)
}

/// What became of a side after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// It waits for the other side.
    Waits,
    /// It is over, successfully or not.
    Over,
}

/// A connection that was accepted and has not proved anything.
#[derive(Debug)]
pub(crate) struct Guest {
    stream: Option<socket2::Socket>,
    stage: GuestStage,
}

#[derive(Debug)]
enum GuestStage {
    Hello(Message<HELLO>),
    Proof { qp: Weak<QpShared>, session: Session, message: Message<PROOF> },
}

impl Guest {
    pub(crate) fn new(stream: socket2::Socket) -> Self {
        Self { stream: Some(stream), stage: GuestStage::Hello(Message::new()) }
    }

    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Whether its hello has come, and names a queue pair of the device.
    pub(crate) const fn has_greeted(&self) -> bool {
        matches!(self.stage, GuestStage::Proof { .. })
    }

    /// Goes on as far as it can without waiting.
    pub(crate) fn step(&mut self, device: &DeviceShared) -> Stepped {
        loop {
            match self.try_step(device) {
                Ok(false) => {}
                Err(Ended::Later) => return Stepped::Waits,
                Ok(true) | Err(Ended::Broken) => return Stepped::Over,
            }
        }
    }

    /// Returns whether the connection was given to its queue pair.
    fn try_step(&mut self, device: &DeviceShared) -> Result<bool, Ended> {
        let stream = self.stream.as_ref().ok_or(Ended::Broken)?;
        match &mut self.stage {
            GuestStage::Hello(message) => {
                // What has come is enough to see who does not speak this version, and need not be
                // as long as its hello.
                let is_whole = message.read(stream).map(|_| ());
                let refuse = |words: &[u8]| {
                    say_goodbye(stream, words);
                    Err(Ended::Broken)
                };
                let so_far = message.so_far();
                if !MAGIC.starts_with(&so_far[..so_far.len().min(MAGIC.len())]) {
                    return refuse(WORDS);
                }
                if so_far.get(8..10).is_some_and(|version| version != VERSION.to_le_bytes()) {
                    return refuse(&challenge(code::VERSION, &[0; 16]));
                }
                is_whole?;
                let hello = message.bytes;
                let (to, from) = (number(&hello[12..16]), number(&hello[16..20]));
                let found = lock(&device.qps).get(&to).and_then(Weak::upgrade);
                let Some(qp) = found.filter(|qp| qp.socket.get().is_none()) else {
                    return refuse(&challenge(code::NO_QUEUE_PAIR, &[0; 16]));
                };
                let own = random().map_err(|_| Ended::Broken)?;
                let session = Session { numbers: [from, to], nonces: [nonce(&hello[20..]), own] };
                send(stream, &challenge(code::WELCOME, &own))?;
                let qp = Arc::downgrade(&qp);
                self.stage = GuestStage::Proof { qp, session, message: Message::new() };
                Ok(false)
            }
            GuestStage::Proof { qp, session, message } => {
                let proof = message.read(stream)?;
                let qp = qp.upgrade().ok_or(Ended::Broken)?;
                if !session.is_proved(Side::Connects, &qp.key, proof) {
                    return Err(Ended::Broken);
                }
                let session = *session;
                let stream = self.stream.take().ok_or(Ended::Broken)?;
                // Only now: it looks at all interfaces of this host.
                let from = stream.peer_addr().ok().and_then(|address| address.as_socket());
                let from = from.ok_or(Ended::Broken)?.ip();
                bind_to_interface(&stream, device, from).map_err(|_| Ended::Broken)?;
                qp.park(Parked { stream, session });
                Ok(true)
            }
        }
    }
}

impl QpShared {
    /// Takes a proven connection: now if the peer is known, otherwise as soon as it is.
    fn park(&self, parked: Parked) {
        let mut meeting = lock(&self.meeting);
        meeting.parked = Some(parked);
        self.admit(&mut meeting);
    }

    /// Gives the parked connection to the queue pair, if its peer is known.
    fn admit(&self, meeting: &mut Meeting) {
        let Some(peer) = meeting.peer else { return };
        let Some(Parked { stream, session }) = meeting.parked.take() else { return };
        let Some(peer_meeting) = peer.meeting else { return };
        // The peer sends nothing before it has this side's proof, so data would be as wrong as an
        // end. It may begin again, so the connection that it has left is not taken.
        let next = stream.peek(&mut [MaybeUninit::uninit()]);
        if !next.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return;
        }
        if session.numbers[0] != peer.qp_num {
            return;
        }
        if send(&stream, &session.proof(Side::Accepts, &peer_meeting.key)).is_ok() {
            self.attach(stream);
        }
    }

    /// Begins to use a connection whose both sides have proved themselves.
    fn attach(&self, stream: socket2::Socket) {
        // A poster must not find the socket full before the queue that reports it as writable
        // watches it.
        let half = self.write.lock();
        if self.socket.set(Socket::new(stream)).is_err() {
            drop(half);
            // A thread that found the half taken has left its requests to this one.
            return transmit::run(self);
        }
        let registered = self.register();
        drop(half);
        if registered.is_err() {
            self.lose(vendor::NO_CONNECTION);
            ending::run(self);
            return;
        }
        // A queue pair that failed meanwhile has closed no connection.
        if self.state.get() == QpState::Err || lock(&self.queues).requester.is_lost() {
            self.close();
            return;
        }
        transmit::run(self);
        ending::run(self);
    }

    /// Learns the peer. The connection is made by this or the other side.
    pub(crate) fn meet(&self, peer: &RemoteQp) {
        let Some(listener) = listener_of(&self.device, peer) else { return };
        let mut meeting = lock(&self.meeting);
        meeting.peer = Some(*peer);
        if identity(self.device.advertised, self.number) == identity(listener, peer.qp_num) {
            drop(meeting);
            match connect_to_itself(self.device.address, self.device.buffers) {
                Ok(stream) => self.attach(stream),
                Err(_) => self.lose(vendor::NO_CONNECTION),
            }
        } else if connects(self, peer, listener) {
            drop(meeting);
            self.device.io.dial(self);
        } else {
            self.admit(&mut meeting);
        }
    }
}

/// Makes a connection whose two ends are one socket: connecting a socket to its own address opens
/// it from both sides at once (RFC 9293, section 3.5).
fn connect_to_itself(address: SocketAddr, buffers: Buffers) -> io::Result<socket2::Socket> {
    let stream =
        socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    buffers.set(&stream)?;
    stream.bind(&without_port(address).into())?;
    // Over the loopback interface, which takes no time.
    stream.connect(&stream.local_addr()?)?;
    stream.set_tcp_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Returns the address for a port that the system chooses.
fn without_port(mut address: SocketAddr) -> SocketAddr {
    address.set_port(0);
    address
}

/// An attempt to connect to the peer.
#[derive(Debug)]
pub(crate) struct Dial {
    stream: Option<socket2::Socket>,
    stage: DialStage,
    own: Nonce,
}

#[derive(Debug)]
enum DialStage {
    Connecting,
    Challenge(Message<CHALLENGE>),
    Proof { session: Session, message: Message<PROOF> },
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialError {
    /// Another attempt may succeed.
    Again,
    /// The peer speaks another version.
    Version,
}

impl From<Ended> for DialError {
    fn from(_: Ended) -> Self {
        Self::Again
    }
}

impl Dial {
    /// Begins an attempt.
    pub(crate) fn begin(qp: &QpShared) -> Result<Self, DialError> {
        let again = |_: io::Error| DialError::Again;
        let peer = lock(&qp.meeting).peer.ok_or(DialError::Again)?;
        let listener = listener_of(&qp.device, &peer).ok_or(DialError::Again)?;
        let own = random().map_err(|_| DialError::Again)?;
        let domain = Domain::for_address(listener);
        let stream = socket2::Socket::new(domain, Type::STREAM, Some(Protocol::TCP));
        let stream = stream.map_err(again)?;
        stream.bind(&without_port(qp.device.address).into()).map_err(again)?;
        prepare(&stream).map_err(again)?;
        qp.device.buffers.set(&stream).map_err(again)?;
        bind_to_interface(&stream, &qp.device, listener.ip()).map_err(again)?;
        match stream.connect(&listener.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(_) => return Err(DialError::Again),
        }
        Ok(Self { stream: Some(stream), stage: DialStage::Connecting, own })
    }

    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// Whether it waits for the acceptor's messages.
    pub(crate) fn is_connected(&self) -> bool {
        !matches!(self.stage, DialStage::Connecting)
    }

    /// Whether it waits until the acceptor knows its peer, which has no limit.
    pub(crate) fn has_proved(&self) -> bool {
        matches!(self.stage, DialStage::Proof { .. })
    }

    /// Goes on as far as it can without waiting.
    ///
    /// # Errors
    ///
    /// The attempt has failed.
    pub(crate) fn step(&mut self, qp: &QpShared) -> Result<Stepped, DialError> {
        loop {
            match self.try_step(qp) {
                Ok(true) => return Ok(Stepped::Over),
                Ok(false) => {}
                Err(StepError::Later) => return Ok(Stepped::Waits),
                Err(StepError::Failed(error)) => return Err(error),
            }
        }
    }

    fn try_step(&mut self, qp: &QpShared) -> Result<bool, StepError> {
        let stream = self.stream.as_ref().ok_or(Ended::Broken)?;
        let peer = lock(&qp.meeting).peer.ok_or(Ended::Broken)?;
        let peer_meeting = peer.meeting.ok_or(Ended::Broken)?;
        match &mut self.stage {
            DialStage::Connecting => {
                if stream.take_error().ok().flatten().is_some() {
                    return Err(Ended::Broken.into());
                }
                if stream.peer_addr().is_err() {
                    return Err(StepError::Later);
                }
                let mut hello = [0; HELLO];
                hello[..8].copy_from_slice(&MAGIC);
                hello[8..10].copy_from_slice(&VERSION.to_le_bytes());
                hello[12..16].copy_from_slice(&peer.qp_num.to_le_bytes());
                hello[16..20].copy_from_slice(&qp.number.to_le_bytes());
                hello[20..].copy_from_slice(&self.own);
                send(stream, &hello)?;
                self.stage = DialStage::Challenge(Message::new());
            }
            DialStage::Challenge(message) => {
                let challenge = message.read(stream)?;
                if challenge[..8] != MAGIC {
                    return Err(Ended::Broken.into());
                }
                match challenge[10] {
                    code::WELCOME => {}
                    code::VERSION => return Err(StepError::Failed(DialError::Version)),
                    _ => return Err(Ended::Broken.into()),
                }
                let nonces = [self.own, nonce(&challenge[12..])];
                let session = Session { numbers: [qp.number, peer.qp_num], nonces };
                send(stream, &session.proof(Side::Connects, &peer_meeting.key))?;
                self.stage = DialStage::Proof { session, message: Message::new() };
            }
            DialStage::Proof { session, message } => {
                let proof = message.read(stream)?;
                if !session.is_proved(Side::Accepts, &qp.key, proof) {
                    return Err(Ended::Broken.into());
                }
                if let Some(stream) = self.stream.take() {
                    qp.attach(stream);
                }
                return Ok(true);
            }
        }
        Ok(false)
    }
}

enum StepError {
    Later,
    Failed(DialError),
}

impl From<Ended> for StepError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Later => Self::Later,
            Ended::Broken => Self::Failed(DialError::Again),
        }
    }
}

/// Sets the options of a connection.
pub(crate) fn prepare(stream: &socket2::Socket) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_tcp_nodelay(true)
}

/// Binds a connection to the interface of its device. Otherwise the system sends by the route to
/// the peer's address, which may lead over another interface. Between addresses of one host,
/// packets go over the loopback interface; from an address on a loopback or dummy interface, the
/// route leads to other hosts.
fn bind_to_interface(
    stream: &socket2::Socket,
    device: &DeviceShared,
    peer: IpAddr,
) -> io::Result<()> {
    if !interface::is_of_this_host(peer)? {
        let places = interface::places(device)?;
        let own = places.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        if !interface::leads_to_others(own)? {
            return Ok(());
        }
        match stream.bind_device(Some(own.interface.as_bytes())) {
            Ok(()) => {}
            // Linux before 5.7 permits it to root only.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
