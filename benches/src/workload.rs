//! The work of every contender: the messages, their geometry, and the record of what came back.

use polyrail_core::hardware::CqId;
use polyrail_core::verbs::{
    DeviceId, DeviceKeys, Imm, LocalBuffer, Opcode, SendFlags, SendRequest, Sge, WcStatus,
};
use std::hint::black_box;

/// Requests of a burst: posted one after the other, then polled until all are reported.
pub const OUTSTANDING: usize = 32;

/// Bytes of a fragment.
pub const FRAGMENT: u32 = 64 << 10;

/// Fragments of a large request: 1 MiB.
pub const FRAGMENTS: u32 = 16;

/// Buffers of a request with a list.
pub const BUFFERS: u32 = 4;

/// Requests that are posted with one call.
pub const TOGETHER: usize = 16;

/// Bytes of the requests of the one-rail rows.
pub const SMALL: u32 = 4 << 10;

/// Rails of the many-rail rows.
pub const RAILS: usize = 4;

/// Requests in flight on a rail: `OUTSTANDING` large requests, evenly spread, fit exactly.
pub const DEPTH: usize = 128;

/// Completions taken in one poll.
pub const POLL: usize = 32;

/// The device that all queue pairs live on. One device is the usual case of the baseline.
pub const DEVICE: DeviceId = DeviceId(0);

/// The completion queue of all of them.
pub const CQ: CqId = CqId(0);

/// Keys of every message on [`DEVICE`].
pub const KEYS: DeviceKeys = DeviceKeys { device: DEVICE, lkey: 0x1111, rkey: 0x2222 };

/// A physical request that does nothing, to be filled in.
pub const BLANK_REQUEST: SendRequest = SendRequest {
    wr_id: 0,
    opcode: Opcode::RdmaWrite,
    flags: SendFlags::empty(),
    imm: Imm::from_number(0),
    sge: Sge::EMPTY,
    remote_addr: 0,
    rkey: 0,
    compare_add: 0,
    swap: 0,
};

/// One buffer to be written to the peer.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The caller's name for the request.
    pub wr_id: u64,
    /// The bytes here.
    pub local: LocalBuffer,
    /// The bytes there.
    pub remote_addr: u64,
}

impl Message {
    /// The immediate that goes with it.
    #[inline]
    pub const fn imm(&self) -> u32 {
        self.wr_id as u32
    }

    /// Returns the bytes at the peer.
    pub const fn target(&self) -> LocalBuffer {
        // SAFETY: the null device, on which alone messages are posted, does not follow addresses.
        unsafe { LocalBuffer::new(self.remote_addr, self.local.length()) }
    }

    /// `length` bytes from `offset` on, without the bounds check that [`LocalBuffer::slice`] makes:
    /// what a raw poster writes.
    #[inline]
    pub const fn part(&self, offset: u32, length: u32) -> LocalBuffer {
        debug_assert!(offset as u64 + length as u64 <= self.local.length() as u64);
        // SAFETY: the null device, on which alone messages are posted, does not follow addresses.
        unsafe { LocalBuffer::new(self.local.addr() + offset as u64, length) }
    }
}

/// The messages of a burst, each `length` bytes, side by side. The compiler does not know their
/// number.
pub fn messages(length: u32) -> Vec<Message> {
    let message = |at| {
        let offset = at as u64 * u64::from(length);
        // SAFETY: the null device, on which alone messages are posted, does not follow addresses.
        let local = unsafe { LocalBuffer::new(0x10_0000_0000 + offset, length) };
        Message { wr_id: 1000 + at as u64, local, remote_addr: 0x7f_0000_0000 + offset }
    };
    black_box((0..OUTSTANDING).map(message).collect())
}

/// The keys of the memory that all messages lie in, for each device.
pub fn keys() -> Vec<DeviceKeys> {
    black_box(vec![KEYS])
}

/// What came back. Every contender reads `wr_id` and `status` of every report, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// Completions. Narrower than the other field: otherwise a compiler would make a vector of the
    /// two where they are kept in memory, and spend more on that than on the sums.
    count: u32,
    /// Sum of their `wr_id`s, so that no completion can be left unread.
    pub wr_ids: u64,
}

impl Reported {
    /// Completions so far.
    #[inline]
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// Takes one completion into account.
    ///
    /// # Panics
    ///
    /// If it failed: nothing fails on the null device.
    #[inline]
    pub fn note(&mut self, wr_id: u64, status: WcStatus) {
        check(wr_id, status);
        self.count += 1;
        self.wr_ids = self.wr_ids.wrapping_add(wr_id);
    }
}

/// Checks the status of a completion.
///
/// # Panics
///
/// If it failed.
#[inline]
pub fn check(wr_id: u64, status: WcStatus) {
    if !status.is_success() {
        failed(wr_id, status);
    }
}

#[cold]
fn failed(wr_id: u64, status: WcStatus) -> ! {
    panic!("request {wr_id}: {status}")
}
