//! What a caller keeps of a message under way.

/// One buffer of a message that was given to [`isend`](super::Sender::isend), until [`test`](super::Sender::test) says that it is done.
///
/// Numbers of messages are never used again, so a handle that is kept too long is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the buffer is the connection's until the request was tested"]
pub struct SendHandle {
    pub(super) number: u64,
    pub(super) buffer: u8,
}

impl SendHandle {
    /// Number of the message: 1 for a connection's first.
    pub const fn number(&self) -> u64 {
        self.number
    }
}
