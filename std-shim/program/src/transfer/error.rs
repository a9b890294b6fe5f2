//! Errors of a copy.

use crate::fault::UnknownRail;
use crate::job::{CopyPlanError, Sum, TreeSum};
use crate::session::{Failure, SessionError};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One of the two sides of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRole {
    /// The side that reads the file.
    Sender,
    /// The side that writes the file.
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

/// Why one side of a copy failed.
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
    #[error("the file shrank during the copy, from {expected} bytes to at most {found}")]
    Shrunk {
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The file grew, or does not report its length.
    #[error(
        "the file is longer than the {expected} bytes that it reported: it grew during the copy, or does not report its length"
    )]
    Grew {
        /// Bytes expected.
        expected: u64,
    },
    /// The file changed without changing its length. Changes through a shared mapping are not
    /// always found.
    #[error("the file changed during the copy: its {what} was {before}, and is now {after}")]
    Changed {
        /// The attribute that changed.
        what: &'static str,
        /// Value of the attribute when the copy began; times are in seconds since 1970.
        before: String,
        /// Value of the attribute at the end.
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
    /// The file could not be renamed or flushed to disk.
    #[error("flushing the file to disk, or renaming it")]
    Finish(#[source] io::Error),
    /// The bytes that arrived differ from those that were sent.
    #[error("checksums differ: {} bytes with CRC-32 {:08x} were sent, {} bytes with {:08x} arrived", sent.bytes, sent.crc32, received.bytes, received.crc32)]
    Checksum {
        /// The sender's.
        sent: Sum,
        /// The receiver's.
        received: Sum,
    },
    /// The two sides counted different files or bytes.
    #[error("counts differ: the sender has {sent}, the receiver {received}")]
    Counts {
        /// The sender's.
        sent: TreeSum,
        /// The receiver's.
        received: TreeSum,
    },
    /// The connection of the two sides failed.
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

/// A failure of the receiver of a file as it is reported to the other side, which does not know
/// where the file is: with the path, if the file could not be written.
#[derive(Debug)]
pub(super) struct Reported<'a> {
    pub(super) error: &'a TransferError,
    pub(super) path: Option<&'a Path>,
}

impl fmt::Display for Reported<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path
            && self.error.is_of_destination()
        {
            write!(f, "cannot write {}: ", path.display())?;
        }
        self.error.fmt(f)
    }
}

impl Error for Reported<'_> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

impl Failure for Reported<'_> {
    fn is_echo(&self) -> bool {
        self.error.is_echo()
    }
}

impl TransferError {
    /// Returns whether the file could not be written.
    const fn is_of_destination(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Finish(_))
    }
}

impl Failure for CopyError {
    fn is_echo(&self) -> bool {
        matches!(self, Self::Transfer { source, .. } if source.is_echo())
    }
}

impl CopyError {
    /// The failure of a side.
    pub(super) fn transfer(role: CopyRole, error: impl Into<TransferError>) -> Self {
        Self::Transfer { role, source: Box::new(error.into()) }
    }

    /// The failure of a side that is about a file in a directory.
    pub(super) fn of_file(path: &Path, role: CopyRole, error: TransferError) -> Self {
        let source = Box::new(Self::transfer(role, error));
        Self::InDirectory { path: path.to_owned(), source }
    }

    /// Converts the failure of a side, and names the file if it is about one.
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
            _ if cause.is_of_destination() => {
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
    /// The destination is of a kind that a copy cannot replace.
    #[error("cannot write {}: it is {what}", path.display())]
    DestinationKind {
        /// The destination.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The destination exists, and must not be replaced.
    #[error("{} exists, and --no-overwrite forbids replacing it", path.display())]
    Exists {
        /// The destination.
        path: PathBuf,
    },
    /// The file is longer than the receiver accepts.
    #[error(
        "the file has {bytes} bytes, but the server accepts files of up to {limit} bytes (--max-file-size)"
    )]
    TooLong {
        /// Length of the file in bytes.
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
    /// A file in a directory is the reason.
    #[error("{}", path.display())]
    InDirectory {
        /// Path of the file in the destination.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<CopyError>,
    },
    /// Several sources have one name, and would replace each other.
    #[error("{} and {} would have the same name in the destination", first.display(), second.display())]
    SameName {
        /// A source.
        first: PathBuf,
        /// Another one.
        second: PathBuf,
    },
    /// A directory would be copied into itself.
    #[error("cannot copy the directory {} into itself, at {}", from.display(), to.display())]
    IntoItself {
        /// The directory.
        from: PathBuf,
        /// The destination, inside of it.
        to: PathBuf,
    },
    /// A source has no name that its copy could have.
    #[error("{} has no name that its copy could have", path.display())]
    NoName {
        /// The source.
        path: PathBuf,
    },
    /// The path of a file in a directory is too long.
    #[error("the path of {} is too long for a copy, which allows 4096 bytes", path.display())]
    LongPath {
        /// The file.
        path: PathBuf,
    },
    /// Directories, or several sources, were to be written to something that is not a directory.
    #[error("cannot write into {}: it is {what}, not a directory", path.display())]
    NotADirectory {
        /// The destination.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A path that a peer may not ask for.
    #[error(
        "a server would refuse the path {:?}: choose a path in the directory that it serves, without . \
         and .., whose first name does not begin with a dot",
        path.display()
    )]
    PulledPath {
        /// The path.
        path: PathBuf,
    },
    /// The server's files may not be read.
    #[error("this server does not let peers read files: start it with --readable and a directory")]
    NotReadable,
    /// The receiver has no destination for files.
    #[error(
        "this server accepts no files, only measurements: start it with a destination, as in \
         `polyrail serve /data`"
    )]
    NoDestination,
    /// The name of the copy is one that receivers refuse.
    #[error(
        "a receiver would refuse the name {:?}: choose a name of up to 255 bytes of UTF-8, without / \
         and control characters, that does not begin with a dot",
        path.display()
    )]
    Name {
        /// The name.
        path: PathBuf,
    },
    /// An option is out of range.
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
