//! The directory to write into. Nothing is written outside it: paths have no `..`, and a symbolic
//! link in it is neither followed nor replaced.

use super::record::{Entry, RelativePath, Time};
use crate::transfer::copy::CopyOptions;
use crate::transfer::destination::{self, Destination, Making};
use crate::transfer::error::CopyError;
use crate::transfer::part;
use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_OMIT, futimens};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The names that a sender may choose for its files and directories at the top of the target.
#[derive(Clone, Debug)]
pub(super) enum Roots {
    /// Any: the sender is in this process.
    Any,
    /// Those that a server accepts from its peers: not hidden, without control characters.
    Visible,
    /// The name that this side asked for.
    Only(OsString),
}

/// The directory to write into.
#[derive(Debug)]
pub(super) struct Target {
    directory: PathBuf,
    roots: Roots,
    /// Whether a single file is written to the path of `directory` itself.
    is_file: bool,
    /// Whether `directory` was missing at the beginning.
    is_missing: bool,
    pub(super) rules: Rules,
    /// The directory, below `directory`, that was checked last.
    checked: Option<PathBuf>,
}

/// Options for a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) overwrite: bool,
    /// Whether files and directories, new and old, get the permissions of their sources, without
    /// regard to the umask.
    pub(super) exact: bool,
    /// Bytes of the longest file.
    pub(super) max_file_size: Option<u64>,
    /// Whether what was copied is flushed to disk.
    pub(super) sync: bool,
}

impl Rules {
    /// Returns the rules of a copy that this host asks for.
    pub(super) const fn of(options: &CopyOptions) -> Self {
        let CopyOptions { overwrite, sync, .. } = *options;
        Self { overwrite, exact: true, max_file_size: None, sync }
    }
}

impl Target {
    /// Writes into an existing directory.
    pub(super) fn existing(directory: &Path, roots: Roots, rules: Rules) -> Self {
        let (is_file, is_missing) = (false, false);
        Self { directory: directory.to_owned(), roots, is_file, is_missing, rules, checked: None }
    }

    /// Writes into a directory, which is made if it is missing.
    pub(super) fn made(directory: &Path, roots: Roots, rules: Rules) -> Result<Self, CopyError> {
        provide_directory(directory, rules.sync)?;
        Ok(Self::existing(directory, roots, rules))
    }

    /// Writes a single file to `path`, or to the file that a symbolic link there points to, unless
    /// a directory is there or `path` ends with `/`; writes anything else into a directory there,
    /// which is made if it is missing.
    pub(super) fn file_or_directory(path: &Path, name: OsString, rules: Rules) -> Self {
        let is_missing = !path.is_dir();
        let is_file = is_missing && !destination::is_of_directory(path);
        // The user named the link, as for a copy of a file to a file.
        let target = if is_file && path.is_symlink() && path.is_file() {
            fs::canonicalize(path).ok()
        } else {
            None
        };
        let path = target.as_deref().unwrap_or(path);
        Self { is_file, is_missing, ..Self::existing(path, Roots::Only(name), rules) }
    }

    /// Returns the path of a file or directory, if the sender may choose it.
    fn place(&self, path: &RelativePath, is_file: bool) -> Result<PathBuf, CopyError> {
        let first = path.names().next().unwrap_or_default();
        let allowed = match &self.roots {
            Roots::Any => true,
            Roots::Visible => path.is_visible(),
            Roots::Only(name) => first == name,
        };
        if !allowed {
            return Err(CopyError::Name { path: first.into() });
        }
        let alone = is_file && self.is_file && path.names().count() == 1;
        Ok(if alone { self.directory.clone() } else { self.directory.join(path.as_path()) })
    }

    /// Makes the directory to write into, if it is missing and `place` is in it.
    fn make_itself(&self, place: &Path) -> Result<(), CopyError> {
        if self.is_missing && place != self.directory && !self.directory.is_dir() {
            make_directory(&self.directory, 0o777, self.rules.sync)?;
        }
        Ok(())
    }

