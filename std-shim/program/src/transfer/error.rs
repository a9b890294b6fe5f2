//! What can go wrong with a copy.

use crate::fault::UnknownRail;
use crate::job::{CopyPlanError, Sum};
use crate::session::{Failure, SessionError};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRole {
    /// The one that reads the file.
    Sender,
    /// The one that writes it.
    Receiver,
}

impl fmt::Display for CopyRole {
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
    #[error("reading {length} bytes at offset {position}")]
    Read {
        /// Where, in bytes from the file's start.
        position: u64,
        /// Number of bytes.
        length: u32,
        /// Why.
        source: io::Error,
    },
    /// The file ended early.
    #[error("it ends after {found} bytes, but had {expected} when the copy began")]
    Shrunk {
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The file grew, or it is one that does not report its length.
    #[error("it has more than the {expected} bytes that it had when the copy began")]
    Grew {
        /// Bytes expected.
        expected: u64,
    },
    /// The file changed, though not its length.
    #[error("it changed while it was copied: its {what} was {before}, and is now {after}")]
    Changed {
        /// The attribute that changed.
        what: &'static str,
        /// Its value when the copy began; times in seconds since 1970.
        before: String,
        /// Its value at the end.
        after: String,
    },
    /// The file could not be written.
    #[error("writing {length} bytes at offset {position}")]
    Write {
        /// Where, in bytes from the file's start.
        position: u64,
        /// Number of bytes.
        length: u32,
        /// Why.
        source: io::Error,
    },
    /// The file could not take its name, or reach the disk.
    #[error("completing it")]
    Finish(#[source] io::Error),
    /// What arrived differs from what was sent.
    #[error("checksums differ: {} bytes with CRC-32 {:08x} were sent, {} bytes with {:08x} arrived", sent.bytes, sent.crc32, received.bytes, received.crc32)]
    Checksum {
        /// The sender's.
        sent: Sum,
        /// The receiver's.
        received: Sum,
    },
    /// The two sides could not work together.
    #[error(transparent)]
    Session(SessionError),
}

impl<E: Into<SessionError>> From<E> for TransferError {
    fn from(error: E) -> Self {
        Self::Session(error.into())
    }
}

impl Failure for TransferError {
    fn is_echo(&self) -> bool {
        matches!(self, Self::Session(error) if error.is_echo())
    }
}

impl Failure for CopyError {
    fn is_echo(&self) -> bool {
        matches!(self, Self::Transfer { source, .. } if source.is_echo())
    }
}

impl CopyError {
    /// Returns what a side's failure means for the files.
    pub(super) fn of_side(
        role: CopyRole,
        error: TransferError,
        source: &Path,
        destination: &Path,
    ) -> Self {
        let cause = Box::new(error);
        match *cause {
            TransferError::Read { .. }
            | TransferError::Shrunk { .. }
            | TransferError::Grew { .. }
            | TransferError::Changed { .. } => {
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
    #[error("cannot read {}", path.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The source is not a regular file.
    #[error("cannot read {}: it is {what}, not a regular file", path.display())]
    SourceKind {
        /// The source.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The destination could not be created, replaced or examined.
    #[error("cannot write {}", path.display())]
    Destination {
        /// The destination.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The destination is not something that a copy can become.
    #[error("cannot write {}: it is {what}", path.display())]
    DestinationKind {
        /// The destination.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The destination is there, and must not be replaced.
    #[error("{} is there, and may not be replaced", path.display())]
    Exists {
        /// The destination.
        path: PathBuf,
    },
    /// The file is longer than the receiver takes.
    #[error("a file of {bytes} bytes, but the limit here is {limit}")]
    TooLong {
        /// Its length in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Source and destination are one file.
    #[error("{} and {} are the same file", from.display(), to.display())]
    SameFile {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
    },
    /// The receiver has no destination for files.
    #[error(
        "this server accepts no files, only measurements: it was started without a destination"
    )]
    NoDestination,
    /// The copy's name is not one that a receiver would accept.
    #[error("{}: a receiver does not accept this name; give the copy another one", path.display())]
    Name {
        /// The name.
        path: PathBuf,
    },
    /// Options that do not go together.
    #[error(transparent)]
    Plan(CopyPlanError),
    /// A fault was requested on a rail that does not exist.
    #[error(transparent)]
    Fault(UnknownRail),
    /// The source could not be read to its end.
    #[error("cannot read {}", path.display())]
    Reading {
        /// The source.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<TransferError>,
    },
    /// The destination could not be written to its end.
    #[error("cannot write {}", path.display())]
    Writing {
        /// The destination.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: Box<TransferError>,
    },
    /// One side failed.
    #[error("{role}")]
    Transfer {
        /// Which side.
        role: CopyRole,
        /// Why.
        #[source]
        source: Box<TransferError>,
    },
}
