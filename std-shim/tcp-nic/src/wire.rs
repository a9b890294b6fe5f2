//! The frames of a connection. Little endian; a header of [`HEADER`] bytes, then the payload.
//!
//! ```text
//! byte  0 kind   1 flags   2 rnr timer   3 zero
//!       4 length of the payload in this frame
//!       8 number of the request, low 32 bits
//!      12 acknowledgement: number of the peer's requests that are executed, low 32 bits
//!      16 length of the whole request
//!      20 offset of this frame's payload in the request
//!      24 remote address                 (8 bytes)
//!      32 rkey; of a refusal: vendor_err
//!      36 immediate, big endian as posted; of a refusal: status
//! ```
//!
//! Requests are numbered from 0 in posting order. A request that is longer than
//! [`SEGMENT`] travels in several frames with the same number; frames of one direction of the
//! connection never interleave two requests, but acknowledgements and responses may be between
//! them.

use polyrail_core::verbs::{Opcode, WcStatus};

/// Bytes of a header.
pub(crate) const HEADER: usize = 40;

/// Maximum payload of a frame in bytes. Between the frames of a long request, acknowledgements and
/// READ responses of the other direction get their turn.
pub(crate) const SEGMENT: u32 = 256 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Write = 1,
    WriteWithImm,
    Send,
    SendWithImm,
    Read,
    FetchAdd,
    CompareSwap,
    ReadResponse,
    AtomicResponse,
    /// Only its acknowledgement counts.
    Ack,
    /// The request with this number met no receive. It and all later ones were discarded.
    NotReady,
    /// A receive was posted for the request with this number, which was answered
    /// [`NotReady`](Self::NotReady).
    Ready,
    /// The request with this number failed, and the connection ends.
    Refusal,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::Write,
        Self::WriteWithImm,
        Self::Send,
        Self::SendWithImm,
        Self::Read,
        Self::FetchAdd,
        Self::CompareSwap,
        Self::ReadResponse,
        Self::AtomicResponse,
        Self::Ack,
        Self::NotReady,
        Self::Ready,
        Self::Refusal,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Returns the kind of the frames of a request; `None` if the device does not support it.
    pub(crate) const fn of(opcode: Opcode) -> Option<Self> {
        Some(match opcode {
            Opcode::RdmaWrite => Self::Write,
            Opcode::RdmaWriteWithImm => Self::WriteWithImm,
            Opcode::Send => Self::Send,
            Opcode::SendWithImm => Self::SendWithImm,
            Opcode::RdmaRead => Self::Read,
            Opcode::FetchAdd => Self::FetchAdd,
            Opcode::CompareSwap => Self::CompareSwap,
            Opcode::LocalInv | Opcode::SendWithInv => return None,
        })
    }

    /// Whether the payload of the request's frames is the data that the request moves.
    pub(crate) const fn carries_data(self) -> bool {
        matches!(self, Self::Write | Self::WriteWithImm | Self::Send | Self::SendWithImm)
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    /// Whether the request takes a receive.
    pub(crate) const fn takes_receive(self) -> bool {
        matches!(self, Self::WriteWithImm | Self::Send | Self::SendWithImm)
    }

    /// Whether it is a frame of a request, with a number of its own.
    pub(crate) const fn is_request(self) -> bool {
        self.carries_data() || self.is_atomic() || matches!(self, Self::Read)
    }
}

/// The first frame of its request.
pub(crate) const FIRST: u8 = 1;
/// The last frame of its request or response.
pub(crate) const LAST: u8 = 2;
/// The receive is a solicited completion.
pub(crate) const SOLICITED: u8 = 4;

/// Bytes of the operands of an atomic: the value to add or to compare with, and the value to swap
/// in.
pub(crate) const OPERANDS: u32 = 16;

/// Bytes that an atomic changes.
pub(crate) const WORD: u32 = 8;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) length: u32,
    pub(crate) number: u32,
    pub(crate) acked: u32,
    pub(crate) total: u32,
    pub(crate) offset: u32,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) imm: [u8; 4],
}

