//! The plugin's sockets, and what a network does to them.

use std::ffi::{c_int, c_void};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// All that this process has.
pub(crate) fn sockets() -> Vec<c_int> {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_socket = |file: &fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    };
    files
        .filter(is_socket)
        .map(|file| file.file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

/// Whether it is a listener. None if it was closed meanwhile: the plugin has its own thread.
fn listens(socket: c_int) -> Option<bool> {
    let (mut value, mut length) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: there is room for a number.
    let got = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    (got == 0).then_some(value == 1)
}

/// Takes all file descriptors that this process may have, until the files are dropped.
pub(crate) fn no_descriptor() -> Vec<File> {
    let limit = libc::rlimit { rlim_cur: 128, rlim_max: 128 };
    // SAFETY: a limit, which the call copies.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Returns the number of epoll instances of this process. Over TCP each completion queue is one.
pub(crate) fn epolls() -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_epoll = |file: &fs::DirEntry| {
        fs::read_link(file.path()).is_ok_and(|link| link.to_string_lossy().contains("[eventpoll]"))
    };
    files.filter(is_epoll).count()
}

/// Both ends of the links of connections.
pub(crate) fn links() -> Vec<c_int> {
    sockets().into_iter().filter(|socket| listens(*socket) == Some(false)).collect()
}

/// The ports at which this process listens.
pub(crate) fn listening() -> Vec<u16> {
    let port = |socket| {
        // SAFETY: it is given back open; of one that was closed meanwhile nothing is to be had.
        let listener = unsafe { TcpListener::from_raw_fd(socket) };
        let address = listener.local_addr();
        _ = listener.into_raw_fd();
        address.ok().map(|address| address.port())
    };
    sockets().into_iter().filter(|socket| listens(*socket) == Some(true)).filter_map(port).collect()
}

/// A link is reset: both ends notice it.
pub(crate) fn reset(link: c_int) {
    let nowhere =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let length = size_of_val(&nowhere) as libc::socklen_t;
    // SAFETY: an address of that length.
    assert_eq!(unsafe { libc::connect(link, &raw const nowhere, length) }, 0);
}

/// What comes to a socket is dropped unanswered from now on.
pub(crate) fn silence(socket: c_int) {
    let mut drop_all = libc::sock_filter { code: 6, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &mut drop_all };
    let program: *const c_void = (&raw const program).cast();
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: a program of one instruction, which takes nothing of any packet.
    let set = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program, length)
    };
    assert_eq!(set, 0);
}

/// Sends a message over and over from one end of a link, as fast as the other end reads, until
/// `meanwhile` returns.
pub(crate) fn flood<T>(link: c_int, message: &[u8], meanwhile: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            let mut rest = message;
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // The last message is sent to its end.
            while !is_over.load(Ordering::Relaxed) || rest.len() < message.len() {
                // SAFETY: the bytes are there.
                let sent = unsafe { libc::send(link, rest.as_ptr().cast(), rest.len(), flags) };
                match usize::try_from(sent) {
                    Ok(sent) if sent == rest.len() => rest = message,
                    Ok(sent) => rest = &rest[sent..],
                    Err(_) => thread::yield_now(),
                }
            }
        });
        meanwhile()
    })
}

/// A message of a link as it travels.
pub(crate) fn framed(json: &str) -> Vec<u8> {
    let length = json.len() as u32;
    [b"PLYR\0\0\0\x08", &length.to_be_bytes()[..], json.as_bytes()].concat()
}
