//! Streams over TCP.

use super::stream::{Network, Stream};
use polyrail_process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, socket_error};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, connect_unspec, socket_with};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Keepalive probes without an answer that end a silent stream, where the system has no limit in
/// milliseconds. With the idle time and the interval of a third each, they fill the limit.
const PROBES: u32 = 2;

/// A stream over TCP.
#[derive(Debug)]
pub(super) struct Tcp {
    socket: TcpStream,
    /// The process that made the stream.
    process: Process,
}

impl Tcp {
    /// Takes a socket that was accepted.
    pub(super) fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        // Messages are short, and each is waited for.
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        Ok(Self { socket, process: Process::current() })
    }
}

/// The network of this host.
#[derive(Debug)]
pub(super) struct TcpNetwork;

impl Network for TcpNetwork {
    fn connect(&self, address: &SocketAddr) -> io::Result<Box<dyn Stream>> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Box::new(Tcp::new(socket.into())?))
    }
}

impl Stream for Tcp {
    fn is_connected(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) | Err(Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        socket_error(&self.socket)??;
        Ok(true)
    }

    fn watch(&self, silence: Duration) {
        // The system takes whole seconds, and at most this many.
        let third = Duration::from_secs((silence / 3).as_secs().clamp(1, 0x7fff));
        // If the system refuses, silence is noticed later.
        _ = sockopt::set_tcp_keepidle(&self.socket, third);
        _ = sockopt::set_tcp_keepintvl(&self.socket, third);
        _ = sockopt::set_tcp_keepcnt(&self.socket, PROBES);
        // Without this limit, data without an answer is sent again for a quarter of an hour.
        #[cfg(target_os = "linux")]
        {
            let silence = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
            // 0 is the system's default.
            _ = sockopt::set_tcp_user_timeout(&self.socket, silence.clamp(1, i32::MAX as u32));
        }
    }

    fn reset(&self) {
        // A socket that is not connected has nothing to break.
        _ = connect_unspec(&self.socket);
    }
}

impl Read for Tcp {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.read(bytes)
    }
}

impl Write for Tcp {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Tcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Ends the stream for the peer even if a forked process has the socket, too. That process does not
/// end it.
impl Drop for Tcp {
    fn drop(&mut self) {
        if self.process.is_current() {
            // A socket that is not connected has no end to send.
            _ = self.socket.shutdown(Shutdown::Both);
        }
    }
}
