//! The file that a copy is written to until it is complete.
//!
//! On Linux it has no name (O_TMPFILE), so that it disappears however the process ends. If the file
//! system does not support that, it has a hidden name beside the destination and is removed on
//! drop; a process that is killed leaves it behind.

use polyrail::printable;
use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file that gets its name when it is complete.
#[derive(Debug)]
pub(super) enum Part {
    /// A file without a name.
    Unnamed(File),
    /// A file with a hidden name.
    Named(Hidden),
}

/// A file with a hidden name, which is removed on drop unless another file has replaced it there.
#[derive(Debug)]
pub(super) struct Hidden(NamedTempFile);

/// Another file has replaced the part at its hidden name.
#[derive(Debug, thiserror::Error)]
#[error("another program replaced the unfinished copy at {}; that file is left there", path.display())]
struct Swapped {
    path: PathBuf,
}

impl Part {
    /// Makes a file with this mode, before the umask, in the directory of `path`.
    pub(super) fn create(path: &Path, mode: u32) -> io::Result<Self> {
        // The error of the first kind is dropped: if its cause also affects the second kind, that
        // reports it.
        unnamed(path, mode)
            .map_or_else(|_| named(path, mode).map(Self::Named), |f| Ok(Self::Unnamed(f)))
    }

    /// Returns the file to write to.
    pub(super) fn file(&self) -> &File {
        match self {
            Self::Unnamed(file) => file,
            Self::Named(hidden) => hidden.0.as_file(),
        }
    }

    /// Gives the file the name `path`, replacing a file of that name if `overwrite` is set; with
    /// `sync`, flushes it to disk before.
    pub(super) fn take_name(self, path: &Path, overwrite: bool, sync: bool) -> io::Result<()> {
        if sync {
            self.file().sync_all()?;
        }
        let file = match self {
            Self::Named(hidden) => return hidden.take_name(path, overwrite),
            Self::Unnamed(file) => file,
        };
        let linked = match link(&file, path) {
            Ok(()) => return Ok(()),
            // A hard link cannot replace a file, but a rename can.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && overwrite => {
                Hidden::new(path, |name| link(&file, name).and_then(|()| file.try_clone()))
            }
            Err(error) => Err(error),
        };
        match linked {
            Err(error) if refuses_links(&error) => {
                copy_of(&file, path, sync)?.take_name(path, overwrite)
            }
            linked => linked?.take_name(path, overwrite),
        }
    }
}

impl Hidden {
    /// Makes a file with a hidden name beside `path`: a dot, the first part of the name of `path`,
    /// random characters and a suffix.
    fn new(path: &Path, make: impl FnMut(&Path) -> io::Result<File>) -> io::Result<Self> {
        /// Names are limited to 255 bytes, or to 143 if the file system encrypts them (eCryptfs).
        const KEPT_BYTES: usize = 100;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        tempfile::Builder::new()
            .prefix(&format!(".{}", printable::cut(&name, KEPT_BYTES)))
            .suffix(".polyrail-part")
            .make_in(directory(path), make)
            .map(Self)
    }

    /// Returns whether the hidden name still names this file.
    fn is_there(&self) -> io::Result<bool> {
        is_at(self.0.as_file(), &fs::symlink_metadata(self.0.path())?)
    }

    /// Renames the file.
    fn take_name(self, path: &Path, overwrite: bool) -> io::Result<()> {
        let hidden = self.0.path();
        if !self.is_there()? {
            return Err(io::Error::other(Swapped { path: hidden.to_owned() }));
        }
        if overwrite {
            return fs::rename(hidden, path);
        }
        match renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE) {
            // Some file systems do not support NOREPLACE (NFS). A hard link does not replace a file
            // either; the hidden name is removed on drop.
            Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(hidden, path),
            renamed => Ok(renamed?),
        }
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let ours = self.is_there().unwrap_or(false);
        self.0.disable_cleanup(!ours);
    }
}

/// Returns whether the file system refuses hard links: some (FUSE) support unnamed files but not
/// links.
fn refuses_links(error: &io::Error) -> bool {
    use ErrorKind::{CrossesDevices, PermissionDenied, Unsupported};
    matches!(error.kind(), CrossesDevices | PermissionDenied | Unsupported)
}

/// Makes a file without a name, which can get one later.
#[cfg(target_os = "linux")]
fn unnamed(path: &Path, mode: u32) -> io::Result<File> {
    let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).mode(mode).custom_flags(flags).open(directory(path))?;
    // It gets its name through /proc, which may not be mounted.
    if is_at(&file, &fs::metadata(proc_path(&file))?)? {
        Ok(file)
    } else {
        Err(ErrorKind::Unsupported.into())
    }
}

/// Other systems have no files without a name.
#[cfg(not(target_os = "linux"))]
fn unnamed(_: &Path, _: u32) -> io::Result<File> {
    Err(ErrorKind::Unsupported.into())
}

