//! The file to write, which appears only when it is complete.

use super::error::CopyError;
use super::part::{Part, directory, succeed};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The file to write.
#[derive(Debug)]
pub(super) enum Destination {
    /// A file that gets the name of the destination when it is complete.
    File {
        /// The file being written.
        part: Part,
        /// The name that it will get.
        path: PathBuf,
        /// Whether it may replace a file of that name.
        overwrite: bool,
    },
    /// A character device such as `/dev/null`, which is written in place.
    Device(File),
}

/// Options for making a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Making<'a> {
    /// The file that is copied, if it is on this host.
    pub(super) source: Option<(&'a Path, &'a Metadata)>,
    /// Permissions, before the umask, of a file that replaces no file.
    pub(super) mode: u32,
    /// Whether it may replace an existing file.
    pub(super) overwrite: bool,
}

impl Making<'_> {
    /// The usual permissions of a new file, before the umask.
    pub(super) const NEW_FILE: u32 = 0o666;
}

impl Default for Making<'_> {
    fn default() -> Self {
        Self { source: None, mode: Self::NEW_FILE, overwrite: true }
    }
}

impl Destination {
    /// Prepares to write a file to `path`.
    pub(super) fn create(path: &Path, making: Making<'_>) -> Result<Self, CopyError> {
        let Making { source, mode, overwrite } = making;
        let failed = |error| CopyError::Destination { path: path.to_owned(), source: error };
        let (old, path) = match fs::metadata(path) {
            Ok(_) if !overwrite => return Err(CopyError::Exists { path: path.to_owned() }),
            Ok(existing) => {
                refuse(source, (path, &existing))?;
                // A rename would not require it, but a file that is not writable must not be
                // replaced.
                let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
                if existing.file_type().is_char_device() {
                    return Ok(Self::Device(file));
                }
                // Replaces the file that a symbolic link points to, not the link.
                (Some(existing), fs::canonicalize(path).map_err(failed)?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Another user may have made the link, so its target is not created, as with cp.
                if path.is_symlink() {
                    let what = "a dangling symbolic link";
                    return Err(CopyError::DestinationKind { path: path.to_owned(), what });
                }
                if is_of_directory(path) {
                    let what = "a directory that does not exist";
                    return Err(CopyError::DestinationKind { path: path.to_owned(), what });
                }
                (None, path.to_owned())
            }
            Err(error) => return Err(failed(error)),
        };
        let part = Part::create(&path, mode).map_err(failed)?;
        if let Some(old) = old {
            succeed(part.file(), &old).map_err(failed)?;
        }
        Ok(Self::File { part, path, overwrite })
    }

    /// Returns the file to write to.
    pub(super) fn file(&self) -> &File {
        match self {
            Self::File { part, .. } => part.file(),
            Self::Device(file) => file,
        }
    }

    /// Gives the complete file its name; with `sync`, flushes file and directory to disk.
    pub(super) fn finish(self, sync: bool) -> io::Result<()> {
        let Self::File { part, path, overwrite } = self else { return Ok(()) };
        part.take_name(&path, overwrite, sync)?;
        if sync {
            File::open(directory(&path))?.sync_all()?;
        }
        Ok(())
    }
}

/// Replaces a file at once: after an error, it is as it was before.
///
/// # Errors
///
/// The file cannot be created, written or replaced.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), CopyError> {
    let target = Destination::create(path, Making::default())?;
    let mut file = target.file();
    let written = file.write_all(bytes).and_then(|()| target.finish(false));
    written.map_err(|source| CopyError::Destination { path: path.to_owned(), source })
}

/// Checks that [`replace_file`] could begin now, without changing anything.
///
/// # Errors
///
/// The file cannot be created or replaced.
pub fn check_replaceable(path: &Path) -> Result<(), CopyError> {
    Destination::create(path, Making::default()).map(drop)
}

/// Refuses to replace the source itself, or anything but a regular file or a character device.
fn refuse(
    source: Option<(&Path, &Metadata)>,
    existing: (&Path, &Metadata),
) -> Result<(), CopyError> {
    let (path, metadata) = existing;
    if let Some((from, source)) = source
        && (metadata.dev(), metadata.ino()) == (source.dev(), source.ino())
    {
        return Err(CopyError::SameFile { from: from.to_owned(), to: path.to_owned() });
    }
    match kind(metadata) {
        "a regular file" | "a character device" => Ok(()),
        what => Err(CopyError::DestinationKind { path: path.to_owned(), what }),
    }
}

/// Returns whether a path ends with `/`, and thus can only be that of a directory.
pub fn is_of_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Returns the kind of a file, in words.
pub(super) fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => "a regular file",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() => "a character device",
        () if kind.is_block_device() => "a block device",
        () => "a special file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_cannot_have_the_path_of_a_directory_that_does_not_exist() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("new/");
        let checked = check_replaceable(&path).unwrap_err().to_string();
        let replaced = replace_file(&path, b"new").unwrap_err().to_string();
        for error in [checked, replaced] {
            assert!(error.ends_with("new/: it is a directory that does not exist"), "{error}");
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        assert!(check_replaceable(&place.path().join("new")).is_ok());
    }
}
