//! The file that a copy becomes, and that is not there before it is complete.

use super::error::CopyError;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Where the bytes go.
#[derive(Debug)]
pub(super) enum Destination {
    /// A temporary file beside the destination, which takes its name when it is complete, and is
    /// removed if it is dropped before.
    File {
        /// The file that is being written.
        temporary: NamedTempFile,
        /// The name that it will take.
        path: PathBuf,
    },
    /// A character device such as `/dev/null`, which is written in place.
    Device(File),
}

impl Destination {
    /// Prepares to write a copy of `source`, whose metadata is given, to `path`. `None`: the source
    /// is on another host.
    pub(super) fn create(
        source: Option<(&Path, &Metadata)>,
        path: &Path,
    ) -> Result<Self, CopyError> {
        /// What programs give a new file; the umask takes from it.
        const NEW_FILE: u32 = 0o666;
        let failed = |error| CopyError::Destination { path: path.to_owned(), source: error };
        let (old, path) = match fs::metadata(path) {
            Ok(existing) => {
                refuse(source, (path, &existing))?;
                // The file must be writable for us, though a rename would not ask.
                let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
                if existing.file_type().is_char_device() {
                    return Ok(Self::Device(file));
                }
                // Behind a symbolic link, the file is replaced, not the link.
                (Some(existing), fs::canonicalize(path).map_err(failed)?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // What it leads to may be anybody's choice: as with cp, nothing is created there.
                if path.is_symlink() {
                    let what = "a symbolic link that leads nowhere";
                    return Err(CopyError::DestinationKind { path: path.to_owned(), what });
                }
                (None, path.to_owned())
            }
            Err(error) => return Err(failed(error)),
        };
        let mode = source.map_or(NEW_FILE, |(_, metadata)| metadata.mode() & 0o777);
        let temporary = temporary(&path, mode).map_err(failed)?;
        if let Some(old) = old {
            succeed(temporary.as_file(), &old).map_err(failed)?;
        }
        Ok(Self::File { temporary, path })
    }

    /// The file to write to.
    pub(super) fn file(&self) -> &File {
        match self {
            Self::File { temporary, .. } => temporary.as_file(),
            Self::Device(file) => file,
        }
    }

    /// The copy is complete: it takes its name. With `sync`, after it has reached the disk.
    pub(super) fn finish(self, sync: bool) -> io::Result<()> {
        let Self::File { temporary, path } = self else { return Ok(()) };
        if sync {
            temporary.as_file().sync_all()?;
        }
        temporary.persist(&path)?;
        if sync {
            File::open(directory(&path))?.sync_all()?;
        }
        Ok(())
    }
}

/// Writes a file that is there complete, or as it was before: as the destination of a copy is.
///
/// # Errors
///
/// The file cannot be created, written or replaced.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), CopyError> {
    let target = Destination::create(None, path)?;
    let mut file = target.file();
    let written = file.write_all(bytes).and_then(|()| target.finish(false));
    written.map_err(|source| CopyError::Destination { path: path.to_owned(), source })
}

/// Whether [`replace_file`] could begin now. Nothing stays behind.
///
/// # Errors
///
/// The file cannot be created or replaced.
pub fn check_replaceable(path: &Path) -> Result<(), CopyError> {
    Destination::create(None, path).map(drop)
}

/// A file that is written in place of `path` and beside it. Its name begins with a dot and as much of
/// the other one as leaves room for the rest.
fn temporary(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    /// Names of 255 bytes can be, and of 143 where their file system encrypts them (eCryptfs).
    const KEPT_BYTES: usize = 100;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Opened by ourselves, since the errors of `tempfile_in` name the temporary file.
    tempfile::Builder::new()
        .prefix(&format!(".{}", &name[..name.floor_char_boundary(KEPT_BYTES)]))
        .suffix(".polyrail-part")
        .make_in(directory(path), |path| {
            OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path)
        })
}

/// The directory that a file is in.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Gives a file the mode of the one that it will replace, and the owner if we may.
fn succeed(file: &File, old: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        _ = fchown(file, Some(old.uid()), Some(old.gid()));
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o777))
}

/// Refuses what a copy must not replace.
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

/// What kind of file it is, in words.
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
        () => "no regular file",
    }
}
