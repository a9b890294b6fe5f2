//! The files and directories to send, in the order in which they are sent.

use super::record::{Entry, RelativePath};
use crate::transfer::destination;
use crate::transfer::error::CopyError;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

/// Limit of the skipped files that a report names.
const NAMED: usize = 100;

/// A file or directory to send: where it is, and its path at the other side.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) from: PathBuf,
    pub(super) path: RelativePath,
}

impl Root {
    /// Returns the root of a source that the user named. Its name at the other side is its own.
    pub(super) fn new(source: &Path) -> Result<Self, CopyError> {
        // `.` and `..` have names that their paths do not show.
        let name = match source.file_name() {
            Some(name) => name.to_owned(),
            None => {
                let whole = fs::canonicalize(source).map_err(|error| unreadable(source, error))?;
                whole.file_name().unwrap_or_default().to_owned()
            }
        };
        let path = RelativePath::new(name.into_vec());
        let path = path.ok_or_else(|| CopyError::NoName { path: source.to_owned() })?;
        Ok(Self { from: source.to_owned(), path })
    }
}

/// A step of the walk.
#[derive(Debug)]
pub(super) enum Step {
    /// A directory begins.
    Enter(Entry),
    /// A file, and where it is.
    File(Entry, PathBuf),
    /// A directory is complete.
    Leave(Entry),
}

