//! The code that both sides of a copy of directories share: meeting, credits, results, failures.

use crate::job::{Hello, Job, JobOutcome, Message, TreeSum};
use crate::session::{Failure, SessionError};
use crate::transfer::error::{CopyError, CopyRole, TransferError};
use crate::transfer::side::Side;
use polyrail::backend::Domain;
use polyrail::endpoint::RailReport;
use polyrail::memory::{OutOfRange, RegisteredBuffer};
use std::sync::atomic::{AtomicU64, Ordering};

/// Most files that one chunk offers.
pub(super) const MAX_OFFERS: usize = 1024;
/// Bytes of a credit before the answers to its chunk's offers.
const CREDIT_HEADER: usize = 8;
/// Distance between credits in bytes, enough for the answers to all offers of a chunk.
pub(super) const CREDIT_STRIDE: usize = 256;
/// Credits in each buffer: twice as many as can be in flight, so that a credit is not overwritten
/// before it was read.
pub(super) const CREDIT_SLOTS: usize = 256;

/// Returns the offset of a chunk's credit in bytes.
pub(super) const fn credit_slot(chunk: u64) -> usize {
    (chunk % CREDIT_SLOTS as u64) as usize * CREDIT_STRIDE
}

/// Returns the bytes of a credit: the number of chunks so far, and one bit for each file that was
/// offered, which is set if the file has to be sent.
pub(super) fn credit(chunks: u64, wanted: &[bool]) -> Vec<u8> {
    let mut bytes = chunks.to_be_bytes().to_vec();
    bytes.resize(CREDIT_HEADER + wanted.len().div_ceil(8), 0);
    for (place, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
        bytes[CREDIT_HEADER + place / 8] |= 1 << (place % 8);
    }
    bytes
}

/// Reads the answers to this number of offers from a credit at `slot`.
pub(super) fn answers<R>(
    credits: &RegisteredBuffer<R>,
    slot: usize,
    offers: usize,
) -> Result<impl Iterator<Item = bool> + use<R>, OutOfRange> {
    let mut bits = vec![0; offers.div_ceil(8)];
    credits.read_at(slot + CREDIT_HEADER, &mut bits)?;
    Ok((0..offers).map(move |place| bits[place / 8] & (1 << (place % 8)) != 0))
}

/// How a side meets the other one.
#[derive(Debug)]
pub(super) enum Opening<'a> {
    /// It asks for this job.
    Ask(Job),
    /// It answers this hello of the side that asked.
    Answer(&'a Hello),
}

impl Opening<'_> {
    /// Exchanges hellos, and connects both endpoints. The other side writes into `buffer`.
    pub(super) fn meet<D: Domain>(
        self,
        side: &mut Side<'_, D>,
        buffer: &RegisteredBuffer<D::Region>,
        receives: u32,
    ) -> Result<Hello, TransferError> {
        let mut hello = side.hello(buffer);
        let peer = match self {
            Self::Ask(job) => {
                hello.purpose = Some(job);
                side.tell(&Message::Hello(hello))?;
                let peer = side.expect_hello()?;
                if let Some(purpose) = &peer.purpose {
                    return Err(SessionError::both_ask(purpose).into());
                }
                peer
            }
            Self::Answer(peer) => {
                side.tell(&Message::Hello(hello))?;
                peer.clone()
            }
        };
        side.meet(&peer, receives)?;
        Ok(peer)
    }
}

/// Counts that threads watch, where this side keeps them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter<'a> {
    /// Bytes of the files that were offered so far.
    pub(super) total: Option<&'a AtomicU64>,
    /// Bytes of files that were sent, or that the receiver had already.
    pub(super) done: Option<&'a AtomicU64>,
}

impl Meter<'_> {
    pub(super) fn expect(&self, bytes: u64) {
        self.total.inspect(|total| _ = total.fetch_add(bytes, Ordering::Relaxed));
    }

    pub(super) fn done(&self, bytes: u64) {
        self.done.inspect(|done| _ = done.fetch_add(bytes, Ordering::Relaxed));
    }
}

/// The result of a side.
#[derive(Debug)]
pub(super) struct SideEnd {
    pub(super) sum: TreeSum,
    pub(super) rails: Vec<RailReport>,
    /// Chunks that were sent.
    pub(super) chunks: u64,
}

/// Returns the counts in the final report of the other side.
pub(super) fn tree_sum(outcome: JobOutcome) -> Result<TreeSum, TransferError> {
    Ok(outcome.tree().ok_or_else(SessionError::other_outcome)?)
}

/// Why a side failed: because of a file, or of the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Transfer(TransferError),
}

impl<E: Into<TransferError>> From<E> for TreeError {
    fn from(error: E) -> Self {
        Self::Transfer(error.into())
    }
}

impl Failure for TreeError {
    fn is_echo(&self) -> bool {
        match self {
            Self::Copy(error) => error.is_echo(),
            Self::Transfer(error) => error.is_echo(),
        }
    }
}

impl TreeError {
    /// Returns the error of a copy.
    pub(super) fn of(self, role: CopyRole) -> CopyError {
        match self {
            Self::Copy(error) => error,
            Self::Transfer(error) => CopyError::transfer(role, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::software_hosts;
    use polyrail::verbs::AccessFlags;

    #[test]
    fn a_credit_carries_an_answer_to_each_offer() {
        let (here, _) = software_hosts(1).unwrap();
        let credits = CREDIT_SLOTS * CREDIT_STRIDE;
        let credits =
            RegisteredBuffer::new(credits, AccessFlags::empty(), &here.domains()).unwrap();
        for offers in [0, 1, 8, 9, MAX_OFFERS] {
            let wanted: Vec<bool> = (0..offers).map(|offer| offer % 3 == 1).collect();
            let bytes = credit(300, &wanted);
            assert!(bytes.len() <= CREDIT_STRIDE);
            let slot = credit_slot(299);
            credits.write_at(slot, &bytes).unwrap();
            assert_eq!(answers(&credits, slot, offers).unwrap().collect::<Vec<_>>(), wanted);
        }
    }
}