/// Makes a file with a hidden name.
fn named(path: &Path, mode: u32) -> io::Result<Hidden> {
    // `tempfile_in` would name the temporary file in its errors.
    Hidden::new(path, |name| {
        OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(name)
    })
}

/// Gives a name to a file without a name.
fn link(file: &File, path: &Path) -> io::Result<()> {
    Ok(linkat(CWD, proc_path(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Returns a path of an open file in /proc.
fn proc_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Returns whether `found` is metadata of this file.
fn is_at(file: &File, found: &Metadata) -> io::Result<bool> {
    let file = file.metadata()?;
    Ok((file.dev(), file.ino()) == (found.dev(), found.ino()))
}

/// Copies a file that cannot be linked to a new file with a hidden name.
fn copy_of(mut file: &File, path: &Path, sync: bool) -> io::Result<Hidden> {
    let metadata = file.metadata()?;
    let hidden = named(path, metadata.mode() & 0o777)?;
    let mut copy = hidden.0.as_file();
    file.rewind()?;
    io::copy(&mut file, &mut copy)?;
    succeed(copy, &metadata)?;
    copy.set_modified(metadata.modified()?)?;
    if sync {
        copy.sync_all()?;
    }
    Ok(hidden)
}

/// Returns the directory of a file.
pub(super) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Gives a file the mode of the file that it replaces, and the owner and group if permitted.
pub(super) fn succeed(file: &File, old: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        _ = fchown(file, Some(old.uid()), Some(old.gid()));
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o777))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Calls `check` with parts of both kinds for `dst` in a new directory.
    fn both_kinds(check: impl Fn(Part, &Path)) {
        for make in [
            |path: &Path| Part::Unnamed(unnamed(path, 0o640).unwrap()),
            |path: &Path| Part::Named(named(path, 0o640).unwrap()),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("dst");
            check(make(&path), &path);
        }
    }

    #[test]
    fn a_part_takes_a_name_that_is_free_or_not() {
        for old in [None, Some("old")] {
            both_kinds(|part, path| {
                if let Some(old) = old {
                    fs::write(path, old).unwrap();
                }
                part.file().write_all(b"new").unwrap();
                part.take_name(path, true, true).unwrap();
                assert_eq!(fs::read(path).unwrap(), b"new");
                assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o640);
                assert_eq!(names(directory(path)), ["dst"]);
            });
        }
    }

    #[test]
    fn a_part_that_may_not_overwrite_takes_only_a_name_that_is_free() {
        both_kinds(|part, path| {
            part.file().write_all(b"new").unwrap();
            part.take_name(path, false, false).unwrap();
            assert_eq!(fs::read(path).unwrap(), b"new");
        });
        both_kinds(|part, path| {
            // By somebody else, after the copy has begun.
            fs::write(path, "old").unwrap();
            let error = part.take_name(path, false, false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            assert_eq!(fs::read(path).unwrap(), b"old");
            assert_eq!(names(directory(path)), ["dst"]);
        });
    }

    #[test]
    fn nothing_is_left_of_a_part_that_took_no_name() {
        both_kinds(|part, path| {
            let named = usize::from(matches!(part, Part::Named(_)));
            assert_eq!(names(directory(path)).len(), named);
            drop(part);
            assert_eq!(names(directory(path)).len(), 0);
        });
    }

    #[test]
    fn a_part_that_was_swapped_is_noticed_and_what_is_there_now_stays() {
        for complete in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("dst");
            fs::write(&path, "old").unwrap();
            let part = named(&path, 0o640).unwrap();
            let hidden = part.0.path().to_owned();
            let other = directory.path().join("other");
            fs::write(&other, "not what was copied").unwrap();
            fs::rename(&other, &hidden).unwrap();
            let part = Part::Named(part);
            if complete {
                let error = part.take_name(&path, true, false).unwrap_err().to_string();
                let said =
                    format!("another program replaced the unfinished copy at {}", hidden.display());
                assert!(error.contains(&said), "{error}");
            } else {
                drop(part);
            }
            assert_eq!(fs::read(&path).unwrap(), b"old");
            assert_eq!(fs::read(&hidden).unwrap(), b"not what was copied");
        }
    }

    #[test]
    fn a_part_that_was_removed_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dst");
        let part = named(&path, 0o640).unwrap();
        fs::remove_file(part.0.path()).unwrap();
        let error = Part::Named(part).take_name(&path, true, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_cannot_get_a_name_is_copied_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dst");
        let mut file = unnamed(&path, 0o604).unwrap();
        file.write_all(b"all of it").unwrap();
        let copy = copy_of(&file, &path, true).unwrap();
        assert_eq!(fs::read(copy.0.path()).unwrap(), b"all of it");
        assert_eq!(copy.0.as_file().metadata().unwrap().mode() & 0o777, 0o604);
    }
}
