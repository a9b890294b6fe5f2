//! A control connection that breaks on request.

use rustix::net::sockopt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Interval at which all connections are checked.
const LOOK: Duration = Duration::from_millis(1);

/// A relay in front of a TCP server. It connects its clients with the server until it is cut.
///
/// ```
/// use polyrail_faults::Relay;
/// use std::io::{Read, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// # fn main() -> std::io::Result<()> {
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let relay = Relay::to(server.local_addr()?)?;
/// let mut near = TcpStream::connect(relay.address())?;
/// let (mut far, _) = server.accept()?;
/// near.write_all(b"hello")?;
/// let mut heard = [0; 5];
/// far.read_exact(&mut heard)?;
///
/// relay.cut();
/// assert!(near.read(&mut heard).is_err() && far.read(&mut heard).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    pairs: Mutex<Vec<Pair>>,
    /// Connections that were relayed so far.
    relayed: AtomicU64,
    is_closed: AtomicBool,
    is_over: AtomicBool,
}

/// The two sides of a connection.
#[derive(Debug)]
struct Pair([TcpStream; 2]);

impl Relay {
    /// Makes a relay in front of the server at this address.
    ///
    /// # Errors
    ///
    /// The system has no port for it.
    pub fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            server,
            pairs: Mutex::default(),
            relayed: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let worker = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name("relay".into()).spawn(move || shared.work(&listener))?
        };
        Ok(Self { address, shared, worker: Some(worker) })
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that were relayed so far.
    pub fn relayed(&self) -> u64 {
        self.shared.relayed.load(Ordering::Relaxed)
    }

    /// Resets all connections, towards both sides. Data in flight is lost.
    pub fn cut(&self) {
        self.shared.lock().drain(..).for_each(Pair::reset);
    }

    /// Sets whether new connections get no answer.
    pub fn close(&self, is_closed: bool) {
        self.shared.is_closed.store(is_closed, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // A worker that panicked has printed its message.
        self.worker.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Pair>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, listener: &TcpListener) {
        while !self.is_over.load(Ordering::Relaxed) {
            if !self.is_closed.load(Ordering::Relaxed)
                && let Ok((near, _)) = listener.accept()
                && let Ok(pair) = Pair::new(near, self.server)
            {
                self.lock().push(pair);
                self.relayed.fetch_add(1, Ordering::Relaxed);
            }
            // When one side closes, the other is closed, too.
            self.lock().retain_mut(|pair| pair.pump().is_ok());
            thread::sleep(LOOK);
        }
    }
}

impl Pair {
    fn new(near: TcpStream, server: SocketAddr) -> io::Result<Self> {
        let far = TcpStream::connect(server)?;
        for stream in [&near, &far] {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        Ok(Self([near, far]))
    }

    /// Copies received data from each side to the other.
    fn pump(&mut self) -> io::Result<()> {
        let Self([near, far]) = self;
        carry(near, far)?;
        carry(far, near)
    }

    fn reset(self) {
        // Without lingering, closing resets the connection.
        for stream in self.0 {
            _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
    }
}

fn carry(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        match from.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            // Messages are short: the system's buffer always has room for them.
            Ok(count) => to.write_all(&bytes[..count])?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
