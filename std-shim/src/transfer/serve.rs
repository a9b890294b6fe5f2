//! The receiving side between two processes: takes files from whoever connects, one after the other.
//!
//! A peer is trusted with nothing but the bytes of its file: it cannot choose a path, nor have more
//! memory than it may, nor keep the server by saying nothing.

use super::copy::{CopyReport, Progress, SideReport, watched};
use super::destination::{self, Destination};
use super::error::{CopyError, Role, TransferError};
use super::plan::Plan;
use super::receiver::{Incoming, receive_from};
use super::side::{Environment, expect_sender};
use crate::backend::Domain;
use crate::endpoint::EndpointBuilder;
use crate::exchange::{FileName, Hello, Link, LinkError, Listener, Message, Reason, Timeouts};
use polyrail_core::virtual_qp::Scheme;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The port that servers listen at unless told otherwise.
pub const DEFAULT_PORT: u16 = 7471;

/// What a server does with what comes.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// A directory, in which files appear under the names that senders give them; else the file that
    /// each copy becomes.
    pub destination: PathBuf,
    /// Bytes of memory that one sender may have here.
    pub max_memory: u64,
    /// How long a rail may make no headway before it is taken for dead.
    pub stall_timeout: Duration,
    /// How long a sender may let nothing happen at all.
    pub idle_timeout: Duration,
    /// Whether a copy has to reach the disk before it takes its name.
    pub sync: bool,
}

impl ServeOptions {
    /// Into `destination`, 1 GiB of memory, 10 s for rails and a minute for senders.
    pub fn new(destination: impl Into<PathBuf>) -> Self {
        Self {
            destination: destination.into(),
            max_memory: 1 << 30,
            stall_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            sync: false,
        }
    }
}

/// Waits for senders.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
}

/// A sender that has connected, and not said anything yet.
#[derive(Debug)]
pub struct Sender {
    link: Link,
    /// Where it connected from.
    pub address: SocketAddr,
}

/// A file that came.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// Where it is.
    pub path: PathBuf,
    /// How its sender had it copied.
    pub scheme: Scheme,
    /// Rails of the virtual queue pair.
    pub rails: usize,
    /// Devices that they were on.
    pub devices: usize,
    /// Bytes of the longest fragment.
    pub max_msg_size: u32,
    /// Bytes of one request.
    pub message_size: u64,
    /// Requests on their way at once.
    pub window: u64,
    /// What was copied.
    pub report: CopyReport,
}

