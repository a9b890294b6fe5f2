//! The state of the read half of a connection: what has come, and where it goes.

use crate::wire::{Header, Kind, Malformed};
use polyrail_core::verbs::{RecvRequest, Sge};
use polyrail_nic_parts::lists::Listed;
use polyrail_nic_parts::memory::DomainId;

/// Bytes of the buffer: small frames of one system call.
pub(crate) const BUFFER: usize = 64 << 10;

/// Where the payload of a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nowhere.
    Discard,
    /// The memory that the frame names.
    Remote,
    /// The buffers of the receive that the request has taken.
    Receive,
    /// The buffers of the request at this position, which fetches.
    Fetch(u64),
    /// Operands of an atomic, or its old value.
    Operands,
}

impl Target {
    pub(crate) const fn is_memory(self) -> bool {
        matches!(self, Self::Remote | Self::Receive | Self::Fetch(_))
    }
}

/// A receive that a request has taken and not completed.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) request: Listed<RecvRequest>,
    /// Its buffers.
    pub(crate) list: Vec<Sge>,
    /// The domain in which they are registered.
    pub(crate) domain: DomainId,
    /// Slots of the receive queue that are free when its completion is polled.
    pub(crate) releases: u64,
}

/// A frame whose payload is being placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) header: Header,
    pub(crate) target: Target,
    pub(crate) placed: u32,
}

impl Current {
    pub(crate) const fn rest(&self) -> u32 {
        self.header.length - self.placed
    }
}

/// A request of which some frames have come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partial {
    pub(crate) kind: Kind,
    pub(crate) number: u32,
    pub(crate) total: u32,
    pub(crate) placed: u32,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

/// Who holds it reads the socket.
#[derive(Debug)]
pub(crate) struct ReadHalf {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) current: Option<Current>,
    pub(crate) partial: Option<Partial>,
    /// Memory for the receive that [`partial`](Self::partial) has taken.
    pub(crate) taken: Taken,
    pub(crate) has_taken: bool,
    /// The operands or the old value of an atomic, as they come.
    pub(crate) operands: [u8; 16],
    pub(crate) mode: Mode,
    /// The newest frame with data was long.
    pub(crate) expects_long: bool,
    /// The newest read filled all its buffers.
    pub(crate) may_be_more: bool,
    pub(crate) discarded: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Working,
    /// A request was refused. Input is discarded until the peer ends the connection, because a
    /// socket that is closed with unread bytes resets the connection, and the peer would lose the
    /// refusal.
    Discarding,
    Ended,
}

/// Why frames cannot be taken any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The peer broke the protocol.
    Malformed(Malformed),
    /// The peer's request was refused; the queues know.
    Refused,
    /// Memory into which the rest of a frame goes is not registered any more.
    Vanished(u32),
    /// An acknowledgement has come before its request counts as transmitted.
    Ahead,
}

impl From<Malformed> for Stop {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl ReadHalf {
    pub(crate) fn new(max_recv_sge: u32) -> Self {
        let empty = RecvRequest { wr_id: 0, sge: Sge::EMPTY };
        Self {
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            current: None,
            partial: None,
            taken: Taken {
                request: Listed::recv(empty),
                list: Vec::with_capacity(max_recv_sge as usize),
                domain: DomainId(0),
                releases: 0,
            },
            has_taken: false,
            operands: [0; 16],
            mode: Mode::Working,
            expects_long: false,
            may_be_more: false,
            discarded: 0,
        }
    }

    /// Nothing more is placed.
    pub(crate) fn end(&mut self) {
        self.mode = Mode::Ended;
        self.current = None;
        self.partial = None;
        (self.start, self.end) = (0, 0);
    }

    /// Everything that still comes is discarded.
    pub(crate) fn discard(&mut self) {
        self.end();
        self.mode = Mode::Discarding;
    }

    pub(crate) fn is_discarding(&self) -> bool {
        self.mode == Mode::Discarding
    }

    /// Returns where the payload of the current frame goes.
    pub(crate) fn target(&self) -> Option<Target> {
        self.current.map(|current| current.target)
    }

    pub(crate) fn buffered(&self) -> usize {
        self.end - self.start
    }
}
