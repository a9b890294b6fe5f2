//! A socket that connects, which nobody waits for.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

/// A socket that connects.
#[derive(Debug)]
pub(super) struct Reaching(OwnedFd);

impl Reaching {
    pub(super) fn start(address: &SocketAddr) -> Result<Self, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Self(socket)),
            Err(error) => Err(error),
        }
    }

    /// What it has become, or itself if the network is not there yet.
    pub(super) fn step(self) -> Result<Result<TcpStream, Self>, Errno> {
        let mut fds = [PollFd::new(&self.0, PollFlags::OUT)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(Errno::INTR) => return Ok(Err(self)),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        socket_error(self.0.as_fd()).and_then(|state| state)?;
        Ok(Ok(TcpStream::from(self.0)))
    }
}
