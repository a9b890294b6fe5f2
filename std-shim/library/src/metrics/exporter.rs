//! The thread that brings metrics to their readers.

use super::folder::TextFile;
use super::http;
use super::registry::Metrics;
use super::target::Target;
use crate::trace;
use polyrail_process::Process;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two writes to a folder.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Why metrics cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The address does not exist, is not of this host, or is taken.
    #[error("metrics cannot be served at {address}")]
    Address {
        /// The address.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A file in the folder cannot be written.
    #[error("metrics cannot be written to {}", path.display())]
    Folder {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system cannot start a thread, or has no file descriptor for it.
    #[error("there is no thread for metrics")]
    Thread(#[source] io::Error),
}

/// A thread that serves metrics over HTTP, or writes them to a folder every 10 s, when the last
/// [`Source`](super::Source) ends, and at its own end.
///
/// Dropping it ends the thread and frees the address, also if a child of fork lives on. In a fork of
/// the process, dropping it does nothing. If the process ends without dropping it, a child of fork
/// that does not call `exec` keeps the address until it ends, and clients that connect get no answer.
#[derive(Debug)]
pub struct Exporter {
    /// Readable once the thread is to end.
    end: Arc<OwnedFd>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    process: Process,
    address: Option<SocketAddr>,
    path: Option<PathBuf>,
}

enum Work {
    Serve(TcpListener),
    Write(Arc<TextFile>),
}

impl Exporter {
    /// Starts the thread. A folder is written to once before, so that an error shows at once.
    ///
    /// # Errors
    ///
    /// The address cannot be served at, or the folder cannot be written to.
    pub fn start(metrics: Metrics, target: &Target) -> Result<Self, ExportError> {
        let work = match target {
            Target::Address(address) => {
                let refused = |source| ExportError::Address { address: address.clone(), source };
                let listener = TcpListener::bind(address.as_str()).map_err(refused)?;
                // Another thread of the process may never take a connection, but a client can be
                // gone again before it is accepted.
                listener.set_nonblocking(true).map_err(refused)?;
                Work::Serve(listener)
            }
            Target::Folder(folder) => {
                let file = Arc::new(TextFile::new(folder, metrics.component()));
                metrics.write_to(&file).map_err(|source| ExportError::Folder {
                    path: file.path().to_owned(),
                    source,
                })?;
                metrics.write_at_ends(&file);
                Work::Write(file)
            }
        };
        let (address, path) = match &work {
            Work::Serve(listener) => (listener.local_addr().ok(), None),
            Work::Write(file) => (None, Some(file.path().to_owned())),
        };
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let end = Arc::new(end.map_err(|error| ExportError::Thread(error.into()))?);
        let ending = Arc::new(AtomicBool::new(false));
        let export = Export { metrics, end: Arc::clone(&end), ending: Arc::clone(&ending) };
        let thread = std::thread::Builder::new()
            .name("polyrail-metrics".to_owned())
            .spawn(move || export.run(&work))
            .map_err(ExportError::Thread)?;
        let process = Process::current();
        Ok(Self { end, ending, thread: Some(thread), process, address, path })
    }

    /// Returns the address at which metrics are served, if they are: with the port that the system
    /// chose for port 0.
    pub const fn local_addr(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the file to which metrics are written, if they are.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.process.is_current() {
            // The thread is the parent's.
            std::mem::forget(thread);
            return;
        }
        self.ending.store(true, Ordering::Release);
        // It fails only at 2^64 - 1 earlier ones, and then it is readable already.
        _ = rustix::io::write(&*self.end, &1_u64.to_ne_bytes());
        _ = thread.map(JoinHandle::join);
    }
}

/// The thread's part.
struct Export {
    metrics: Metrics,
    end: Arc<OwnedFd>,
    ending: Arc<AtomicBool>,
}

impl Export {
    fn run(&self, work: &Work) {
        match work {
            Work::Serve(listener) => self.serve(listener),
            Work::Write(file) => self.write(file),
        }
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    fn serve(&self, listener: &TcpListener) {
        while !self.is_ending() {
            let mut both = [self.end.as_fd(), listener.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // A signal ends it early, which does no harm.
            _ = poll(&mut both, None);
            match listener.accept() {
                Ok((stream, _)) => {
                    // A client that is too slow, or gone, is its own fault.
                    _ = stream.set_nonblocking(false);
                    _ = http::answer(stream, &self.metrics);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // There are no file descriptors: the connection waits in the listener.
                Err(_) => self.sleep(Duration::from_millis(100)),
            }
        }
        // A child of fork has the socket, too. It must not keep the port, and clients must not wait
        // for it. A socket that listens can be shut down.
        _ = shutdown(listener, Shutdown::Both);
    }

    fn write(&self, file: &TextFile) {
        let mut has_failed = false;
        loop {
            self.sleep(WRITE_EVERY);
            let ending = self.is_ending();
            let written = self.metrics.write_to(file);
            // Once for each time without success: a full disk would fill a log as well.
            if let Err(error) = &written
                && !has_failed
            {
                trace::metrics_not_written(&file.path().display(), error);
            }
            has_failed = written.is_err();
            if ending {
                return;
            }
        }
    }

    /// Sleeps, or until the thread is to end.
    fn sleep(&self, time: Duration) {
        let mut end = [PollFd::from_borrowed_fd(self.end.as_fd(), PollFlags::IN)];
        let time = Timespec::try_from(time).ok();
        _ = poll(&mut end, time.as_ref());
    }
}
