//! What C programs hold. None of them is a pointer to anything: see `table`.

/// Devices of one backend, opened together. Memory is registered with a domain, and connections use
/// its devices. May be used by many threads at the same time.
#[derive(Debug)]
pub struct Domain(());

/// Local memory, registered with every device of a domain. May be used by many threads at the same
/// time.
#[derive(Debug)]
pub struct Region(());

/// Memory of a peer: its address and keys. May be used by many threads at the same time.
#[derive(Debug)]
pub struct Remote(());

/// Connections with many peers, which are polled together: for requests (WRITE, READ, SEND,
/// atomics), or for messages, whose receiver chooses where their data goes. One thread at a time.
#[derive(Debug)]
pub struct Peers(());

/// A TCP address at which links of peers are accepted. One thread at a time.
#[derive(Debug)]
pub struct Listener(());

/// A TCP connection to another process, over which two sides connect their queue pairs, before it
/// is passed to a peer. One thread at a time.
#[derive(Debug)]
pub struct Link(());
