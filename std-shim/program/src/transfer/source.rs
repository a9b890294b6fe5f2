//! The file to read, which must not change during the copy.
//!
//! The checks compare the file's metadata from before and after. They do not find writes through a
//! shared mapping (`mmap(2)` with `MAP_SHARED`): the kernel updates the times of the file only for
//! the first write to a page since the page was last written back, and not at all on tmpfs. Nor do
//! they find writes within one step of the clock for files, up to 10 ms. The checksums of both ends
//! agree in these cases, because the sender computes its checksum from the bytes that it sent.

use super::destination;
use super::error::{CopyError, TransferError};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use std::fmt::Display;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file to read, and its metadata from before its first byte was read.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    metadata: Metadata,
}

impl Source {
    /// Opens a regular file, and checks that it can be read.
    pub(super) fn open(path: &Path) -> Result<Self, CopyError> {
        Self::open_as(path, true)
    }

    /// Opens a regular file; follows a symbolic link only if `follow` is set.
    pub(super) fn open_as(path: &Path, follow: bool) -> Result<Self, CopyError> {
        let failed = |source| CopyError::Source { path: path.to_owned(), source };
        // Before opening the file, since opening a pipe would wait for its other end.
        let metadata = if follow { fs::metadata(path) } else { path.symlink_metadata() };
        let metadata = metadata.map_err(failed)?;
        if !metadata.is_file() {
            let what = destination::kind(&metadata);
            return Err(CopyError::SourceKind { path: path.to_owned(), what });
        }
        let flags = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
        let source = Self::new(opened.map_err(failed)?).map_err(failed)?;
        // A file that cannot be read should fail before the destination is created.
        source.file.read_at(&mut [0], 0).map_err(failed)?;
        Ok(source)
    }

    /// Uses a file that is already open.
    pub(super) fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { file, metadata })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the metadata from before the first byte was read.
    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns begin and end of the next data from `at` on, which is before the end of the file.
    /// Between data are holes, which read as zeros.
    pub(super) fn data_from(&self, at: u64, size: u64) -> (u64, u64) {
        let (begin, end) = match seek(&self.file, SeekFrom::Data(at)) {
            Ok(begin) => (begin, seek(&self.file, SeekFrom::Hole(begin)).unwrap_or(size)),
            // Nothing but a hole follows.
            Err(Errno::NXIO) => (size, size),
            // The file system does not report holes.
            Err(_) => (at, size),
        };
        (begin.min(size), end.min(size))
    }

    /// Checks that the file has no more bytes than `expected`, since the copy would be incomplete;
    /// and that it did not change, since the copy would mix two states of it.
    pub(super) fn check_end(&self, expected: u64) -> Result<(), TransferError> {
        let length = 1;
        match self.file.read_at(&mut [0], expected) {
            Ok(0) => self.check_unchanged(),
            Ok(_) => Err(TransferError::Grew { expected }),
            Err(source) => Err(TransferError::Read { position: expected, length, source }),
        }
    }

    /// Checks that the metadata of the file has not changed. If nothing writes to the file through
    /// a shared mapping, all bytes that were read belong to one state of the file. Call it after
    /// reading the last byte.
    fn check_unchanged(&self) -> Result<(), TransferError> {
        let before = &self.metadata;
        let length = 0;
        let after = self.file.metadata().map_err(|source| TransferError::Read {
            position: before.len(),
            length,
            source,
        })?;
        same("inode", before.ino(), after.ino())?;
        same("length", before.len(), after.len())?;
        same("modification time", modified(before), modified(&after))?;
        // Programs can set the modification time, but not the change time.
        same("change time", changed(before), changed(&after))
    }
}

fn same<T: PartialEq + Display>(
    what: &'static str,
    before: T,
    after: T,
) -> Result<(), TransferError> {
    if before == after {
        return Ok(());
    }
    Err(TransferError::Changed { what, before: before.to_string(), after: after.to_string() })
}

/// Returns the time of the last change of the contents.
fn modified(metadata: &Metadata) -> String {
    time(metadata.mtime(), metadata.mtime_nsec())
}

/// Returns the time of the last change of contents, names or permissions.
fn changed(metadata: &Metadata) -> String {
    time(metadata.ctime(), metadata.ctime_nsec())
}

/// Formats a time in seconds since 1970, as `stat` and `date +%s.%N` do.
fn time(seconds: i64, nanoseconds: i64) -> String {
    format!("{seconds}.{nanoseconds:09}")
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;

    /// Returns what the check finds after `change`.
    fn found(change: impl FnOnce(&File, &Path)) -> Option<&'static str> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"12345678").unwrap();
        let source = Source::open(file.path()).unwrap();
        // The system's clock for files has steps of up to 10 ms.
        std::thread::sleep(Duration::from_millis(50));
        change(file.as_file(), file.path());
        match source.check_unchanged() {
            Ok(()) => None,
            Err(TransferError::Changed { what, before, after }) => {
                assert_ne!(before, after);
                Some(what)
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn every_kind_of_change_is_found() {
        assert_eq!(found(|_, path| drop(fs::read(path).unwrap())), None);
        assert_eq!(found(|file, _| file.set_len(4).unwrap()), Some("length"));
        let write = |file: &File| file.write_all_at(b"x", 0).unwrap();
        assert_eq!(found(|file, _| write(file)), Some("modification time"));
        // As if nothing had been written.
        let covered = |file: &File, path: &Path| {
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            write(file);
            file.set_modified(modified).unwrap();
        };
        assert_eq!(found(covered), Some("change time"));
    }
}
