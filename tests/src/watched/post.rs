//! A request to be posted, and the bytes that it is of.

use super::fragment::STRIDE;
use crate::rig::{KEYS, LOCAL, REMOTE};
use polyrail_core::verbs::{LocalBuffer, LocalPart, Opcode, ReportOrder, SendFlags, SendWr};

/// A request to be posted.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// What to do.
    pub opcode: Opcode,
    /// Bytes.
    pub length: u32,
    /// How.
    pub flags: SendFlags,
    /// When it is reported.
    pub report_order: Option<ReportOrder>,
    /// Its local bytes are a list of buffers, if that is not 0: which of [`LISTS`](Self::LISTS).
    /// For posts on their own.
    pub list: u8,
}

impl Post {
    /// Ways to make a list.
    pub const LISTS: u8 = 5;

    /// The buffers of its list, which lie one behind the other: some with one byte, or none.
    pub(super) fn parts(self, whole: LocalBuffer) -> Vec<LocalPart<'static>> {
        let length = self.length;
        let borders = match self.list {
            1 => vec![1, 1, 2],
            2 => vec![0, length / 2, length / 2],
            3 => vec![128, 129, 256],
            4 => vec![length / 3, length - 1],
            _ => vec![1, 2, 3, 4, 5, 6, 7],
        };
        let mut from = 0;
        let part = |to: u32| {
            let to = to.clamp(from, length);
            let local = whole.slice(from, to - from).expect("within");
            from = to;
            LocalPart { local, keys: &KEYS }
        };
        borders.into_iter().chain([length]).map(part).collect()
    }

    /// The request of this number, in its own address space.
    pub(super) fn wr(self, id: u64) -> SendWr<'static> {
        let Self { opcode, length, flags, report_order, list: _ } = self;
        // SAFETY: the scripted NIC never touches memory.
        let local = unsafe { LocalBuffer::new(LOCAL + id * STRIDE, length) };
        let wr = SendWr::write(id, local, REMOTE + id * STRIDE, &KEYS);
        SendWr { opcode, imm: id as u32, report_order, ..wr.with_flags(flags) }
    }
}
