//! The socket of a connection: reading and writing without waiting.

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr};
use socket2::TcpKeepalive;
use std::io;
use std::mem;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub(crate) struct Socket(socket2::Socket);

/// Bytes of the buffers of a connection; 0: the system chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffers {
    pub(crate) send: u32,
    pub(crate) recv: u32,
}

impl Buffers {
    /// Sets them, before the socket is connected or listens: the size for receiving decides how
    /// large a window the connection can have (`tcp(7)`).
    pub(crate) fn set(self, socket: &socket2::Socket) -> io::Result<()> {
        if self.send > 0 {
            socket.set_send_buffer_size(self.send as usize)?;
        }
        if self.recv > 0 {
            socket.set_recv_buffer_size(self.recv as usize)?;
        }
        Ok(())
    }
}

/// What a system call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// This many bytes, at least one.
    Bytes(usize),
    /// It would have to wait.
    Nothing,
    /// The connection has ended.
    Ended,
    /// The system cannot access a buffer.
    Fault,
}

impl Socket {
    pub(crate) fn new(socket: socket2::Socket) -> Self {
        Self(socket)
    }

    /// Sends from several buffers.
    ///
    /// # Safety
    ///
    /// The buffers are readable.
    pub(crate) unsafe fn send(&self, buffers: &[iovec]) -> Moved {
        let message = message(buffers);
        let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        // SAFETY: the caller guarantees the buffers; the system only reads the list of them.
        moved(|| unsafe { libc::sendmsg(self.0.as_raw_fd(), &message, flags) })
    }

    /// Receives into several buffers.
    ///
    /// # Safety
    ///
    /// The buffers are writable, and nothing refers to their bytes.
    pub(crate) unsafe fn receive(&self, buffers: &[iovec]) -> Moved {
        if let [iovec { iov_base, iov_len }] = *buffers {
            // A tenth of a microsecond less than with a list of one.
            // SAFETY: the caller guarantees the buffer.
            return moved(|| unsafe {
                libc::recv(self.0.as_raw_fd(), iov_base, iov_len, MSG_DONTWAIT)
            });
        }
        let mut message = message(buffers);
        // SAFETY: the caller guarantees the buffers; the system only reads the list of them.
        moved(|| unsafe { libc::recvmsg(self.0.as_raw_fd(), &mut message, MSG_DONTWAIT) })
    }

    /// Ends both directions: no more bytes are received.
    pub(crate) fn shut_down(&self) {
        // It fails if the connection has ended.
        _ = self.0.shutdown(Shutdown::Both);
    }

    /// Resets the connection, and frees what it has in its buffers. A socket that is shut down with
    /// a full receive buffer keeps it, and the peer, which finds no room, waits.
    pub(crate) fn reset(&self) {
        // SAFETY: zeros are an address of no family, which is that of AF_UNSPEC.
        let none: libc::sockaddr = unsafe { mem::zeroed() };
        let length = size_of_val(&none) as libc::socklen_t;
        // It dissolves the connection (connect(2)). It fails if there is none.
        // SAFETY: the system only reads the address.
        _ = unsafe { libc::connect(self.0.as_raw_fd(), &raw const none, length) };
    }

    /// Returns whether the connection is bound to an interface, and that is none of these.
    pub(crate) fn is_bound_to_none_of(&self, interfaces: &[String]) -> bool {
        match self.0.device() {
            Ok(Some(name)) => interfaces.iter().all(|other| other.as_bytes() != name),
            Ok(None) => false,
            // The interface is gone (netdevice(7), socket(7)).
            Err(error) => error.raw_os_error() == Some(libc::ENODEV),
        }
    }

    /// Lets the system ask the peer's system, while nothing is sent, whether the connection is
    /// still there: twice in about this many nanoseconds, at least a second apart. A connection
    /// without an answer ends, and so does one whose data is not acknowledged for as long: the
    /// system asks nothing while it waits for that, and sends the data again for a quarter of an
    /// hour (`tcp(7)`, tcp_retries2). `None`: it asks no more.
    pub(crate) fn set_probes(&self, limit: Option<u64>) {
        if let Some(limit) = limit {
            let third = Duration::from_secs(limit.div_ceil(3 * 1_000_000_000).max(1));
            // They fail if the connection has ended.
            _ = self.0.set_tcp_user_timeout(Some(3 * third));
            let times = TcpKeepalive::new().with_time(third).with_interval(third).with_retries(2);
            // It sets SO_KEEPALIVE, too.
            _ = self.0.set_tcp_keepalive(&times);
        } else {
            _ = self.0.set_tcp_user_timeout(None);
            _ = self.0.set_keepalive(false);
        }
    }

