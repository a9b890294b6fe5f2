//! Directories that a server accepts, and those that it sends.

use super::*;
use crate::job::{PullJob, TreePlan};
use crate::transfer::{TreeReport, pull_tree, send_tree_to};
use polyrail::endpoint::EndpointBuilder;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn send_all(
    sources: &[&Path],
    address: &str,
    host: &Host,
    options: &CopyOptions,
) -> Result<TreeReport, CopyError> {
    let sources: Vec<PathBuf> = sources.iter().map(|source| source.to_path_buf()).collect();
    let progress = CopyProgress::default();
    send_tree_to(&sources, address, host.all_domains(), options, &progress, || ())
}

fn pull(path: &str, to: &Path, address: &str, host: &Host) -> Result<TreeReport, CopyError> {
    let options = CopyOptions::default();
    pull_tree(path, to, address, host.all_domains(), &options, &CopyProgress::default(), || ())
}

/// Makes a directory `tree` with two files, and returns it beside an empty directory for copies.
fn place_with_tree() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let (place, _, copies) = place_with_source();
    let tree = place.path().join("tree");
    fs::create_dir_all(tree.join("inner")).unwrap();
    fs::write(tree.join("a"), "aaa").unwrap();
    fs::write(tree.join("inner/b"), vec![7; 5000]).unwrap();
    (place, tree, copies)
}

#[test]
fn directories_are_received_beside_what_is_there_and_limited_by_the_umask() {
    let (_place, tree, copies) = place_with_tree();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    fs::create_dir(copies.join("tree")).unwrap();
    fs::write(copies.join("tree/a"), "older").unwrap();
    fs::write(copies.join("tree/other"), "other").unwrap();
    set(&copies.join("tree/a"), 0o640).unwrap();
    set(&copies.join("tree"), 0o711).unwrap();
    set(&tree.join("inner/b"), 0o701).unwrap();
    set(&tree.join("inner"), 0o500).unwrap();
    let (sent, received) = served(&ServeOptions::new(&copies), 2, |address, host| {
        [(); 2].map(|()| send_all(&[&tree], address, host, &CopyOptions::default()).unwrap())
    });
    assert_eq!(sent.each_ref().map(|sent| (sent.files, sent.unchanged)), [(2, 0), (0, 2)]);
    let Ok(Served::Tree(received)) = &received[0] else { panic!("{received:?}") };
    assert_eq!((received.report.files, received.report.bytes), (2, 5003));
    assert_eq!(received.directory, copies);
    assert_eq!(fs::read(copies.join("tree/a")).unwrap(), b"aaa");
    assert_eq!(fs::read(copies.join("tree/inner/b")).unwrap(), [7; 5000]);
    assert_eq!(fs::read(copies.join("tree/other")).unwrap(), b"other");
    let mode = |name: &str| fs::metadata(copies.join(name)).unwrap().mode() & 0o7777;
    // Old files and directories keep theirs. New directories can be written into again.
    let modes = ["tree/a", "tree", "tree/inner/b", "tree/inner"].map(mode);
    assert_eq!(modes, [0o640, 0o711, 0o701, 0o700]);
}

#[test]
fn what_a_server_does_not_accept_is_refused_at_both_ends() {
    let (place, tree, copies) = place_with_tree();
    let served_file = place.path().join("source");
    let to_file = ServeOptions::new(&served_file);
    let short = ServeOptions { max_file_size: Some(4999), ..ServeOptions::new(&copies) };
    let small = ServeOptions { max_memory: 1 << 20, ..ServeOptions::new(&copies) };
    let none = ServeOptions::default();
    for (options, words) in [
        (to_file, "cannot write into"),
        (short, "the file has 5000 bytes, but the server accepts files of up to 4999 bytes"),
        (small, "8388608 bytes"),
        (none, "this server accepts no files"),
    ] {
        let (sent, received) = served(&options, 1, |address, host| {
            let sent = send_all(&[&tree], address, host, &CopyOptions::default());
            Chain(&sent.unwrap_err()).to_string()
        });
        let received = Chain(received[0].as_ref().unwrap_err()).to_string();
        assert!(sent.contains(words) && received.contains(words), "{words}: {sent}, {received}");
    }
    assert_eq!(fs::read(&served_file).unwrap().len(), 300_000);
    assert!(!copies.join("tree/inner/b").exists());
}

