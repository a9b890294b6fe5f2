//! The requests to the NIC, in a form that fits an assertion.

use crate::rig::{LOCAL, REMOTE};
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest};

/// A fragment: where it lies in its request, and how it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Opcode.
    pub opcode: Opcode,
    /// First byte within the request.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// Flags.
    pub flags: SendFlags,
}

/// A signaled WRITE fragment.
pub const fn write(offset: u64, length: u32) -> Piece {
    Piece { opcode: Opcode::RdmaWrite, offset, length, flags: SendFlags::SIGNALED }
}

/// A fragment of a batch that is not its last: unsignaled.
pub const fn inner(piece: Piece) -> Piece {
    Piece { flags: SendFlags::empty(), ..piece }
}

/// The same fragment with another opcode.
pub const fn of(opcode: Opcode, piece: Piece) -> Piece {
    Piece { opcode, ..piece }
}

impl Piece {
    /// Reads a request whose buffers begin at [`LOCAL`] and [`REMOTE`].
    ///
    /// # Panics
    ///
    /// If its local and its remote part do not lie at the same offset.
    pub fn of(request: &SendRequest) -> Self {
        let offset = request.sge.addr() - LOCAL;
        assert_eq!(request.remote_addr - REMOTE, offset, "local and remote offset agree");
        let opcode = request.opcode;
        let flags = request.flags;
        Self { opcode, offset, length: request.sge.length(), flags }
    }
}

/// The fragments of each batch.
pub fn pieces(doorbells: &[Vec<SendRequest>]) -> Vec<Vec<Piece>> {
    doorbells.iter().map(|batch| batch.iter().map(Piece::of).collect()).collect()
}
