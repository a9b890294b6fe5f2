//! A peer that speaks the protocol itself, over a plain socket, as its documentation describes it
//! (`wire.rs`, `rt_meeting.rs`): it proves its key, and then sends any frames.

use super::{LONG, Side, wait};
use hmac::{Hmac, KeyInit, Mac};
use polyrail_nic_parts::address::{Gid, Meeting, MeetingKey, RemoteQp};
use polyrail_nic_parts::options::ConnectOptions;
use sha2::Sha256;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

pub const WRITE: u8 = 1;
pub const WRITE_WITH_IMM: u8 = 2;
pub const SEND: u8 = 3;
pub const SEND_WITH_IMM: u8 = 4;
pub const READ: u8 = 5;
pub const FETCH_ADD: u8 = 6;
pub const COMPARE_SWAP: u8 = 7;
pub const READ_RESPONSE: u8 = 8;
pub const ATOMIC_RESPONSE: u8 = 9;
pub const ACK: u8 = 10;
pub const NOT_READY: u8 = 11;
pub const READY: u8 = 12;
pub const REFUSAL: u8 = 13;

pub const FIRST: u8 = 1;
pub const LAST: u8 = 2;

pub const SEGMENT: usize = 256 << 10;

/// The number and the key of every raw peer.
pub const NUMBER: u32 = 77;
pub const KEY: [u8; 16] = [0x5a; 16];

/// A header, and what follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub rnr_timer: u8,
    pub zero: u8,
    pub length: u32,
    pub number: u32,
    pub acked: u32,
    pub total: u32,
    pub offset: u32,
    pub addr: u64,
    pub rkey: u32,
    pub imm: [u8; 4],
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn new(kind: u8, number: u32) -> Self {
        Self { kind, number, flags: FIRST | LAST, ..Self::default() }
    }

    /// With a payload, whole, and lengths that are true.
    pub fn with(self, payload: &[u8]) -> Self {
        let length = payload.len() as u32;
        Self { length, total: length, payload: payload.to_vec(), ..self }
    }

    pub fn at(self, addr: u64, rkey: u32) -> Self {
        Self { addr, rkey, ..self }
    }

    pub fn acked(self, acked: u32) -> Self {
        Self { acked, ..self }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind, self.flags, self.rnr_timer, self.zero];
        for number in [self.length, self.number, self.acked, self.total, self.offset] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.addr.to_le_bytes());
        bytes.extend(self.rkey.to_le_bytes());
        bytes.extend(self.imm);
        bytes.extend(&self.payload);
        bytes
    }

    fn parse(head: &[u8; 40]) -> Self {
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        Self {
            kind: head[0],
            flags: head[1],
            rnr_timer: head[2],
            zero: head[3],
            length: number(4),
            number: number(8),
            acked: number(12),
            total: number(16),
            offset: number(20),
            addr: u64::from_le_bytes(head[24..32].try_into().unwrap()),
            rkey: number(32),
            imm: head[36..].try_into().unwrap(),
            payload: Vec::new(),
        }
    }

    /// The status of a refusal.
    pub fn status(&self) -> u32 {
        u32::from_le_bytes(self.imm)
    }
}

/// The address of the raw peer: less than that of every device, so that it connects.
pub fn address() -> RemoteQp {
    let ip = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let meeting = Some(Meeting { port: 1, key: MeetingKey(KEY) });
    RemoteQp { gid: Gid(ip.octets()), lid: 0, qp_num: NUMBER, psn: 0, meeting }
}

pub fn hello(version: u16, to: u32, from: u32, nonce: [u8; 16]) -> Vec<u8> {
    let mut hello = b"polyrail".to_vec();
    hello.extend(version.to_le_bytes());
    hello.extend([0; 2]);
    hello.extend(to.to_le_bytes());
    hello.extend(from.to_le_bytes());
    hello.extend(nonce);
    hello
}

/// The proof of a side (`connects` or `accepts `).
pub fn proof(side: &str, key: &[u8], numbers: [u32; 2], nonces: [[u8; 16]; 2]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(format!("polyrail queue pair {side}").as_bytes());
    numbers.iter().for_each(|number| mac.update(&number.to_le_bytes()));
    nonces.iter().for_each(|nonce| mac.update(nonce));
    mac.finalize().into_bytes().into()
}

pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// A connection whose acceptor has answered the hello, and waits for the proof.
pub struct Greeted {
    stream: TcpStream,
    numbers: [u32; 2],
    nonces: [[u8; 16]; 2],
}

impl Greeted {
    /// Connects, and says hello.
    ///
    /// # Errors
    ///
    /// As [`Raw::to`].
    pub fn to(listener: SocketAddr, number: u32) -> Result<Self, Option<u8>> {
        let mut stream = connect(listener);
        let own = [7; 16];
        stream.write_all(&hello(1, number, NUMBER, own)).unwrap();
        let mut challenge = [0; 28];
        stream.read_exact(&mut challenge).map_err(|_| None)?;
        assert_eq!((&challenge[..8], &challenge[8..10]), (&b"polyrail"[..], &[1, 0][..]));
        if challenge[10] != 0 {
            return Err(Some(challenge[10]));
        }
        let nonces = [own, challenge[12..].try_into().unwrap()];
        Ok(Self { stream, numbers: [NUMBER, number], nonces })
    }

    /// Proves the key.
    ///
    /// # Errors
    ///
    /// As [`Raw::to`].
    pub fn prove(self, key: &[u8]) -> Result<Raw, Option<u8>> {
        let Self { mut stream, numbers, nonces } = self;
        stream.write_all(&proof("connects", key, numbers, nonces)).map_err(|_| None)?;
        let mut answer = [0; 32];
        stream.read_exact(&mut answer).map_err(|_| None)?;
        assert_eq!(answer, proof("accepts ", &KEY, numbers, nonces));
        Ok(Raw { stream })
    }
}

/// A connection whose both sides have proved themselves.
pub struct Raw {
    pub stream: TcpStream,
}

impl Raw {
    /// Connects to the queue pair of a side, which is in INIT, and then expects this peer.
    pub fn of(side: &Side, options: &ConnectOptions) -> Self {
        side.qp.to_rtr(&address(), options).unwrap();
        side.qp.to_rts(0, options).unwrap();
        let number = side.qp.as_remote(0).qp_num;
        let raw = Self::to(side.device.address(), number, &side.qp.meeting().key.0).unwrap();
        // The other end sends its proof just before it uses the connection.
        wait("the connection", || side.qp.is_connected());
        raw
    }

    /// Connects, and proves the key.
    ///
    /// # Errors
    ///
    /// The code with which the acceptor refuses, or none if it closes the connection.
    pub fn to(listener: SocketAddr, number: u32, key: &[u8]) -> Result<Self, Option<u8>> {
        Greeted::to(listener, number)?.prove(key)
    }

    pub fn send(&mut self, frame: &Frame) {
        self.stream.write_all(&frame.bytes()).unwrap();
    }

    /// Sends, though the other end may have closed the connection.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Receives a frame; `None` after the end of the connection.
    pub fn receive(&mut self) -> Option<Frame> {
        let mut head = [0; 40];
        self.stream.read_exact(&mut head).ok()?;
        let mut frame = Frame::parse(&head);
        frame.payload = vec![0; frame.length as usize];
        self.stream.read_exact(&mut frame.payload).ok()?;
        Some(frame)
    }

    /// Receives frames until one is of this kind.
    pub fn receive_kind(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.receive().expect("the connection ended");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Reads until the other end closes the connection.
    pub fn ended(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
                Err(error) => panic!("the connection does not end: {error}"),
            }
        }
    }
}
