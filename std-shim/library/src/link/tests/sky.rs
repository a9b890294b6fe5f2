//! A network in memory: the streams of two ends, and attempts to connect that fail as the weather
//! at an address has it.

use crate::link::stream::{Network, Stream};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A stream, seen from outside. End 0 connected, end 1 was accepted.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Bytes on their way to each end.
    pub(super) bytes: [VecDeque<u8>; 2],
    /// All bytes that end 0 has sent.
    pub(super) seen: Vec<u8>,
    /// The ends that are closed.
    closed: [bool; 2],
    /// What each end finds when it reads or writes.
    pub(super) broken: [Option<ErrorKind>; 2],
    /// Since when nothing arrives.
    pub(super) silent: Option<Instant>,
    is_pending: bool,
    /// The attempt to connect ends with this.
    refusal: Option<ErrorKind>,
    /// Bytes that fit into each direction.
    room: usize,
}

#[derive(Debug)]
pub(super) struct End {
    wire: Arc<Mutex<Wire>>,
    end: usize,
    fd: Arc<UnixStream>,
}

impl Stream for End {
    fn is_connected(&self) -> io::Result<bool> {
        let wire = self.wire.lock().unwrap();
        wire.refusal.map_or(Ok(!wire.is_pending), |kind| Err(kind.into()))
    }

    fn watch(&self, _: Duration) {
        assert!(!self.wire.lock().unwrap().is_pending, "silence would limit the connect");
    }

    fn reset(&self) {
        let mut wire = self.wire.lock().unwrap();
        wire.bytes = Default::default();
        if wire.silent.is_none() {
            wire.broken = [Some(ErrorKind::ConnectionReset); 2];
        }
        wire.closed[self.end] = true;
    }
}

impl Read for End {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.wire.lock().unwrap();
        if let Some(kind) = wire.broken[self.end] {
            return Err(kind.into());
        }
        match wire.bytes[self.end].read(bytes) {
            Ok(0) if wire.closed[1 - self.end] && wire.silent.is_none() => Ok(0),
            Ok(0) => Err(ErrorKind::WouldBlock.into()),
            read => read,
        }
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.wire.lock().unwrap();
        if let Some(kind) = wire.broken[self.end] {
            return Err(kind.into());
        }
        if wire.silent.is_some() {
            return Ok(bytes.len());
        }
        if wire.closed[1 - self.end] {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = wire.room.saturating_sub(wire.bytes[1 - self.end].len());
        let written = &bytes[..bytes.len().min(room)];
        if written.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        wire.bytes[1 - self.end].extend(written);
        if self.end == 0 {
            wire.seen.extend(written);
        }
        Ok(written.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.wire.lock().unwrap().closed[self.end] = true;
    }
}

/// What becomes of an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    Fair,
    /// Packets vanish.
    Swallows,
    /// A firewall answers.
    Unreachable,
    /// A process that reads nothing has the address now.
    Taken,
    /// No process listens there, which shows only later.
    Refuses,
    /// This side's system has no file descriptor.
    Lacks,
}

/// The addresses of the host that listens, and of a stranger that does.
pub(super) const HOST: [&str; 2] = ["10.0.0.1:1", "10.0.1.1:1"];
pub(super) const OTHER: &str = "10.0.2.1:1";

#[derive(Debug)]
pub(super) struct Air {
    /// At each address of the host, and at the stranger's.
    pub(super) weather: [Weather; 3],
    pub(super) room: usize,
    pub(super) wires: Vec<Arc<Mutex<Wire>>>,
    /// Ends that were not accepted yet.
    pub(super) accepted: VecDeque<End>,
    /// Ends that the stranger has accepted.
    pub(super) strange: Vec<End>,
    /// Ends that nothing comes from.
    mute: Vec<End>,
    fd: Arc<UnixStream>,
}

#[derive(Clone, Debug)]
pub(super) struct Sky(pub(super) Arc<Mutex<Air>>);

impl Sky {
    /// Fair weather. Each direction of a stream has room for this number of bytes.
    pub(super) fn new(room: usize) -> Self {
        let air = Air {
            weather: [Weather::Fair; 3],
            room,
            wires: Vec::new(),
            accepted: VecDeque::new(),
            strange: Vec::new(),
            mute: Vec::new(),
            fd: Arc::new(UnixStream::pair().unwrap().0),
        };
        Self(Arc::new(Mutex::new(air)))
    }

    pub(super) fn connect(&self, address: &str) -> io::Result<End> {
        let mut air = self.0.lock().unwrap();
        let place = [HOST[0], HOST[1], OTHER].iter().position(|at| *at == address);
        // The hello names many.
        let place = place.ok_or(ErrorKind::ConnectionRefused)?;
        let weather = air.weather[place];
        let (is_pending, refusal) = match weather {
            Weather::Fair | Weather::Taken => (false, None),
            Weather::Swallows => (true, None),
            Weather::Refuses => (true, Some(ErrorKind::ConnectionRefused)),
            Weather::Unreachable => return Err(ErrorKind::HostUnreachable.into()),
            Weather::Lacks => return Err(Errno::MFILE.into()),
        };
        let wire = Wire { is_pending, refusal, room: air.room, ..Wire::default() };
        let wire = Arc::new(Mutex::new(wire));
        air.wires.push(Arc::clone(&wire));
        let [near, far] =
            [0, 1].map(|end| End { wire: Arc::clone(&wire), end, fd: Arc::clone(&air.fd) });
        match (weather, place) {
            (Weather::Fair, 0 | 1) => air.accepted.push_back(far),
            (Weather::Fair, _) => air.strange.push(far),
            _ => air.mute.push(far),
        }
        Ok(near)
    }

    pub(super) fn set(&self, weather: [Weather; 3]) {
        self.0.lock().unwrap().weather = weather;
    }

    /// The host accepts the attempt that began last, which was swallowed.
    pub(super) fn connect_late(&self) {
        let mut air = self.0.lock().unwrap();
        let late = air.mute.pop().unwrap();
        let mut wire = late.wire.lock().unwrap();
        assert!(wire.is_pending && wire.refusal.is_none() && !wire.closed[0]);
        wire.is_pending = false;
        drop(wire);
        air.accepted.push_back(late);
    }

    pub(super) fn break_streams(&self, kind: ErrorKind) {
        for wire in self.wires() {
            wire.lock().unwrap().broken = [Some(kind); 2];
        }
    }

    /// The streams that carry bytes.
    pub(super) fn wires(&self) -> Vec<Arc<Mutex<Wire>>> {
        let wires = &self.0.lock().unwrap().wires;
        let is_whole = |wire: &&Arc<Mutex<Wire>>| {
            let wire = wire.lock().unwrap();
            wire.closed == [false; 2] && wire.broken == [None; 2]
        };
        wires.iter().filter(is_whole).cloned().collect()
    }
}

impl Network for Sky {
    fn connect(&self, address: &SocketAddr) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(Self::connect(self, &address.to_string())?))
    }
}
