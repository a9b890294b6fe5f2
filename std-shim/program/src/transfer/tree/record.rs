//! Records, which a sender of directories writes into the chunks of its ring.
//!
//! A chunk begins with the number of its bytes, 4 bytes, and holds whole records. Numbers are
//! big-endian. An entry is: mode (2 bytes), time of the last change (8 bytes of seconds since 1970
//! and 4 of nanoseconds), size (8), and the length (2) and bytes of its path.
//!
//! | record | first byte | then |
//! |---|---|---|
//! | a directory begins | 1 | entry |
//! | a file is offered | 2 | entry |
//! | a file begins | 3 | entry |
//! | data of that file | 4 | offset (8), length (4), the bytes |
//! | the file is complete | 5 | CRC-32 of its data (4) |
//! | a directory is complete | 6 | entry |
//! | everything is sent | 7 | |

use crate::job::FileName;
use polyrail::memory::OutOfRange;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes before the records of a chunk.
pub(super) const CHUNK_HEADER: usize = 4;
/// Bytes before the data in a record of data.
pub(super) const DATA_HEADER: usize = 1 + 8 + 4;
/// Length of a record of a complete file, in bytes.
pub(super) const END_BYTES: usize = 1 + 4;
/// Bytes of an entry before its path, with the first byte of its record.
const ENTRY_HEADER: usize = 1 + 2 + 8 + 4 + 8 + 2;
/// Length of the longest path in bytes, as PATH_MAX of Linux.
const MAX_PATH_BYTES: usize = 4096;
/// Length of the longest name in bytes, the limit of common file systems.
const MAX_NAME_BYTES: usize = 255;

/// A path below the directory that is written: names separated by `/`, none of them `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RelativePath(Vec<u8>);

impl RelativePath {
    /// Returns the path if it is valid.
    pub(super) fn new(bytes: Vec<u8>) -> Option<Self> {
        let is_name = |name: &[u8]| {
            let fits = (1..=MAX_NAME_BYTES).contains(&name.len());
            fits && name != b"." && name != b".." && !name.contains(&0)
        };
        let valid = bytes.len() <= MAX_PATH_BYTES && bytes.split(|b| *b == b'/').all(is_name);
        valid.then_some(Self(bytes))
    }

    /// Returns the path of `name` in the directory at this path, if that is valid.
    pub(super) fn join(&self, name: &OsStr) -> Option<Self> {
        Self::new([&self.0, &b"/"[..], name.as_bytes()].concat())
    }

    pub(super) fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns whether a server accepts the first name: it is not hidden, and has no control
    /// characters.
    pub(super) fn is_visible(&self) -> bool {
        let first = self.names().next().and_then(OsStr::to_str);
        first.and_then(FileName::new).is_some()
    }

    /// Returns the names, from the first to the last.
    pub(super) fn names(&self) -> impl Iterator<Item = &OsStr> {
        self.0.split(|b| *b == b'/').map(OsStr::from_bytes)
    }
}

/// Time of the last change of the contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time {
    pub(super) seconds: i64,
    /// Less than 10^9.
    pub(super) nanoseconds: u32,
}

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: RelativePath,
    /// Permissions, 0 to 0o777.
    pub(super) mode: u16,
    pub(super) modified: Time,
    /// Bytes of a file; 0 for a directory.
    pub(super) size: u64,
}

impl Entry {
    pub(super) fn new(path: RelativePath, metadata: &Metadata) -> Self {
        let modified =
            Time { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 };
        let size = if metadata.is_dir() { 0 } else { metadata.len() };
        Self { path, mode: (metadata.mode() & 0o777) as u16, modified, size }
    }
}

/// A record, without the bytes of its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Enter(Entry),
    Offer(Entry),
    File(Entry),
    Data { offset: u64, length: u32 },
    End { crc32: u32 },
    Leave(Entry),
    Finish,
}

impl Record {
    const fn kind(&self) -> u8 {
        match self {
            Self::Enter(_) => 1,
            Self::Offer(_) => 2,
            Self::File(_) => 3,
            Self::Data { .. } => 4,
            Self::End { .. } => 5,
            Self::Leave(_) => 6,
            Self::Finish => 7,
        }
    }

    /// Returns the bytes of the record, without those of its data.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind()];
        match self {
            Self::Enter(entry) | Self::Offer(entry) | Self::File(entry) | Self::Leave(entry) => {
                let Entry { path, mode, modified, size } = entry;
                bytes.extend(mode.to_be_bytes());
                bytes.extend(modified.seconds.to_be_bytes());
                bytes.extend(modified.nanoseconds.to_be_bytes());
                bytes.extend(size.to_be_bytes());
                bytes.extend((path.0.len() as u16).to_be_bytes());
                bytes.extend(&path.0);
            }
            Self::Data { offset, length } => {
                bytes.extend(offset.to_be_bytes());
                bytes.extend(length.to_be_bytes());
            }
            Self::End { crc32 } => bytes.extend(crc32.to_be_bytes()),
            Self::Finish => {}
        }
        bytes
    }
}

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the first byte of a record is {0}, which is not a kind of record")]
    Kind(u8),
    #[error("a record exceeds its chunk")]
    Short,
    #[error("a path is absolute or too long, or has a name that is empty, . or ..")]
    Path,
    #[error("an entry has a mode, time or size that is out of range")]
    Number,
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

/// Reads records from `at` to `end` of a buffer, of which `read` copies bytes. The other side can
/// change the buffer at any time, so each byte is copied once.
pub(super) struct Reader<F> {
    pub(super) at: usize,
    pub(super) end: usize,
    pub(super) read: F,
}