#[test]
fn a_peer_reads_only_what_is_readable_and_in_the_directory() {
    let (place, tree, copies) = place_with_tree();
    symlink("../source", tree.join("out")).unwrap();
    symlink("..", tree.join("up")).unwrap();
    fs::write(tree.join(".hidden"), "hidden").unwrap();
    let none = ServeOptions::default();
    let may_not = ServeOptions::new(&tree);
    let may = ServeOptions { readable: true, ..may_not.clone() };
    let to = copies.join("to");
    for (options, path, words) in [
        (&none, "a", "this server does not let peers read files: start it with --readable"),
        (&may_not, "a", "this server does not let peers read files"),
        (&may, "out", "it is a symbolic link, not a regular file"),
        (&may, "up/source", "it is a symbolic link, not a regular file"),
        (&may, "b", "No such file"),
    ] {
        let (pulled, served) = served(options, 1, |address, host| {
            Chain(&pull(path, &to, address, host).unwrap_err()).to_string()
        });
        let given = Chain(served[0].as_ref().unwrap_err()).to_string();
        assert!(pulled.contains(words) && given.contains(words), "{path}: {pulled}, {given}");
    }
    for path in ["", "/", "/etc", "..", "inner/../..", ".hidden"] {
        let error = pull(path, &to, "127.0.0.1:1", &software_hosts(1).unwrap().0).unwrap_err();
        assert!(matches!(error, CopyError::PulledPath { .. }), "{path}: {error}");
    }
    assert!(!to.exists());
    // Links in a directory are skipped.
    let parent = ServeOptions { readable: true, ..ServeOptions::new(place.path()) };
    let (report, given) =
        served(&parent, 1, |address, host| pull("tree", &to, address, host).unwrap());
    assert_eq!((report.files, report.skipped), (3, 2));
    let Ok(Served::Pull(given)) = &given[0] else { panic!("{given:?}") };
    assert_eq!((&given.path, given.report.files), (&tree, 3));
    let mut copied = names(&to.join("tree"));
    copied.sort();
    assert_eq!(copied, [".hidden", "a", "inner"]);
}

#[test]
fn a_file_that_is_pulled_replaces_the_file_that_a_symbolic_link_points_to() {
    let (place, tree, copies) = place_with_tree();
    let options = ServeOptions { readable: true, ..ServeOptions::new(&tree) };
    fs::write(place.path().join("target"), "older").unwrap();
    let (link, dangling) = (copies.join("link"), copies.join("dangling"));
    symlink("../target", &link).unwrap();
    symlink("../missing", &dangling).unwrap();
    let ([first, second], _) = served(&options, 2, |address, host| {
        [(); 2].map(|()| pull("a", &link, address, host).unwrap())
    });
    assert_eq!([first.unchanged, second.unchanged], [0, 1]);
    assert!(link.is_symlink());
    assert_eq!(fs::read(place.path().join("target")).unwrap(), b"aaa");
    let (error, _) = served(&options, 1, |address, host| {
        pull("a", &dangling, address, host).unwrap_err().to_string()
    });
    assert!(error.ends_with("dangling: it is a symbolic link"), "{error}");
    assert!(!place.path().join("missing").exists());
}

#[test]
fn a_peer_that_asks_by_hand_for_a_path_outside_is_refused() {
    let (_place, tree, _) = place_with_tree();
    let options = ServeOptions { readable: true, ..ServeOptions::new(&tree) };
    for path in ["../source", "/etc/passwd", ".hidden", "inner/../../source", "a\0", ""] {
        let (reason, served) = served(&options, 1, |address, host| {
            let mut control = Link::connect(address, &Timeouts::default()).unwrap();
            let endpoint: Endpoint = EndpointBuilder::new().build(&host.domains()).unwrap();
            let buffer = RegisteredBuffer::new(4096, ALL_ACCESS, &host.domains()).unwrap();
            let plan = TreePlan::new(16 << 10, 1).unwrap();
            let purpose = Some(Job::Pull(PullJob { plan, path: path.to_owned() }));
            let (reach, buffer) = (endpoint.address().into(), buffer.remote());
            let hello = Hello { reach, buffer, purpose, session: None };
            control.send(&Message::Hello(hello)).unwrap();
            control.expect(Duration::from_secs(60)).unwrap_err().to_string()
        });
        assert!(reason.contains("a server would refuse the path"), "{path:?}: {reason}");
        assert!(
            matches!(served[0], Err(ServeError::Copy(CopyError::PulledPath { .. }))),
            "{served:?}"
        );
    }
}