/// Why a frame cannot be what a peer of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl Header {
    /// Makes a header without payload for the request of this number.
    pub(crate) const fn new(kind: Kind, number: u64) -> Self {
        Self {
            kind,
            flags: 0,
            rnr_timer: 0,
            length: 0,
            number: number as u32,
            acked: 0,
            total: 0,
            offset: 0,
            addr: 0,
            rkey: 0,
            imm: [0; 4],
        }
    }

    /// Makes a refusal.
    pub(crate) const fn refusal(number: u64, status: WcStatus, vendor: u32) -> Self {
        Self { rkey: vendor, imm: status.0.to_le_bytes(), ..Self::new(Kind::Refusal, number) }
    }

    /// Returns the status of a refusal.
    pub(crate) const fn status(&self) -> WcStatus {
        WcStatus(u32::from_le_bytes(self.imm))
    }

    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&[self.kind as u8, self.flags, self.rnr_timer, 0]);
        for number in [self.length, self.number, self.acked, self.total, self.offset] {
            put(&number.to_le_bytes());
        }
        put(&self.addr.to_le_bytes());
        put(&self.rkey.to_le_bytes());
        put(&self.imm);
        bytes
    }

    /// Reads a header, and checks what can be checked without its connection.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, Malformed> {
        let number = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let kind = Kind::from_byte(bytes[0]).ok_or(Malformed("the kind of a frame is unknown"))?;
        if bytes[1] & !(FIRST | LAST | SOLICITED) != 0 || bytes[3] != 0 {
            return Err(Malformed("a frame has unknown flags"));
        }
        let header = Self {
            kind,
            flags: bytes[1],
            rnr_timer: bytes[2],
            length: number(4),
            number: number(8),
            acked: number(12),
            total: number(16),
            offset: number(20),
            addr: u64::from(number(24)) | u64::from(number(28)) << 32,
            rkey: number(32),
            imm: [bytes[36], bytes[37], bytes[38], bytes[39]],
        };
        header.check()?;
        Ok(header)
    }

    /// Refuses lengths that contradict the kind or each other.
    fn check(&self) -> Result<(), Malformed> {
        match self.kind {
            kind if kind.carries_data() || kind == Kind::ReadResponse => self.check_segment(),
            kind if kind.is_atomic() && self.length == OPERANDS => Ok(()),
            Kind::AtomicResponse if self.length == WORD => Ok(()),
            kind if kind.is_atomic() || kind == Kind::AtomicResponse => {
                Err(Malformed("an atomic has a wrong length"))
            }
            _ if self.length == 0 => Ok(()),
            _ => Err(Malformed("a frame without data has a length")),
        }
    }

    fn check_segment(&self) -> Result<(), Malformed> {
        let end = self.offset.checked_add(self.length);
        let Some(end) = end.filter(|&end| self.length <= SEGMENT && end <= self.total) else {
            return Err(Malformed("a frame is longer than its request or than a segment"));
        };
        if self.has(FIRST) != (self.offset == 0) || self.has(LAST) != (end == self.total) {
            return Err(Malformed("a frame is not at its place in its request"));
        }
        if self.length == 0 && self.total > 0 {
            return Err(Malformed("a frame of a request has no data"));
        }
        Ok(())
    }
}

/// Returns the number nearest to `near` whose low 32 bits are `low`. Both ends keep fewer than 2^31
/// requests in flight, so it is the number that the peer meant.
pub(crate) const fn expand(near: u64, low: u32) -> u64 {
    let ahead = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(ahead as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(total: u32, offset: u32, length: u32, flags: u8) -> Header {
        Header { total, offset, length, flags, ..Header::new(Kind::Write, 7) }
    }

    #[test]
    fn headers_arrive_as_they_were_sent() {
        let header = Header {
            flags: FIRST | LAST | SOLICITED,
            rnr_timer: 12,
            acked: 0x0102_0304,
            total: 5,
            length: 5,
            addr: 0x1122_3344_5566_7788,
            rkey: 0x99aa_bbcc,
            imm: [1, 2, 3, 4],
            ..Header::new(Kind::SendWithImm, 0xffff_fff0)
        };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        let refusal = Header::refusal(3, WcStatus::REM_ACCESS_ERR, 0x12);
        let decoded = Header::decode(&refusal.encode()).unwrap();
        assert_eq!((decoded.status(), decoded.rkey), (WcStatus::REM_ACCESS_ERR, 0x12));
    }

    #[test]
    fn a_frame_is_at_its_place_in_its_request() {
        let decode = |header: Header| Header::decode(&header.encode()).is_ok();
        assert!(decode(segment(0, 0, 0, FIRST | LAST)));
        assert!(decode(segment(SEGMENT + 1, 0, SEGMENT, FIRST)));
        assert!(decode(segment(SEGMENT + 1, SEGMENT, 1, LAST)));
        assert!(!decode(segment(SEGMENT + 1, 0, SEGMENT + 1, FIRST | LAST)), "over a segment");
        assert!(!decode(segment(9, 0, 10, FIRST | LAST)), "over its request");
        assert!(!decode(segment(9, 4, 4, LAST)), "not the last");
        assert!(!decode(segment(9, 4, 5, FIRST | LAST)), "not the first");
        assert!(!decode(segment(9, u32::MAX, 5, LAST)), "wraps");
        assert!(!decode(segment(9, 4, 0, 0)), "no data");
    }

    #[test]
    fn every_kind_is_known_and_no_other_byte() {
        for byte in 0..=255 {
            let known = Kind::ALL.iter().any(|kind| *kind as u8 == byte);
            assert_eq!(Kind::from_byte(byte).is_some(), known);
        }
        let mut bytes = Header::new(Kind::Ack, 0).encode();
        bytes[1] = 8;
        assert!(Header::decode(&bytes).is_err());
    }

    #[test]
    fn numbers_continue_where_their_low_bits_wrap() {
        assert_eq!(expand(0, 5), 5);
        assert_eq!(expand(0xffff_fffe, 3), 0x1_0000_0003);
        assert_eq!(expand(0x1_0000_0003, 0xffff_fffe), 0xffff_fffe);
    }
}