impl<F: Fn(usize, &mut [u8]) -> Result<(), OutOfRange>> Reader<F> {
    fn copy<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Malformed> {
        if self.end - self.at < bytes.len() {
            return Err(Malformed::Short);
        }
        (self.read)(self.at, bytes)?;
        self.at += bytes.len();
        Ok(())
    }

    fn entry(&mut self) -> Result<Entry, Malformed> {
        let mode = u16::from_be_bytes(self.copy()?);
        let seconds = i64::from_be_bytes(self.copy()?);
        let nanoseconds = u32::from_be_bytes(self.copy()?);
        let size = u64::from_be_bytes(self.copy()?);
        let mut path = vec![0; u16::from_be_bytes(self.copy()?).into()];
        self.fill(&mut path)?;
        // Offsets in files are signed. For futimens(2), larger numbers of nanoseconds have
        // other meanings.
        if mode > 0o777 || nanoseconds >= 1_000_000_000 || size > i64::MAX as u64 {
            return Err(Malformed::Number);
        }
        let path = RelativePath::new(path).ok_or(Malformed::Path)?;
        Ok(Entry { path, mode, modified: Time { seconds, nanoseconds }, size })
    }

    /// Returns the next record, and skips its data; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Malformed> {
        if self.at >= self.end {
            return Ok(None);
        }
        let [kind] = self.copy()?;
        let record = match kind {
            1 => Record::Enter(self.entry()?),
            2 => Record::Offer(self.entry()?),
            3 => Record::File(self.entry()?),
            4 => {
                let offset = u64::from_be_bytes(self.copy()?);
                let length = u32::from_be_bytes(self.copy()?);
                if self.end - self.at < length as usize {
                    return Err(Malformed::Short);
                }
                self.at += length as usize;
                Record::Data { offset, length }
            }
            5 => Record::End { crc32: u32::from_be_bytes(self.copy()?) },
            6 => Record::Leave(self.entry()?),
            7 => Record::Finish,
            kind => return Err(Malformed::Kind(kind)),
        };
        Ok(Some(record))
    }
}

/// Length of the longest record without its data, in bytes.
pub(super) const MAX_RECORD_BYTES: usize = ENTRY_HEADER + MAX_PATH_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use quickcheck::{Gen, QuickCheck};

    fn path(text: &str) -> RelativePath {
        RelativePath::new(text.into()).unwrap()
    }

    fn entry(text: &str) -> Entry {
        let modified = Time { seconds: -7, nanoseconds: 999_999_999 };
        Entry { path: path(text), mode: 0o750, modified, size: 1 << 40 }
    }

    fn reader(bytes: &[u8]) -> Reader<impl Fn(usize, &mut [u8]) -> Result<(), OutOfRange>> {
        let read = |at: usize, to: &mut [u8]| {
            to.copy_from_slice(&bytes[at..at + to.len()]);
            Ok(())
        };
        Reader { at: 0, end: bytes.len(), read }
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let data = Record::Data { offset: 1 << 33, length: 3 };
        let records = [
            Record::Enter(entry("a")),
            Record::Offer(entry("a/b.c")),
            Record::File(entry("a/.b")),
            data.clone(),
            Record::End { crc32: 0xdead_beef },
            Record::Leave(entry(&"x".repeat(255))),
            Record::Finish,
        ];
        let mut bytes = Vec::new();
        for record in &records {
            bytes.extend(record.encode());
            if *record == data {
                bytes.extend([1, 2, 3]);
            }
            assert!(record.encode().len() <= MAX_RECORD_BYTES);
        }
        let mut reader = reader(&bytes);
        let read: Vec<Record> = std::iter::from_fn(|| reader.next().unwrap()).collect();
        assert_eq!(read, records);
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        let long = "x/".repeat(2048) + "x";
        let name = "x".repeat(256);
        for bad in
            ["", "/", "/etc", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a\0", &long, &name]
        {
            assert_eq!(RelativePath::new(bad.into()), None, "{bad:?}");
            let mut bytes = Record::Offer(entry("a")).encode();
            bytes.truncate(ENTRY_HEADER - 2);
            bytes.extend((bad.len() as u16).to_be_bytes());
            bytes.extend(bad.as_bytes());
            assert_eq!(reader(&bytes).next(), Err(Malformed::Path), "{bad:?}");
        }
        for good in ["a", "a/b", ".a", "a/...", "a b/\u{fc}\n"] {
            assert_eq!(path(good).as_path(), Path::new(good));
        }
        assert_eq!(path("a").join("..".as_ref()), None);
        assert_eq!(path("a").join("b".as_ref()), Some(path("a/b")));
    }

    #[test]
    fn no_bytes_of_a_peer_make_the_reader_panic_or_read_further() {
        fn reads(bytes: Vec<u8>, kind: u8) -> bool {
            let bytes = [vec![kind % 8], bytes].concat();
            let mut reader = reader(&bytes);
            while let Ok(Some(_)) = reader.next() {}
            reader.at <= bytes.len()
        }
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(100, 1))
            .quickcheck(reads as fn(Vec<u8>, u8) -> bool);
        assert_eq!(reader(&[9]).next(), Err(Malformed::Kind(9)));
        assert_eq!(reader(&[4, 0]).next(), Err(Malformed::Short));
        let mut bytes = Record::Offer(entry("a")).encode();
        bytes[1] = 0xff;
        assert_eq!(reader(&bytes).next(), Err(Malformed::Number));
    }
}
