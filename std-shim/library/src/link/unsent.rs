//! Bytes that the other side has not taken yet.

use std::io::{self, ErrorKind, Write};

/// What was offered to a stream that does not take it now.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    bytes: Vec<u8>,
    taken: usize,
}

impl Unsent {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Behind what waits already.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// It is not to be sent any more.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.taken = 0;
    }

    /// Writes what the stream takes now; whether nothing is left.
    pub(super) fn write_to(&mut self, stream: &mut dyn Write) -> io::Result<bool> {
        while self.taken < self.bytes.len() {
            match stream.write(&self.bytes[self.taken..]) {
                Ok(written) => self.taken += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.clear();
        Ok(true)
    }
}
