//! How two queue pairs find each other: one connects to the other's listener, and both prove that
//! they have the other's key.
//!
//! ```text
//! connector                                       acceptor
//!   hello: version, both numbers, a nonce    -->
//!                                            <--    challenge: version, a nonce
//!   proof, with the acceptor's key           -->
//!                                            <--    proof, with the connector's key
//! ```
//!
//! A proof is HMAC-SHA-256 of the side, both numbers and both nonces. The acceptor sends its proof
//! once it knows its peer (INIT to RTR); until then the proven connection waits. Neither sends
//! frames before it has the other's proof, so a process that got the port or the address of a peer
//! gets no data. Nothing is encrypted.
//!
//! Of the two, the queue pair connects whose (address, port, number) is less, so that both ends
//! know their part from their addresses. The address and port are those that the device advertises,
//! which are the only ones that the other end sees. A queue pair that is its own peer has a TCP
//! connection to itself.

use hmac::{Hmac, KeyInit, Mac};
use polyrail_nic_parts::address::{MeetingKey, RemoteQp};
use sha2::Sha256;
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown, SocketAddr};

/// Begins every first message.
pub(crate) const MAGIC: [u8; 8] = *b"polyrail";

/// Version of the protocol.
pub(crate) const VERSION: u16 = 1;

/// Bytes of a hello: the magic, the version, two zeros, both numbers, a nonce.
pub(crate) const HELLO: usize = 36;

/// Bytes of a challenge: the magic, the version, a code, a zero, a nonce.
pub(crate) const CHALLENGE: usize = 28;

/// Bytes of a proof.
pub(crate) const PROOF: usize = 32;

/// Sent to a guest that does not speak this protocol.
pub(crate) const WORDS: &[u8] =
    b"this port is for queue pairs of polyrail, over its own protocol\n";

pub(crate) type Nonce = [u8; 16];

/// Codes of a challenge that refuses.
pub(crate) mod code {
    /// Go on.
    pub(crate) const WELCOME: u8 = 0;
    /// The acceptor speaks another version.
    pub(crate) const VERSION: u8 = 1;
    /// No queue pair has the number, or it has a connection already.
    pub(crate) const NO_QUEUE_PAIR: u8 = 2;
}

/// What a queue pair knows of its peer.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    /// The peer, from RTR on.
    pub(crate) peer: Option<RemoteQp>,
    /// A connection that has proved the key of this queue pair, before the peer is known.
    pub(crate) parked: Option<Parked>,
}

#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) stream: socket2::Socket,
    pub(crate) session: Session,
}

/// The numbers and nonces of both sides, the connector's first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) numbers: [u32; 2],
    pub(crate) nonces: [Nonce; 2],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Connects,
    Accepts,
}

impl Session {
    pub(crate) fn mac(&self, side: Side, key: &MeetingKey) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&key.0).expect("keys of any length are good");
        mac.update(match side {
            Side::Connects => b"polyrail queue pair connects",
            Side::Accepts => b"polyrail queue pair accepts ",
        });
        self.numbers.iter().for_each(|number| mac.update(&number.to_le_bytes()));
        self.nonces.iter().for_each(|nonce| mac.update(nonce));
        mac
    }

    pub(crate) fn proof(&self, side: Side, key: &MeetingKey) -> [u8; PROOF] {
        self.mac(side, key).finalize().into_bytes().into()
    }

    /// In a time that does not depend on what is wrong.
    pub(crate) fn is_proved(&self, side: Side, key: &MeetingKey, proof: &[u8]) -> bool {
        self.mac(side, key).verify_slice(proof).is_ok()
    }
}

/// Returns the place of a queue pair among all of its network.
pub(crate) fn identity(address: SocketAddr, number: u32) -> (IpAddr, u16, u32) {
    (address.ip().to_canonical(), address.port(), number)
}

/// The end of a first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Not all is here.
    Later,
    /// The other side ended the connection, or it broke.
    Broken,
}

/// Reads until the message is whole. Reads not a byte more, because frames may follow.
#[derive(Debug)]
pub(crate) struct Message<const N: usize> {
    pub(crate) bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Message<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    pub(crate) fn read(&mut self, mut stream: &socket2::Socket) -> Result<&[u8; N], Ended> {
        while self.length < N {
            match stream.read(&mut self.bytes[self.length..]) {
                Ok(0) => return Err(Ended::Broken),
                Ok(count) => self.length += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Ended::Later);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Ended::Broken),
            }
        }
        Ok(&self.bytes)
    }

    pub(crate) fn so_far(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Sends a first message, which a fresh connection takes whole.
pub(crate) fn send(stream: &socket2::Socket, bytes: &[u8]) -> Result<(), Ended> {
    // Without the flag, a connection that was reset raises SIGPIPE in programs that do not ignore
    // it.
    match stream.send_with_flags(bytes, libc::MSG_NOSIGNAL) {
        Ok(count) if count == bytes.len() => Ok(()),
        _ => Err(Ended::Broken),
    }
}

/// Sends a last message. What has come is read, because a socket that is closed with unread bytes
/// resets the connection, and the other side may lose the message.
pub(crate) fn say_goodbye(mut stream: &socket2::Socket, bytes: &[u8]) {
    _ = stream.read(&mut [0; 4096]);
    _ = send(stream, bytes);
    _ = stream.shutdown(Shutdown::Write);
}

pub(crate) fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

pub(crate) fn nonce(bytes: &[u8]) -> Nonce {
    let mut nonce = [0; 16];
    nonce.copy_from_slice(bytes);
    nonce
}

pub(crate) fn challenge(code: u8, nonce: &Nonce) -> [u8; CHALLENGE] {
    let mut message = [0; CHALLENGE];
    message[..8].copy_from_slice(&MAGIC);
    message[8..10].copy_from_slice(&VERSION.to_le_bytes());
    message[10] = code;
    message[12..].copy_from_slice(nonce);
    message
}
