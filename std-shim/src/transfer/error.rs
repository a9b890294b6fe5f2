//! What can go wrong with a copy.

use super::plan::PlanError;
use crate::DeviceCountMismatch;
use crate::backend::DeviceError;
use crate::endpoint::{BuildError, ConnectError, EndpointError};
use crate::exchange::{LinkError, Reason, Sum};
use crate::memory::OutOfRange;
use polyrail_core::virtual_qp::PostError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The one that reads the file.
    Sender,
    /// The one that writes it.
    Receiver,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        })
    }
}

/// Why one side could not do its part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The file could not be read.
    #[error("reading {length} bytes at offset {position}: {source}")]
    Read {
        /// Where, in bytes from the file's start.
        position: u64,
        /// How many bytes.
        length: u32,
        /// Why.
        source: io::Error,
    },
    /// The file ended early.
    #[error("it ends after {found} bytes, {expected} were there when the copy began")]
    Shrunk {
        /// Bytes that were found.
        found: u64,
        /// Bytes that were expected.
        expected: u64,
    },
    /// The file grew, or it is one of those that do not say how long they are.
    #[error("there is more than the {expected} bytes that it had when the copy began")]
    Grew {
        /// Bytes that were expected.
        expected: u64,
    },
    /// The file could not be written.
    #[error("writing {length} bytes at offset {position}: {source}")]
    Write {
        /// Where, in bytes from the file's start.
        position: u64,
        /// How many bytes.
        length: u32,
        /// Why.
        source: io::Error,
    },
    /// The file could not take its name, or reach the disk.
    #[error("completing it: {0}")]
    Finish(#[source] io::Error),
    /// The sender wants more memory than it may have.
    #[error(
        "the sender asks for {bytes} bytes of memory here, where it may have {limit}: a smaller \
         window or message size takes less"
    )]
    TooMuchMemory {
        /// Bytes that its plan takes.
        bytes: u64,
        /// Bytes that it may have.
        limit: u64,
    },
    /// Nothing happened.
    #[error("nothing happened for {waited:?}")]
    Idle {
        /// For how long.
        waited: Duration,
    },
    /// The endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The endpoint refused a request that it should have taken.
    #[error("posting: {0}")]
    Post(#[from] PostError),
    /// The endpoint could not be made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The two endpoints could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A device could not be opened, or refused to register a buffer.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The peer's buffer does not go with ours.
    #[error(transparent)]
    Devices(#[from] DeviceCountMismatch),
    /// A buffer is too short: the peer's, as it told us.
    #[error("the peer's buffer is too short: {0}")]
    Range(#[from] OutOfRange),
    /// The peer did what the protocol does not allow.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// What arrived is not what was sent.
    #[error("checksums differ: {} bytes with CRC-32 {:08x} were sent, {} bytes with {:08x} arrived", sent.bytes, sent.crc32, received.bytes, received.crc32)]
    Checksum {
        /// The sender's.
        sent: Sum,
        /// The receiver's.
        received: Sum,
    },
    /// The peer gave up, for this reason.
    #[error("the other side gave up: {0}")]
    Peer(Reason),
    /// The other side cannot be heard or understood.
    #[error(transparent)]
    Link(LinkError),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl From<LinkError> for TransferError {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::GaveUp { reason } => Self::Peer(reason),
            error => Self::Link(error),
        }
    }
}

impl TransferError {
    /// Whether it only says that the other side has the reason.
    pub(super) fn is_echo(&self) -> bool {
        matches!(self, Self::Peer(_) | Self::Link(LinkError::HungUp { .. }))
    }
}

impl CopyError {
    /// What a side's failure means for the files.
    pub(super) fn of_side(
        role: Role,
        error: TransferError,
        source: &Path,
        destination: &Path,
    ) -> Self {
        let cause = Box::new(error);
        match *cause {
            TransferError::Read { .. }
            | TransferError::Shrunk { .. }
            | TransferError::Grew { .. } => {
                Self::Reading { path: source.to_owned(), source: cause }
            }
            TransferError::Write { .. } | TransferError::Finish(_) => {
                Self::Writing { path: destination.to_owned(), source: cause }
            }
            _ => Self::Transfer { role, source: cause },
        }
    }
}

/// Why a file was not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source could not be opened or examined.
    #[error("cannot read {}: {source}", path.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The source is no regular file.
    #[error("cannot read {}: it is {what}, not a regular file", path.display())]
    SourceKind {
        /// The source.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The destination could not be created, replaced or examined.
    #[error("cannot write {}: {source}", path.display())]
    Destination {
        /// The destination.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The destination is nothing that a copy can become.
    #[error("cannot write {}: it is {what}", path.display())]
    DestinationKind {
        /// The destination.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Source and destination are one file.
    #[error("{} and {} are the same file", from.display(), to.display())]
    SameFile {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
    },
    /// The name that the copy is to get is none that a receiver would take.
    #[error("{}: a receiver takes no such name; give the copy another one", path.display())]
    Name {
        /// The name.
        path: PathBuf,
    },
    /// Options that do not go together.
    #[error(transparent)]
    Plan(PlanError),
    /// A fault was asked for on a rail that is not there.
    #[error("a fault on rail {rail}, where rails are 0 to {last}")]
    Fault {
        /// The rail.
        rail: usize,
        /// The last rail that is there.
        last: usize,
    },
    /// The source could not be read to its end.
    #[error("cannot read {}: {source}", path.display())]
    Reading {
        /// The source.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<TransferError>,
    },
    /// The destination could not be written to its end.
    #[error("cannot write {}: {source}", path.display())]
    Writing {
        /// The destination.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<TransferError>,
    },
    /// One side failed.
    #[error("{role}: {source}")]
    Transfer {
        /// Which.
        role: Role,
        /// Why.
        #[source]
        source: Box<TransferError>,
    },
}