impl Server {
    /// Listens at `address`, such as `0.0.0.0:7471`.
    ///
    /// # Errors
    ///
    /// See [`Listener::bind`].
    pub fn bind(address: &str) -> Result<Self, LinkError> {
        Ok(Self { listener: Listener::bind(address)? })
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn local_addr(&self) -> Result<SocketAddr, LinkError> {
        self.listener.local_addr()
    }

    /// Waits for the next sender; `None` when `interrupted` is set.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn accept(&self, interrupted: &AtomicBool) -> Result<Option<Sender>, LinkError> {
        let timeouts = Timeouts { accept: Some(Duration::from_millis(100)), ..Timeouts::default() };
        while !interrupted.load(Ordering::Relaxed) {
            match self.listener.accept(&timeouts) {
                Ok((link, address)) => return Ok(Some(Sender { link, address })),
                Err(LinkError::Nobody { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Sender {
    /// Takes the sender's file, over these devices; how many of them, the rails, the scheme and the
    /// fragment size are the sender's choice. `watch` is called ten times a second, on this thread,
    /// while another does the work.
    ///
    /// # Errors
    ///
    /// See [`CopyError`]; the sender is told. Unless the copy is complete and its checksums agree,
    /// the destination is as it was before.
    pub fn receive<D: Domain + Sync>(
        mut self,
        domains: &[D],
        options: &ServeOptions,
        progress: &Progress,
        watch: impl FnMut(),
    ) -> Result<Received, CopyError> {
        let begin = Instant::now();
        let hello = expect_sender(&mut self.link).map_err(receiver_failed)?;
        let prepared = prepare(&hello, options);
        let Prepared { plan, path, target, file } =
            prepared.inspect_err(|error| self.tell(error))?;
        progress.total.store(plan.total, Ordering::Relaxed);
        let failed = |error| CopyError::of_side(Role::Receiver, error, Path::new(""), &path);

        let rails = hello.endpoint.rails.len();
        // The sender's buffer is registered with each of the devices that it uses.
        let domains: Vec<&D> = domains.iter().take(hello.buffer.rkeys.len()).collect();
        let devices = domains.len();
        let builder = EndpointBuilder::new()
            .rails(rails)
            .scheme(hello.endpoint.scheme)
            .max_msg_size(hello.endpoint.max_msg_size);
        let environment = Environment {
            domains,
            builder: &builder,
            stall_timeout: options.stall_timeout,
            idle_timeout: Some(options.idle_timeout),
            interrupted: &progress.interrupted,
        };
        let complete = || target.finish(options.sync).map_err(TransferError::Finish);
        let incoming = Incoming { file: &file, written: &progress.written, complete };
        let work = || receive_from(environment, self.link, &hello, incoming);
        let (sum, reports) = watched(work, watch).map_err(failed)?;
        let report = CopyReport::new(sum, plan, begin.elapsed());
        let receiver = Some(SideReport { rails: reports });
        Ok(Received {
            scheme: hello.endpoint.scheme,
            rails,
            devices,
            max_msg_size: hello.endpoint.max_msg_size,
            message_size: plan.chunk.into(),
            window: plan.window.into(),
            report: CopyReport { receiver, ..report },
            path,
        })
    }

    /// Tells the sender why there will be no copy.
    fn tell(&mut self, error: &CopyError) {
        // If it cannot be told, it sees that we are gone.
        _ = self.link.send(&Message::Failed { reason: Reason::new(error) });
    }
}

fn receiver_failed(error: TransferError) -> CopyError {
    CopyError::Transfer { role: Role::Receiver, source: Box::new(error) }
}

/// What is to come, and where it goes.
struct Prepared {
    plan: Plan,
    path: PathBuf,
    target: Destination,
    /// The target's, to write to until the target is complete.
    file: File,
}

/// Whether it may come, and where it goes.
fn prepare(hello: &Hello, options: &ServeOptions) -> Result<Prepared, CopyError> {
    let no_plan = || TransferError::Protocol("the sender's hello has no plan".into());
    let plan = hello.plan.ok_or_else(no_plan).map_err(receiver_failed)?;
    let (bytes, limit) = (plan.ring_bytes() as u64, options.max_memory);
    if bytes > limit {
        return Err(receiver_failed(TransferError::TooMuchMemory { bytes, limit }));
    }
    let path = place(&options.destination, hello.name.as_ref())?;
    let target = Destination::create(None, &path)?;
    match target.file().try_clone() {
        Ok(file) => Ok(Prepared { plan, path, target, file }),
        Err(source) => Err(CopyError::Destination { path, source }),
    }
}

/// Where a file goes. In a directory a peer's name replaces regular files only: a link would lead
/// elsewhere.
fn place(destination: &Path, name: Option<&FileName>) -> Result<PathBuf, CopyError> {
    if !destination.is_dir() {
        return Ok(destination.to_owned());
    }
    let Some(name) = name else {
        let what = "a directory, and the sender gives no name";
        return Err(CopyError::DestinationKind { path: destination.to_owned(), what });
    };
    let path = destination.join(name.as_str());
    match fs::symlink_metadata(&path) {
        Ok(existing) if !existing.is_file() => {
            Err(CopyError::DestinationKind { path, what: destination::kind(&existing) })
        }
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(CopyError::Destination { path, source })
        }
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::super::hosts::{Host, software_hosts};
    use super::*;
    use crate::transfer::{CopyOptions, send_to};
    use std::io::Write;
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::thread;

    /// A server on software NICs that takes so many files, and what came of each.
    fn served<T: Send>(
        options: &ServeOptions,
        senders: usize,
        send: impl FnOnce(&str, &Host) -> T + Send,
    ) -> (T, Vec<Result<Received, CopyError>>) {
        let (here, there) = software_hosts(2).unwrap();
        let server = Server::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        thread::scope(|scope| {
            let sent = scope.spawn(|| send(&address, &here));
            let receive = |_| {
                let progress = Progress::default();
                let sender = server.accept(&progress.interrupted).unwrap().unwrap();
                sender.receive(there.all_domains(), options, &progress, || ())
            };
            let received = (0..senders).map(receive).collect();
            (sent.join().unwrap(), received)
        })
    }

    fn send(
        source: &Path,
        name: Option<&str>,
        address: &str,
        host: &Host,
        options: &CopyOptions,
    ) -> Result<CopyReport, CopyError> {
        let (name, progress) = (name.map(str::as_ref), Progress::default());
        send_to(source, name, address, host.all_domains(), options, &progress, || ())
    }

    /// A directory with a source of some bytes, and an empty directory for copies.
    fn place_with_source() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (source, copies) = (directory.path().join("source"), directory.path().join("copies"));
        fs::write(&source, vec![7; 300_000]).unwrap();
        fs::create_dir(&copies).unwrap();
        (directory, source, copies)
    }

    fn names(directory: &Path) -> Vec<String> {
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.unwrap().file_name().into_string().unwrap()
        };
        fs::read_dir(directory).unwrap().map(name).collect()
    }

    #[test]
    fn a_server_adopts_what_its_senders_want() {
        let (_directory, source, copies) = place_with_source();
        let options = |scheme, rails| CopyOptions {
            scheme,
            rails,
            message_size: 70_000,
            max_msg_size: 4096,
            ..CopyOptions::default()
        };
        let (sent, received) = served(&ServeOptions::new(&copies), 3, |address, host| {
            let send = |name, options| send(&source, name, address, host, &options).unwrap();
            let spray = send(None, options(Scheme::Spray, 1));
            send(Some("other"), options(Scheme::Dqplb, 3));
            send(Some("other"), options(Scheme::Spray, 8));
            spray
        });
        let received: Vec<Received> = received.into_iter().map(Result::unwrap).collect();
        assert_eq!(received[0].report.crc32, sent.crc32);
        assert!(received[0].report.sender.is_none() && sent.receiver.is_none());
        let of = |received: &Received| (received.rails, received.devices, received.max_msg_size);
        assert_eq!(
            received.iter().map(of).collect::<Vec<_>>(),
            [(1, 1, 4096), (3, 2, 4096), (8, 2, 4096)]
        );
        for name in ["source", "other"] {
            assert!(fs::read(copies.join(name)).unwrap() == fs::read(&source).unwrap());
        }
        assert_eq!(names(&copies).len(), 2);
    }

    #[test]
    fn a_bad_peer_costs_nobody_else_anything() {
        let (_directory, source, copies) = place_with_source();
        let (_, received) = served(&ServeOptions::new(&copies), 3, |address, host| {
            TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            drop(TcpStream::connect(address).unwrap());
            send(&source, None, address, host, &CopyOptions::default()).unwrap()
        });
        let text = |place: usize| received[place].as_ref().unwrap_err().to_string();
        assert!(text(0).contains("no polyrail"), "{}", text(0));
        assert!(text(1).contains("hung up"), "{}", text(1));
        assert!(received[2].is_ok() && names(&copies) == ["source"]);
    }

    #[test]
    fn memory_has_a_limit_and_the_sender_is_told() {
        let (_directory, source, copies) = place_with_source();
        let limited = ServeOptions { max_memory: 1 << 20, ..ServeOptions::new(&copies) };
        let (sent, received) = served(&limited, 1, |address, host| {
            let large = CopyOptions { message_size: 2 << 20, ..CopyOptions::default() };
            send(&source, None, address, host, &large).unwrap_err().to_string()
        });
        assert!(received[0].is_err() && names(&copies).is_empty());
        assert!(
            sent.contains("asks for 2097152 bytes of memory") && sent.contains("1048576"),
            "{sent}"
        );
    }

    #[test]
    fn a_link_in_the_directory_is_not_followed() {
        let (directory, source, copies) = place_with_source();
        let outside = directory.path().join("outside");
        fs::write(&outside, "keep me").unwrap();
        std::os::unix::fs::symlink(&outside, copies.join("source")).unwrap();
        let (sent, received) = served(&ServeOptions::new(&copies), 1, |address, host| {
            send(&source, None, address, host, &CopyOptions::default()).unwrap_err().to_string()
        });
        assert!(matches!(
            received[0],
            Err(CopyError::DestinationKind { what: "a symbolic link", .. })
        ));
        assert!(sent.contains("a symbolic link"), "{sent}");
        assert_eq!(fs::read(&outside).unwrap(), b"keep me");
    }

    #[test]
    fn a_sender_that_does_nothing_is_sent_away() {
        let (_directory, source, copies) = place_with_source();
        let idle_timeout = Duration::from_millis(100);
        let options = ServeOptions { idle_timeout, ..ServeOptions::new(copies.join("one")) };
        let (_, received) = served(&options, 1, |address, host| {
            let builder = CopyOptions::default().builder();
            let mut link = Link::connect(address, &Timeouts::default()).unwrap();
            let domains = host.domains();
            let mut endpoint: crate::endpoint::Endpoint = builder.build(&domains).unwrap();
            let access = polyrail_core::verbs::AccessFlags::empty();
            let buffer = crate::memory::RegisteredBuffer::new(2048, access, &domains).unwrap();
            let plan = Plan::new(source.metadata().unwrap().len(), 4096, 4).ok();
            let (address, buffer) = (endpoint.address(), buffer.remote());
            link.send(&Message::Hello(Hello { endpoint: address, buffer, plan, name: None }))
                .unwrap();
            let peer = link.expect_hello().unwrap();
            crate::exchange::bring_up(&mut endpoint, &mut link, &peer, |_| {
                Ok::<(), TransferError>(())
            })
            .unwrap();
            let told = link.expect(Duration::from_secs(10)).unwrap_err().to_string();
            assert!(told.contains("nothing happened for"), "{told}");
        });
        let Err(CopyError::Transfer { source, .. }) = &received[0] else { panic!("{received:?}") };
        assert!(matches!(**source, TransferError::Idle { .. }), "{source}");
        assert!(names(&copies).is_empty());
    }

    #[test]
    fn a_server_that_is_interrupted_stops_waiting() {
        let server = Server::bind("127.0.0.1:0").unwrap();
        let interrupted = Arc::new(AtomicBool::new(true));
        assert!(server.accept(&interrupted).unwrap().is_none());
    }
}