    /// Checks that the directory of `path` exists, and is reached without symbolic links; makes
    /// what is missing if `make` is set. Returns whether it exists.
    fn check_parents(&mut self, path: &RelativePath, make: bool) -> Result<bool, CopyError> {
        let parent = path.as_path().parent().unwrap_or_else(|| Path::new(""));
        if self.checked.as_deref() == Some(parent) {
            return Ok(true);
        }
        let mut below = self.directory.clone();
        for name in parent {
            below.push(name);
            match found(&below)? {
                Some(found) if found.is_dir() => {}
                Some(found) => return Err(wrong_kind(below, &found)),
                None if make => make_directory(&below, 0o777, self.rules.sync)?,
                None => return Ok(false),
            }
        }
        self.checked = Some(parent.to_owned());
        Ok(true)
    }

    /// Makes a directory, if it is missing.
    pub(super) fn enter(&mut self, entry: &Entry) -> Result<(), CopyError> {
        let path = self.place(&entry.path, false)?;
        self.make_itself(&path)?;
        self.check_parents(&entry.path, true)?;
        // The owner must be able to write into it until it is complete.
        let mode = u32::from(entry.mode) | 0o700;
        match found(&path)? {
            None => return make_directory(&path, mode, self.rules.sync),
            Some(found) if !found.is_dir() => return Err(wrong_kind(path, &found)),
            Some(found) if self.rules.exact && found.mode() & 0o700 != 0o700 => {
                set_mode(&path, found.mode() & 0o7777 | 0o700)?;
            }
            Some(_) => {}
        }
        // An earlier copy, without flushing, may have made it.
        if self.rules.sync { flush_name(&path) } else { Ok(()) }
    }

    /// Returns whether a file has to be sent: there is none, or its size or time differs.
    pub(super) fn wants(&mut self, entry: &Entry) -> Result<bool, CopyError> {
        self.limit(entry)?;
        let path = self.place(&entry.path, true)?;
        if !self.check_parents(&entry.path, false)? {
            return Ok(true);
        }
        let Some(old) = found(&path)? else { return Ok(true) };
        if !old.is_file() {
            return Err(wrong_kind(path, &old));
        }
        if old.len() != entry.size || !is_time_of(&old, entry.modified) {
            if self.rules.overwrite {
                return Ok(true);
            }
            return Err(CopyError::Exists { path });
        }
        let mode = u32::from(entry.mode);
        if self.rules.exact && old.mode() & 0o777 != mode {
            set_mode(&path, mode)?;
        }
        if self.rules.sync {
            // An earlier copy, without flushing, may have written it.
            let flags = OFlags::NOFOLLOW.bits() as i32;
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
            let Ok(file) = opened else { return Ok(true) };
            file.sync_all().map_err(|error| unwritten(&path, error))?;
            // A directory that was sent is flushed once, when it is complete.
            if entry.path.names().count() == 1 {
                flush_name(&path)?;
            }
        }
        Ok(false)
    }

    /// Prepares to write a file.
    pub(super) fn begin(&mut self, entry: &Entry) -> Result<(PathBuf, Destination), CopyError> {
        self.limit(entry)?;
        let path = self.place(&entry.path, true)?;
        self.make_itself(&path)?;
        self.check_parents(&entry.path, true)?;
        match found(&path)? {
            Some(old) if !old.is_file() => return Err(wrong_kind(path, &old)),
            _ => {}
        }
        let making =
            Making { source: None, mode: entry.mode.into(), overwrite: self.rules.overwrite };
        let target = Destination::create(&path, making)?;
        Ok((path, target))
    }

    /// Gives a file that is complete its length, permissions and time. Its data ends at `end`.
    pub(super) fn complete(&self, file: &File, entry: &Entry, end: u64) -> io::Result<()> {
        if end < entry.size {
            // The file ends with a hole.
            file.set_len(entry.size)?;
        }
        if self.rules.exact {
            file.set_permissions(Permissions::from_mode(entry.mode.into()))?;
        }
        set_time(file, entry.modified)
    }

