//! What C programs hold. None of them is a pointer to anything: see `table`.

/// Devices of one backend, opened together: what memory is registered with, and connections are made of.
/// Any thread may use it, many at the same time.
#[derive(Debug)]
pub struct Domain(());

/// Memory of the caller's, registered with every device of a domain. Any thread may use it, many at the same
/// time.
#[derive(Debug)]
pub struct Region(());

/// Memory of a peer's: where it is, and the keys to it. Any thread may use it, many at the same time.
#[derive(Debug)]
pub struct Remote(());

/// Connections with many peers, which one poll serves: for requests (WRITE, READ, SEND, atomics), or for messages, which
/// the receiver says where to put. One thread at a time.
#[derive(Debug)]
pub struct Peers(());

/// A TCP address at which links of peers are accepted. One thread at a time.
#[derive(Debug)]
pub struct Listener(());

/// A TCP connection to another process, over which two sides meet, before it is given to a peer. One thread at a
/// time.
#[derive(Debug)]
pub struct Link(());
