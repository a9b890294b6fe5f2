//! Frames between two processes, over TCP, which nobody waits for.
//!
//! ```text
//!  bytes 0..4  length of the body, in little endian
//!        4     kind
//!        5..   body
//! ```

use polyrail::p2p::MAX_ADDRESS_BYTES;
use rustix::net::{connect_unspec, sockopt};
use std::io::{self, ErrorKind, Read as _, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

const HEAD: usize = 5;

/// Bytes of the longest body: an address, with what stands before it.
const MAX_BODY: usize = MAX_ADDRESS_BYTES + 64;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Token, terms and address of who connects.
    Hello = 1,
    /// Who listened: where the connection is found again, and its address.
    Welcome,
    /// The sender's end is connected.
    Ready,
    /// It will not be; why, in words.
    Refused,
    /// What ends that re-route tell each other.
    Message,
    /// Which connection a new link is for.
    Again,
    /// It is that connection's.
    Resumed,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        use Kind::*;
        let all = [Hello, Welcome, Ready, Refused, Message, Again, Resumed];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) body: Vec<u8>,
}

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    Frame(Frame),
    /// Nothing whole yet.
    Nothing,
    /// The peer has closed it.
    Ended,
}

/// A connection that carries frames.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Link {
    /// It breaks when the peer's host has answered nothing for as long as `patience`.
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // The kernel takes whole seconds, and no more than this.
        let part = |of: u32| Duration::from_secs((patience / of).as_secs().clamp(1, 0x7fff));
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, part(2))?;
        sockopt::set_tcp_keepintvl(&stream, part(8))?;
        let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        // 0 would be the system's own.
        sockopt::set_tcp_user_timeout(&stream, patience.clamp(1, i32::MAX as u32))?;
        Ok(Self { stream, incoming: Vec::new(), outgoing: Vec::new() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Who is at the other end, for people.
    pub(crate) fn peer(&self) -> String {
        self.stream.peer_addr().map_or_else(|error| error.to_string(), |peer| peer.to_string())
    }

    /// Adds a frame to what is to go out.
    pub(crate) fn push(&mut self, kind: Kind, body: &[u8]) {
        self.outgoing.extend((body.len() as u32).to_le_bytes());
        self.outgoing.push(kind as u8);
        self.outgoing.extend(body);
    }

    /// Says why it will not be, and ends.
    pub(crate) fn refuse(mut self, why: &str) {
        self.push(Kind::Refused, why.as_bytes());
        // If it does not go out at once, the peer sees that the link ends.
        _ = self.send();
    }

    /// Breaks it, which the peer does not take for an end.
    pub(crate) fn reset(self) {
        // If it is not connected any more, it is broken.
        _ = connect_unspec(&self.stream);
    }

    /// Sends what can be sent now, and returns whether that is all.
    pub(crate) fn send(&mut self) -> io::Result<bool> {
        let mut sent = 0;
        while sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.outgoing.drain(..sent);
        Ok(self.outgoing.is_empty())
    }

    /// The next frame, if it is there.
    pub(crate) fn read(&mut self) -> io::Result<Read> {
        loop {
            if let Some(frame) = self.take_frame()? {
                return Ok(Read::Frame(frame));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(Read::Ended),
                Ok(count) => self.incoming.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Read::Nothing),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_frame(&mut self) -> io::Result<Option<Frame>> {
        let Some((head, rest)) = self.incoming.split_at_checked(HEAD) else { return Ok(None) };
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = Kind::of(head[4]).filter(|_| length <= MAX_BODY);
        let kind = kind.ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidData, "the peer sent something that is no frame")
        })?;
        let Some(body) = rest.get(..length).map(Vec::from) else { return Ok(None) };
        self.incoming.drain(..HEAD + length);
        Ok(Some(Frame { kind, body }))
    }
}

/// A process that was forked has the socket too: the peer is to hear of the end without it.
impl Drop for Link {
    fn drop(&mut self) {
        // If it is not connected any more, there is nobody who would hear.
        _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn pair() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Link::new(near, PATIENCE).unwrap(), listener.accept().unwrap().0)
    }

    fn read(link: &mut Link) -> io::Result<Read> {
        let begin = Instant::now();
        loop {
            match link.read() {
                Ok(Read::Nothing) if begin.elapsed() < Duration::from_secs(5) => {}
                read => return read,
            }
        }
    }

    #[test]
    fn frames_come_whole_whatever_pieces_they_travel_in() {
        let (mut link, mut far) = pair();
        let mut bytes = Vec::new();
        for (kind, body) in [(Kind::Hello, &b"here"[..]), (Kind::Ready, b"")] {
            bytes.extend((body.len() as u32).to_le_bytes());
            bytes.push(kind as u8);
            bytes.extend(body);
        }
        for byte in &bytes[..7] {
            far.write_all(&[*byte]).unwrap();
            assert_eq!(link.read().unwrap(), Read::Nothing);
        }
        far.write_all(&bytes[7..]).unwrap();
        let hello = Frame { kind: Kind::Hello, body: b"here".into() };
        assert_eq!(read(&mut link).unwrap(), Read::Frame(hello));
        let ready = Frame { kind: Kind::Ready, body: Vec::new() };
        assert_eq!(read(&mut link).unwrap(), Read::Frame(ready));
        drop(far);
        assert_eq!(read(&mut link).unwrap(), Read::Ended);
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        for head in [[0, 0, 0, 0, 99], [0xff, 0xff, 0xff, 0x7f, Kind::Hello as u8]] {
            let (mut link, mut far) = pair();
            far.write_all(&head).unwrap();
            assert_eq!(read(&mut link).unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn what_does_not_go_out_at_once_goes_later() {
        let (mut link, far) = pair();
        let mut far = Link::new(far, PATIENCE).unwrap();
        let body = vec![7; MAX_BODY];
        let frames = 1000;
        (0..frames).for_each(|_| link.push(Kind::Message, &body));
        assert!(!link.send().unwrap(), "16 MB do not fit into a socket");
        let mut came = 0;
        while came < frames {
            link.send().unwrap();
            while let Read::Frame(frame) = far.read().unwrap() {
                assert_eq!(frame.body.len(), MAX_BODY);
                came += 1;
            }
        }
        assert!(link.send().unwrap());
    }
}