/// Path and kind of a file that is not sent.
pub(super) type Skipped = (PathBuf, &'static str);

/// Walks files and directories, depth first and by name. Holds no descriptor between two steps.
#[derive(Debug)]
pub(super) struct Walk {
    roots: IntoIter<Root>,
    directories: Vec<Directory>,
    /// Whether symbolic links to files are followed. Links to directories never are: they may form
    /// a loop.
    follow: bool,
    /// Files that are not sent, and the first of them.
    pub(super) skipped: u64,
    pub(super) named: Vec<Skipped>,
}

/// A directory whose files are being sent.
#[derive(Debug)]
struct Directory {
    from: PathBuf,
    entry: Entry,
    names: IntoIter<OsString>,
}

impl Walk {
    pub(super) fn new(roots: Vec<Root>, follow: bool) -> Self {
        let roots = roots.into_iter();
        Self { roots, directories: Vec::new(), follow, skipped: 0, named: Vec::new() }
    }

    /// Returns whether the walk follows symbolic links to files.
    pub(super) const fn follows(&self) -> bool {
        self.follow
    }

    /// Returns the next step; `None` at the end. Calls `keep_company` for each name that is read,
    /// sent or skipped: a directory may have more of them than can be read in the time that the
    /// other side waits.
    pub(super) fn next<E: From<CopyError>>(
        &mut self,
        mut keep_company: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Step>, E> {
        loop {
            keep_company()?;
            let Some(directory) = self.directories.last_mut() else {
                let Some(Root { from, path }) = self.roots.next() else { return Ok(None) };
                // A link that the user named stands for its target.
                let metadata =
                    if self.follow { fs::metadata(&from) } else { from.symlink_metadata() };
                let metadata = metadata.map_err(|error| unreadable(&from, error))?;
                if !metadata.is_dir() && !metadata.is_file() {
                    let what = destination::kind(&metadata);
                    return Err(CopyError::SourceKind { path: from, what }.into());
                }
                return self.step(from, path, &metadata, keep_company).map(Some);
            };
            let Some(name) = directory.names.next() else {
                let entry = directory.entry.clone();
                self.directories.pop();
                return Ok(Some(Step::Leave(entry)));
            };
            let from = directory.from.join(&name);
            let path = directory.entry.path.join(&name);
            let path = path.ok_or_else(|| CopyError::LongPath { path: from.clone() })?;
            let metadata = match from.symlink_metadata() {
                Ok(link) if link.is_symlink() && self.follow => match fs::metadata(&from) {
                    Ok(target) if target.is_file() => target,
                    _ => link,
                },
                Ok(metadata) => metadata,
                // The file was removed after its directory was read.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(&from, error).into()),
            };
            if metadata.is_dir() || metadata.is_file() {
                return self.step(from, path, &metadata, keep_company).map(Some);
            }
            self.skipped += 1;
            if self.named.len() < NAMED {
                self.named.push((from, destination::kind(&metadata)));
            }
        }
    }

    fn step<E: From<CopyError>>(
        &mut self,
        from: PathBuf,
        path: RelativePath,
        metadata: &Metadata,
        mut keep_company: impl FnMut() -> Result<(), E>,
    ) -> Result<Step, E> {
        let entry = Entry::new(path, metadata);
        if !metadata.is_dir() {
            return Ok(Step::File(entry, from));
        }
        let failed = |error| unreadable(&from, error);
        let mut names = Vec::new();
        for found in fs::read_dir(&from).map_err(failed)? {
            keep_company()?;
            names.push(found.map_err(failed)?.file_name());
        }
        names.sort();
        self.directories.push(Directory { from, entry: entry.clone(), names: names.into_iter() });
        Ok(Step::Enter(entry))
    }
}

fn unreadable(path: &Path, source: std::io::Error) -> CopyError {
    CopyError::Source { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    fn steps(walk: &mut Walk) -> Vec<String> {
        let mut steps = Vec::new();
        while let Some(step) = walk.next(|| Ok::<_, CopyError>(())).unwrap() {
            let (sign, entry) = match &step {
                Step::Enter(entry) => ('+', entry),
                Step::File(entry, _) => ('=', entry),
                Step::Leave(entry) => ('-', entry),
            };
            steps.push(format!("{sign}{}", entry.path.as_path().display()));
        }
        steps
    }

    #[test]
    fn a_directory_is_walked_by_name_and_what_is_neither_file_nor_directory_is_skipped() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("tree");
        fs::create_dir_all(root.join("b/inner")).unwrap();
        for file in ["c", "b/inner/x", ".hidden"] {
            fs::write(root.join(file), file).unwrap();
        }
        symlink("c", root.join("a")).unwrap();
        symlink("..", root.join("b/up")).unwrap();
        symlink("missing", root.join("d")).unwrap();
        let _socket = UnixListener::bind(root.join("e")).unwrap();
        let walk = |follow| Walk::new(vec![Root::new(&root).unwrap()], follow);
        let mut following = walk(true);
        assert_eq!(
            steps(&mut following),
            [
                "+tree",
                "=tree/.hidden",
                "=tree/a",
                "+tree/b",
                "+tree/b/inner",
                "=tree/b/inner/x",
                "-tree/b/inner",
                "-tree/b",
                "=tree/c",
                "-tree"
            ]
        );
        assert_eq!(following.skipped, 3);
        let named: Vec<_> = following.named.iter().map(|(_, what)| *what).collect();
        assert_eq!(named, ["a symbolic link", "a symbolic link", "a socket"]);
        let mut strict = walk(false);
        assert!(!steps(&mut strict).contains(&"=tree/a".to_owned()));
        assert_eq!(strict.skipped, 4);
    }

    #[test]
    fn company_is_kept_for_each_name_that_is_read_and_for_each_that_is_skipped() {
        const LINKS: usize = 100;
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("tree");
        fs::create_dir(&root).unwrap();
        for link in 0..LINKS {
            symlink("missing", root.join(link.to_string())).unwrap();
        }
        let walk = || Walk::new(vec![Root::new(&root).unwrap()], true);
        let mut calls = 0;
        let mut walked = walk();
        for enters in [true, false] {
            let step = walked.next(|| {
                calls += 1;
                Ok::<_, CopyError>(())
            });
            assert_eq!(matches!(step.unwrap(), Some(Step::Enter(_))), enters);
            assert!(calls > LINKS, "{calls}");
            calls = 0;
        }
        assert_eq!(walked.skipped, LINKS as u64);
        // An error ends the walk: while names are read, and while they are skipped.
        for steps_before in [0, 1] {
            let mut walk = walk();
            for _ in 0..steps_before {
                walk.next(|| Ok::<_, CopyError>(())).unwrap();
            }
            let mut calls = 0;
            let step = walk.next(|| {
                calls += 1;
                if calls == LINKS / 2 { Err(CopyError::NotReadable) } else { Ok(()) }
            });
            assert!(matches!(step, Err(CopyError::NotReadable)), "{step:?}");
            assert_eq!(calls, LINKS / 2);
        }
    }

    #[test]
    fn a_root_has_a_name_even_if_its_path_ends_with_dots() {
        let place = tempfile::tempdir().unwrap();
        let inner = place.path().join("tree/inner");
        fs::create_dir_all(&inner).unwrap();
        for (source, name) in
            [("tree", "tree"), ("tree/", "tree"), ("tree/inner/..", "tree"), ("tree/.", "tree")]
        {
            let root = Root::new(&place.path().join(source)).unwrap();
            assert_eq!(root.path.as_path(), Path::new(name), "{source}");
        }
        assert!(matches!(Root::new(Path::new("/")), Err(CopyError::NoName { .. })));
    }
}