    /// Ends sending, after what was sent before.
    pub(crate) fn end_sending(&self) {
        _ = self.0.shutdown(Shutdown::Write);
    }

    /// Returns the number of bytes that the peer's system has acknowledged; 0 if the system does
    /// not report it (Linux before 4.1).
    pub(crate) fn acknowledged(&self) -> u64 {
        /// Place of `tcpi_bytes_acked` in `struct tcp_info` of `linux/tcp.h`.
        const BYTES_ACKED: usize = 120;
        let mut info = [0_u8; BYTES_ACKED + 8];
        let mut length = info.len() as libc::socklen_t;
        let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let place = info.as_mut_ptr().cast();
        // SAFETY: the system writes at most `length` bytes.
        unsafe { libc::getsockopt(self.0.as_raw_fd(), level, option, place, &mut length) };
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&info[BYTES_ACKED..]);
        u64::from_ne_bytes(bytes)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn message(buffers: &[iovec]) -> msghdr {
    // SAFETY: zeros are no address, no control data and no flags.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_iov = buffers.as_ptr().cast_mut();
    message.msg_iovlen = buffers.len() as _;
    message
}

fn moved(mut call: impl FnMut() -> isize) -> Moved {
    loop {
        match call() {
            0 => return Moved::Ended,
            bytes if bytes > 0 => return Moved::Bytes(bytes as usize),
            _ => {}
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => return Moved::Nothing,
            Some(libc::EFAULT) => return Moved::Fault,
            _ => return Moved::Ended,
        }
    }
}

#[cfg(test)]
mod rt_tests {
    use super::Socket;
    use crate::device::{Device, DeviceOptions};
    use crate::modify::connect_pair;
    use crate::queue_pair::{QpInit, QueuePair};
    use crate::shared::QpShared;
    use polyrail_nic_parts::options::{ConnectOptions, QpCap};
    use std::fs;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    fn queue_pair(address: &str, options: &DeviceOptions) -> QueuePair {
        let device = Device::open(address, options).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(8).unwrap();
        pd.create_qp(&QpInit::new(&cq, QpCap::default())).unwrap()
    }

    /// Waits for the connection.
    fn socket(qp: &Arc<QpShared>) -> &Socket {
        let begin = Instant::now();
        loop {
            if let Some(socket) = qp.socket.get() {
                return socket;
            }
            assert!(begin.elapsed() < Duration::from_secs(120));
            std::thread::yield_now();
        }
    }

    /// Returns the sizes of its buffers.
    fn sizes(qp: &Arc<QpShared>) -> (usize, usize) {
        let Socket(socket) = socket(qp);
        (socket.send_buffer_size().unwrap(), socket.recv_buffer_size().unwrap())
    }

    #[test]
    fn a_connection_is_probed_within_its_limit_and_data_has_that_limit_too() {
        let [near, far] =
            ["127.8.4.3", "127.8.4.4"].map(|at| queue_pair(at, &DeviceOptions::default()));
        connect_pair(&near, &far, &ConnectOptions::default()).unwrap();
        let connection = socket(&near.shared);
        let Socket(socket) = connection;
        let second = Duration::from_secs(1);
        for (limit, third) in [(1, second), (8_600_000_000, 3 * second)] {
            connection.set_probes(Some(limit));
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), third);
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), third);
            assert_eq!(socket.tcp_keepalive_retries().unwrap(), 2);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(3 * third));
        }
        connection.set_probes(None);
        assert!(!socket.keepalive().unwrap());
        assert_eq!(socket.tcp_user_timeout().unwrap(), None);
    }

    #[test]
    fn both_ends_of_a_connection_have_buffers_of_the_sizes_of_their_devices() {
        let most = |name: &str| -> usize {
            let most = fs::read_to_string(format!("/proc/sys/net/core/{name}")).unwrap();
            most.trim().parse().unwrap()
        };
        // The system doubles sizes (socket(7)).
        let expected = |send: usize, recv: usize| {
            (2 * send.min(most("wmem_max")), 2 * recv.min(most("rmem_max")))
        };
        let near =
            DeviceOptions { send_buffer: 40_000, recv_buffer: 50_000, ..DeviceOptions::default() };
        let far =
            DeviceOptions { send_buffer: 60_000, recv_buffer: 70_000, ..DeviceOptions::default() };
        let (near, far) = (queue_pair("127.8.4.1", &near), queue_pair("127.8.4.2", &far));
        connect_pair(&near, &far, &ConnectOptions::default()).unwrap();
        assert_eq!(sizes(&near.shared), expected(40_000, 50_000));
        assert_eq!(sizes(&far.shared), expected(60_000, 70_000));
    }
}