    /// Gives a directory that is complete its permissions and time, where the system permits it:
    /// the directory may be another user's.
    pub(super) fn leave(&mut self, entry: &Entry) -> Result<(), CopyError> {
        let path = self.place(&entry.path, false)?;
        self.check_parents(&entry.path, false)?;
        let Rules { exact, sync, .. } = self.rules;
        let flags = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits() as i32;
        let finish = || {
            let directory = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
                Err(error) if !sync => return permitted(Err(error)),
                opened => opened?,
            };
            if exact {
                // The sticky and set-group-ID bits are about the place of the directory, not about
                // its source.
                let mode = u32::from(entry.mode) | directory.metadata()?.mode() & 0o7000;
                permitted(directory.set_permissions(Permissions::from_mode(mode)))?;
            }
            permitted(set_time(&directory, entry.modified))?;
            if sync { directory.sync_all() } else { Ok(()) }
        };
        finish().map_err(|error| unwritten(&path, error))
    }

    fn limit(&self, entry: &Entry) -> Result<(), CopyError> {
        let bytes = entry.size;
        match self.rules.max_file_size.filter(|limit| bytes > *limit) {
            Some(limit) => {
                let source = Box::new(CopyError::TooLong { bytes, limit });
                Err(CopyError::InDirectory { path: entry.path.as_path().to_owned(), source })
            }
            None => Ok(()),
        }
    }
}

/// Returns whether the destination of a server is a directory: one exists there, or the path ends
/// with `/`. In the latter case the directory is made if it is missing, as by a copy; with `sync`,
/// its name is flushed to disk.
///
/// # Errors
///
/// The path ends with `/`, but there is something else, or the directory cannot be made.
pub fn provide_destination(path: &Path, sync: bool) -> Result<bool, CopyError> {
    if destination::is_of_directory(path) {
        provide_directory(path, sync)?;
    }
    Ok(path.is_dir())
}

/// Makes a directory if it is missing.
fn provide_directory(directory: &Path, sync: bool) -> Result<(), CopyError> {
    match fs::metadata(directory) {
        Ok(found) if !found.is_dir() => {
            let what = destination::kind(&found);
            Err(CopyError::NotADirectory { path: directory.to_owned(), what })
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => make_directory(directory, 0o777, sync),
        Err(error) => Err(unwritten(directory, error)),
    }
}

/// Makes a directory; with `sync`, flushes its name to disk.
fn make_directory(path: &Path, mode: u32, sync: bool) -> Result<(), CopyError> {
    match DirBuilder::new().mode(mode).create(path) {
        // Another copy into the same directory may have made it.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => match found(path)? {
            Some(found) if !found.is_dir() => return Err(wrong_kind(path.to_owned(), &found)),
            _ => {}
        },
        made => made.map_err(|error| unwritten(path, error))?,
    }
    if sync { flush_name(path) } else { Ok(()) }
}

/// Flushes the name of a file or directory to disk: it is in the directory above.
fn flush_name(path: &Path) -> Result<(), CopyError> {
    let above = part::directory(path);
    File::open(above).and_then(|above| above.sync_all()).map_err(|error| unwritten(above, error))
}

/// Sets the permissions of a file or directory, where the system permits it: it may be another
/// user's.
fn set_mode(path: &Path, mode: u32) -> Result<(), CopyError> {
    permitted(fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|error| unwritten(path, error))
}

/// Drops the error of a change that the system does not permit.
fn permitted(changed: io::Result<()>) -> io::Result<()> {
    changed.or_else(|error| match error.kind() {
        ErrorKind::PermissionDenied => Ok(()),
        _ => Err(error),
    })
}

fn unwritten(path: &Path, source: io::Error) -> CopyError {
    CopyError::Destination { path: path.to_owned(), source }
}

/// Returns the metadata of the file at a path, without following a symbolic link; `None` if there
/// is none.
fn found(path: &Path) -> Result<Option<Metadata>, CopyError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unwritten(path, error)),
    }
}

fn wrong_kind(path: PathBuf, found: &Metadata) -> CopyError {
    CopyError::DestinationKind { path, what: destination::kind(found) }
}

/// Returns whether a file has this time. Some file systems store whole seconds only.
fn is_time_of(file: &Metadata, time: Time) -> bool {
    let nanoseconds = file.mtime_nsec();
    file.mtime() == time.seconds && (nanoseconds == i64::from(time.nanoseconds) || nanoseconds == 0)
}

fn set_time(file: &File, time: Time) -> io::Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    };
    Ok(futimens(file, &times)?)
}

/// Returns the name that a path below a served directory has at the side that asked for it.
pub(super) fn last_name(path: &RelativePath) -> &OsStr {
    path.names().last().unwrap_or_default()
}
