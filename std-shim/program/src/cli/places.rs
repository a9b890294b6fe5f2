//! Where `polyrail copy` copies from and to, as its command line names it.

use super::args::CopyArguments;
use super::exit::Failure;
use polyrail_program::transfer::is_of_directory;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The sources and the destination of a copy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Places {
    /// A file to a file of this host.
    File { source: PathBuf, destination: PathBuf },
    /// Files and directories into a directory of this host.
    Directory { sources: Vec<PathBuf>, destination: PathBuf },
    /// A file to a server, under a name.
    FileTo { source: PathBuf, server: String, name: Option<PathBuf> },
    /// Files and directories to a server.
    DirectoryTo { sources: Vec<PathBuf>, server: String },
    /// A file or directory from a server.
    From { server: String, path: String, destination: PathBuf },
}

impl Places {
    /// Reads the command line.
    pub(super) fn new(arguments: &CopyArguments) -> Result<Self, Failure> {
        let CopyArguments { paths, to, name, .. } = arguments;
        Self::read(paths, to.as_deref(), name.as_deref()).map_err(|why| Failure::usage(&why))
    }

    fn read(paths: &[PathBuf], to: Option<&str>, name: Option<&Path>) -> Result<Self, String> {
        if paths.iter().any(|path| path == Path::new("-")) {
            let why = "`-` is not a file: copy cannot read standard input or write standard output, \
                       since both ends have to know the size of a file, and check it (a file of \
                       this name is ./-)";
            return Err(why.to_owned());
        }
        if name.is_some() && to.is_none() {
            return Err("--name requires --to".to_owned());
        }
        if let Some(server) = to {
            let server = server.to_owned();
            return match paths {
                [source] if !source.is_dir() => {
                    let name = name.map(Path::to_owned);
                    Ok(Self::FileTo { source: source.clone(), server, name })
                }
                _ if name.is_some() => Err(
                    "--name names the copy of one file, and cannot be combined with directories or \
                         several sources"
                        .to_owned(),
                ),
                sources => Ok(Self::DirectoryTo { sources: sources.to_vec(), server }),
            };
        }
        let Some((destination, sources)) = paths.split_last().filter(|(_, rest)| !rest.is_empty())
        else {
            return Err("name the destination after the source, or a host with --to".to_owned());
        };
        if remote(destination.as_os_str()).is_some() {
            let why = "to copy to another host, name it with --to; a file of this host whose name \
                       has a colon is ./NAME";
            return Err(why.to_owned());
        }
        let destination = destination.clone();
        let mut remotes = sources.iter().filter_map(|source| remote(source.as_os_str()));
        match (remotes.next(), sources) {
            (None, [source])
                if !source.is_dir() && !destination.is_dir() && !is_of_directory(&destination) =>
            {
                Ok(Self::File { source: source.clone(), destination })
            }
            (None, sources) => Ok(Self::Directory { sources: sources.to_vec(), destination }),
            (Some((_, "")), _) => Err("name a file or directory after HOST:".to_owned()),
            (Some((server, path)), [_]) => {
                Ok(Self::From { server, path: path.to_owned(), destination })
            }
            (Some(_), _) => {
                let why = "copy one HOST:PATH at a time; if PATH is a directory, all files in it are \
                           copied; a file of this host whose name has a colon is ./NAME";
                Err(why.to_owned())
            }
        }
    }

    /// Returns the server, if there is one.
    pub(super) fn server(&self) -> Option<&str> {
        match self {
            Self::File { .. } | Self::Directory { .. } => None,
            Self::FileTo { server, .. }
            | Self::DirectoryTo { server, .. }
            | Self::From { server, .. } => Some(server),
        }
    }
}

/// Returns host and path of `HOST:PATH` or `HOST:PORT:PATH`, in which the first colon comes before
/// any `/`, as for scp. An IPv6 address is in brackets.
fn remote(text: &OsStr) -> Option<(String, &str)> {
    let text = text.to_str()?;
    let host_end = match text.strip_prefix('[') {
        Some(rest) => 1 + rest.find(']')? + 1,
        None => text.find([':', '/'])?,
    };
    let (host, rest) = text.split_at(host_end);
    let rest = rest.strip_prefix(':').filter(|_| !host.is_empty())?;
    match rest.split_once(':') {
        Some((port, path)) if port.parse::<u16>().is_ok() => Some((format!("{host}:{port}"), path)),
        _ => Some((host.to_owned(), rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(paths: &[&str], to: Option<&str>, name: Option<&str>) -> Result<Places, String> {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        Places::read(&paths, to, name.map(Path::new))
    }

    #[test]
    fn a_colon_before_any_slash_follows_a_host() {
        for (text, host, path) in [
            ("10.0.0.2:model", "10.0.0.2", "model"),
            ("host:a/b:c", "host", "a/b:c"),
            ("host:7472:a/b", "host:7472", "a/b"),
            ("[fe80::1%eth0]:a", "[fe80::1%eth0]", "a"),
            ("[::1]:7472:a", "[::1]:7472", "a"),
            ("host:70000:a", "host", "70000:a"),
            ("host:", "host", ""),
        ] {
            assert_eq!(remote(text.as_ref()), Some((host.to_owned(), path)), "{text}");
        }
        for text in ["a", "./a:b", "/a:b", "a/b:c", ":a", "[a]", "[a", ""] {
            assert_eq!(remote(text.as_ref()), None, "{text}");
        }
    }

    #[test]
    fn what_the_command_line_names_is_a_file_a_directory_or_a_host() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().to_str().unwrap();
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let (source, destination) = ("a".into(), "b".into());
        assert_eq!(read(&["a", "b"], None, None), Ok(Places::File { source, destination }));
        for given in [&["a", "b", "c"][..], &["a", directory], &["a", "b/"], &[directory, "c"]] {
            let (destination, sources) = given.split_last().unwrap();
            let (sources, destination) = (paths(sources), destination.into());
            assert_eq!(read(given, None, None), Ok(Places::Directory { sources, destination }));
        }
        let server = || "host".to_owned();
        let (source, name) = ("a".into(), Some("n".into()));
        let to = read(&["a"], Some("host"), Some("n"));
        assert_eq!(to, Ok(Places::FileTo { source, server: server(), name }));
        for given in [&["a", "b"][..], &[directory]] {
            let sources = paths(given);
            let to = read(given, Some("host"), None);
            assert_eq!(to, Ok(Places::DirectoryTo { sources, server: server() }));
        }
        let (path, destination) = ("x/y".to_owned(), "b".into());
        let from = read(&["host:x/y", "b"], None, None);
        assert_eq!(from, Ok(Places::From { server: server(), path, destination }));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_words() {
        for (paths, to, name, words) in [
            (&["-", "b"][..], None, None, "cannot read standard input"),
            (&["a", "-"], None, None, "or write standard output"),
            (&["-"], Some("host"), None, "`-` is not a file"),
            (&["a"], None, None, "name the destination"),
            (&["a", "b"], None, Some("c"), "--name requires --to"),
            (&["a", "b"], Some("host"), Some("c"), "--name names the copy of one file"),
            (&["a", "host:b"], None, None, "name it with --to"),
            (&["host:", "b"], None, None, "after HOST:"),
            (&["host:a", "host:b", "c"], None, None, "one HOST:PATH at a time"),
            (&["a", "host:b", "c"], None, None, "one HOST:PATH at a time"),
        ] {
            let why = read(paths, to, name).unwrap_err();
            assert!(why.contains(words), "{paths:?}: {why}");
        }
    }
}
