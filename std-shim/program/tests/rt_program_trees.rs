//! The program copies directories and several files, run as a process.

mod program_support;

use program_support::server::{Server, assert_ok};
use program_support::*;
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

/// Makes `tree`, with files of many sizes in directories, and different times and permissions.
fn make_tree(place: &Place) {
    fs::create_dir_all(place.path("tree/empty")).unwrap();
    fs::create_dir_all(place.path("tree/a/b")).unwrap();
    let sizes = [0, 1, 100, 4096, (1 << 20) - 30, 1 << 20, (3 << 20) + 17];
    for (number, bytes) in sizes.into_iter().enumerate() {
        let name = place.path(["tree/", "tree/a/", "tree/a/b/"][number % 3]);
        fs::write(name.join(format!("file {number}")), pattern(bytes)).unwrap();
    }
    for number in 0..3000 {
        fs::write(place.path(&format!("tree/a/small-{number}")), pattern(number % 50)).unwrap();
    }
    fs::write(place.path("tree/.hidden"), "hidden").unwrap();
    let mode = |name, mode| fs::set_permissions(place.path(name), Permissions::from_mode(mode));
    mode("tree/file 0", 0o600).unwrap();
    mode("tree/a/file 1", 0o777).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let times = FileTimes::new().set_modified(old);
    File::options().write(true).open(place.path("tree/file 3")).unwrap().set_times(times).unwrap();
    File::open(place.path("tree/a/b")).unwrap().set_times(times).unwrap();
    mode("tree/a/b", 0o550).unwrap();
}

/// Kind, permissions, time and contents of a file.
type Found = (bool, u32, i64, i64, Option<Vec<u8>>);

/// Returns everything below a directory, and the directory itself.
fn found(directory: &Path) -> BTreeMap<String, Found> {
    let mut all = BTreeMap::new();
    let mut paths = vec![directory.to_owned()];
    while let Some(path) = paths.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let contents = metadata.is_file().then(|| fs::read(&path).unwrap());
        if metadata.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
        let (mode, seconds) = (metadata.mode() & 0o7777, metadata.mtime());
        all.insert(name, (metadata.is_dir(), mode, seconds, metadata.mtime_nsec(), contents));
    }
    all
}

#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (found(one), found(other));
    for (name, (is_dir, mode, seconds, nanoseconds, contents)) in &one {
        let copy = &other[name];
        let same = (&copy.0, &copy.1, &copy.2, &copy.3);
        assert_eq!((is_dir, mode, seconds, nanoseconds), same, "{name}");
        assert!(*contents == copy.4, "{name}");
    }
    assert_eq!(one.len(), other.len());
}

#[test]
fn a_directory_arrives_whole_with_its_times_and_permissions_and_a_second_copy_sends_nothing() {
    for options in [&[][..], &["--scheme", "dqplb", "--message-size", "16K", "--window", "1"]] {
        let place = Place::new();
        make_tree(&place);
        let copy = [&["copy", "--json"], options, &["tree", "dst"]].concat();
        let output = place.run(&copy);
        assert_success(&output);
        assert_same(&place.path("tree"), &place.path("dst/tree"));
        let report = json(&output);
        assert_eq!((&report["files"], &report["unchanged"]), (&3008.into(), &0.into()), "{report}");
        if options.is_empty() {
            // 10 MiB in chunks of 1 MiB, with 3000 small files and all offers.
            assert!(report["requests"].as_u64().unwrap() < 20, "{report}");
        }
        let output = place.run(&copy);
        assert_success(&output);
        let report = json(&output);
        assert_eq!((&report["files"], &report["unchanged"]), (&0.into(), &3008.into()), "{report}");
        assert_eq!(report["bytes"], 0, "{report}");
        assert_same(&place.path("tree"), &place.path("dst/tree"));
    }
}

#[test]
fn files_are_offered_while_one_is_sent() {
    // A sender offers at most 4096 files ahead, so these are more.
    for (first, bytes, size) in [(100_000, 0, "16K"), (9000, 9000, "1M")] {
        let place = Place::new();
        fs::create_dir_all(place.path("tree/directory")).unwrap();
        fs::write(place.path("tree/0-long"), pattern(first)).unwrap();
        for number in 0..4500 {
            let name = format!("tree/{}{number}", ["", "directory/"][number / 4300]);
            fs::write(place.path(&name), pattern(bytes)).unwrap();
        }
        let copy = ["copy", "--json", "--message-size", size, "tree", "dst"];
        let output = place.run(&copy);
        assert_success(&output);
        assert_eq!(json(&output)["files"], 4501);
        assert_same(&place.path("tree"), &place.path("dst/tree"));
    }
}

#[test]
fn a_second_copy_sends_only_what_is_missing_or_differs() {
    let place = Place::new();
    make_tree(&place);
    assert_success(&place.run(&["copy", "--quiet", "tree", "dst"]));
    fs::remove_file(place.path("dst/tree/a/small-7")).unwrap();
    fs::write(place.path("tree/a/small-8"), "longer than it was before, by far, surely so")
        .unwrap();
    File::options()
        .write(true)
        .open(place.path("dst/tree/a/small-9"))
        .unwrap()
        .set_modified(SystemTime::UNIX_EPOCH)
        .unwrap();
    fs::set_permissions(place.path("dst/tree/a/small-10"), Permissions::from_mode(0o604)).unwrap();
    fs::write(place.path("dst/tree/a/other"), "stays").unwrap();
    let output = place.run(&["copy", "--json", "tree", "dst"]);
    assert_success(&output);
    assert_eq!(json(&output)["files"], 3);
    assert_eq!(fs::read(place.path("dst/tree/a/other")).unwrap(), b"stays");
    fs::remove_file(place.path("dst/tree/a/other")).unwrap();
    File::open(place.path("dst/tree/a"))
        .unwrap()
        .set_modified(fs::metadata(place.path("tree/a")).unwrap().modified().unwrap())
        .unwrap();
    assert_same(&place.path("tree"), &place.path("dst/tree"));
}

#[test]
fn an_unchanged_file_of_another_user_keeps_its_permissions() {
    const OTHER_USER: u32 = 65534;
    let place = Place::new();
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/file"), "file").unwrap();
    assert_success(&place.run(&["copy", "--quiet", "tree", "dst"]));
    let copy = place.path("dst/tree/file");
    fs::set_permissions(&copy, Permissions::from_mode(0o604)).unwrap();
    // A root without this capability may not change the files of others.
    let limited = ["--bounding-set", "-fowner"];
    let is_limited = Command::new("setpriv").args(limited).arg("true").status();
    if !is_limited.is_ok_and(|status| status.success())
        || chown(&copy, Some(OTHER_USER), None).is_err()
    {
        println!("skipped: this takes root and setpriv");
        return;
    }
    let mut command = Command::new("setpriv");
    command.args(limited).args([PROGRAM, "copy", "--json", "tree", "dst"]);
    let output = command.current_dir(&place.directory).output().unwrap();
    assert_success(&output);
    assert_eq!(json(&output)["unchanged"], 1);
    assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o777, 0o604);
}

#[test]
fn directories_keep_their_sticky_and_set_group_id_bits() {
    let place = Place::new();
    fs::create_dir_all(place.path("tree/inner/new")).unwrap();
    fs::create_dir_all(place.path("dst/tree/inner")).unwrap();
    let set = |name: &str, mode| {
        fs::set_permissions(place.path(name), Permissions::from_mode(mode)).unwrap();
    };
    set("tree", 0o6750);
    set("dst/tree", 0o2775);
    // The owner may not write into it until the copy permits it.
    set("dst/tree/inner", 0o3555);
    assert_success(&place.run(&["copy", "--quiet", "tree", "dst"]));
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().mode() & 0o7777;
    let inner = mode("tree/inner");
    assert_eq!(mode("dst/tree"), 0o2750);
    assert_eq!(mode("dst/tree/inner"), inner | 0o3000);
    // The system gives new directories the bit of the directory that they are in.
    assert_eq!(mode("dst/tree/inner/new"), mode("tree/inner/new") | 0o2000);
}

#[test]
fn several_sources_get_their_names_in_a_directory() {
    let place = Place::with_source(1000);
    fs::create_dir(place.path("directory")).unwrap();
    fs::write(place.path("directory/x"), "x").unwrap();
    assert_success(&place.run(&["copy", "src", "directory", "dst"]));
    assert_eq!(fs::read(place.path("dst/src")).unwrap(), pattern(1000));
    assert_same(&place.path("directory"), &place.path("dst/directory"));
    // One file into a directory.
    fs::write(place.path("other"), "other").unwrap();
    assert_success(&place.run(&["copy", "other", "dst"]));
    assert_eq!(fs::read(place.path("dst/other")).unwrap(), b"other");
    // With a slash, the name is that of a directory, which is made.
    assert_success(&place.run(&["copy", "other", "new/"]));
    assert_eq!(fs::read(place.path("new/other")).unwrap(), b"other");
    let output = place.run(&["copy", "src", "directory/../src", "dst"]);
    assert_failure(&output, 2, &["src and directory/../src would have the same name"]);
    let output = place.run(&["copy", "src", "missing", "dst"]);
    assert_failure(&output, 3, &["cannot read missing"]);
    let output = place.run(&["copy", "directory", "src", "other"]);
    assert_failure(&output, 4, &["cannot write into other: it is a regular file, not a directory"]);
    for to in ["directory", "directory/new"] {
        let output = place.run(&["copy", "directory", to]);
        assert_failure(&output, 8, &["cannot copy the directory directory into itself"]);
    }
    for source in ["src", "directory"] {
        let output = place.run(&["copy", source, "."]);
        assert_failure(&output, 8, &[&format!("{source} and ./{source} are the same file")]);
    }
    let output = place.run(&["copy", "-", "dst"]);
    assert_failure(&output, 2, &["`-` is not a file: copy cannot read standard input"]);
    let output = place.run(&["copy", "--message-size", "4K", "directory", "dst"]);
    assert_failure(&output, 2, &["must be from 16384 to 1073741824 for directories"]);
}

#[test]
fn holes_stay_holes() {
    let place = Place::new();
    fs::create_dir(place.path("tree")).unwrap();
    let sparse = File::create(place.path("tree/sparse")).unwrap();
    sparse.set_len(1 << 32).unwrap();
    sparse.write_all_at(&pattern(5000), 1 << 30).unwrap();
    sparse.write_all_at(&pattern(70_000), (3 << 30) + 123).unwrap();
    File::create(place.path("tree/hole")).unwrap().set_len(1 << 30).unwrap();
    if fs::metadata(place.path("tree/sparse")).unwrap().blocks() * 512 > 1 << 20 {
        println!("skipped: this file system has no holes");
        return;
    }
    let output = place.run(&["copy", "--json", "tree", "dst"]);
    assert_success(&output);
    assert!(json(&output)["bytes"].as_u64().unwrap() < 1 << 20);
    for (name, bytes) in [("sparse", 1 << 32), ("hole", 1 << 30)] {
        let copy = fs::metadata(place.path(&format!("dst/tree/{name}"))).unwrap();
        assert_eq!(copy.len(), bytes);
        assert!(copy.blocks() * 512 <= 1 << 20, "{name}: {} blocks", copy.blocks());
    }
    let copy = File::open(place.path("dst/tree/sparse")).unwrap();
    for (at, data) in [(1 << 30, pattern(5000)), ((3 << 30) + 123, pattern(70_000))] {
        let mut bytes = vec![0; data.len() + 1];
        copy.read_exact_at(&mut bytes, at).unwrap();
        assert!(bytes[..data.len()] == data && bytes[data.len()] == 0);
    }
}

#[test]
fn links_and_what_is_no_file_are_followed_or_skipped_with_words() {
    let place = Place::new();
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/file"), "file").unwrap();
    symlink("file", place.path("tree/link")).unwrap();
    symlink(".", place.path("tree/loop")).unwrap();
    let _socket = UnixListener::bind(place.path("tree/socket")).unwrap();
    let output = place.run(&["copy", "--json", "tree", "dst"]);
    assert_ok(&output);
    assert_eq!(json(&output)["skipped"], 2);
    let said = stderr(&output);
    assert!(said.contains("polyrail: skipped tree/loop: it is a symbolic link\n"), "{said}");
    assert!(said.contains("polyrail: skipped tree/socket: it is a socket\n"), "{said}");
    assert!(fs::symlink_metadata(place.path("dst/tree/link")).unwrap().is_file());
    // Links in the destination are neither followed nor replaced.
    fs::create_dir(place.path("outside")).unwrap();
    for (link, target) in [("dst/tree", "outside"), ("dst/tree/file", "outside/file")] {
        _ = fs::remove_dir_all(place.path(link)).or_else(|_| fs::remove_file(place.path(link)));
        symlink(place.path(target), place.path(link)).unwrap();
        let output = place.run(&["copy", "tree", "dst"]);
        assert_failure(&output, 4, &[&format!("cannot write {link}: it is a symbolic link")]);
        assert_eq!(fs::read_dir(place.path("outside")).unwrap().count(), 0);
        fs::remove_file(place.path(link)).unwrap();
        fs::create_dir_all(place.path("dst/tree")).unwrap();
    }
}

#[test]
fn without_overwrite_only_files_that_differ_are_refused() {
    let place = Place::new();
    fs::create_dir(place.path("tree")).unwrap();
    fs::write(place.path("tree/file"), "file").unwrap();
    for _ in 0..2 {
        assert_success(&place.run(&["copy", "--no-overwrite", "--sync", "tree", "dst"]));
    }
    fs::write(place.path("tree/file"), "other").unwrap();
    let output = place.run(&["copy", "--no-overwrite", "tree", "dst"]);
    assert_failure(&output, 4, &["dst/tree/file exists, and --no-overwrite forbids"]);
    assert_eq!(fs::read(place.path("dst/tree/file")).unwrap(), b"file");
}

#[test]
fn sync_also_flushes_unchanged_files_and_the_names_of_new_directories() {
    let tracing = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    if !tracing.is_ok_and(|status| status.success()) {
        println!("skipped: strace does not run here");
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.path("tree/inner")).unwrap();
    for name in ["file", "file 2", "file 3"] {
        fs::write(place.path("tree/inner").join(name), "file").unwrap();
    }
    assert_success(&place.run(&["copy", "--quiet", "tree", "old"]));
    for to in ["old", "new"] {
        // Writes each descriptor with its path.
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-e", "trace=fsync", "-o", "flushed", PROGRAM, "copy"]);
        command.args(["--quiet", "--sync", "tree", to]).current_dir(&place.directory);
        assert_success(&command.output().unwrap());
        let flushed = fs::read_to_string(place.path("flushed")).unwrap();
        let path = fs::canonicalize(place.path(to)).unwrap();
        let mut expected = vec![path.clone(), path.join("tree"), path.join("tree/inner")];
        match to {
            "old" => expected.push(path.join("tree/inner/file")),
            _ => expected.push(path.parent().unwrap().to_owned()),
        }
        for path in expected {
            let path = format!("<{}>", path.display());
            assert!(flushed.contains(&path), "{path} is not in: {flushed}");
        }
        if to == "old" {
            // Once for all files in it.
            let inner = format!("<{}>", path.join("tree/inner").display());
            assert_eq!(flushed.matches(&inner).count(), 1, "{flushed}");
        }
    }
}

#[test]
fn what_was_complete_before_a_break_stays_and_is_not_sent_again() {
    for (signal, status) in [(libc::SIGKILL, None), (libc::SIGINT, Some(130))] {
        let place = Place::new();
        fs::create_dir(place.path("tree")).unwrap();
        for number in 0..20 {
            fs::write(place.path(&format!("tree/{number:02}")), pattern(4 << 20)).unwrap();
        }
        break_and_repeat(&place, signal, status);
    }
}

/// Ends a copy of `tree`, which has 20 files, and copies again.
fn break_and_repeat(place: &Place, signal: libc::c_int, status: Option<i32>) {
    // 80 MiB at 10 MB a second.
    let limited = ["copy", "--line-rate", "10M", "--rails", "1", "tree", "dst"];
    let mut command = Command::new(PROGRAM);
    command.args(limited).current_dir(&place.directory).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    while !place.path("dst/tree/02").exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: the call touches no memory of ours, and the child has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
    assert_eq!(child.wait().unwrap().code(), status);
    let complete = fs::read_dir(place.path("dst/tree")).unwrap().count() as u64;
    assert!((3..20).contains(&complete), "{complete}");
    let output = place.run(&["copy", "--json", "tree", "dst"]);
    assert_success(&output);
    let report = json(&output);
    assert_eq!(report["unchanged"], complete, "{report}");
    assert_eq!(report["files"], 20 - complete, "{report}");
    assert_same(&place.path("tree"), &place.path("dst/tree"));
}

#[test]
fn a_copy_of_directories_survives_a_rail_that_fails() {
    let place = Place::new();
    make_tree(&place);
    let output = place.run(&["copy", "--fault", "1:1M", "--json", "tree", "dst"]);
    assert_ok(&output);
    assert!(stderr(&output).contains("fault at "), "{}", stderr(&output));
    assert_same(&place.path("tree"), &place.path("dst/tree"));
}

#[test]
fn a_rail_that_fails_ends_a_copy_that_is_not_rerouted() {
    let place = Place::new();
    make_tree(&place);
    let output = place.run(&["copy", "--fault", "1:1M", "--rail-failure", "fatal", "tree", "dst"]);
    assert_failure_by_fault(&output, 6, &["rail 1 (device tx1"]);
    assert_success(&place.run(&["copy", "tree", "dst"]));
    assert_same(&place.path("tree"), &place.path("dst/tree"));
}

#[test]
fn many_files_take_few_descriptors_and_little_memory() {
    let place = Place::new();
    make_tree(&place);
    let script = format!("ulimit -n 64 && ulimit -v 1000000 && exec {PROGRAM} copy tree dst");
    let mut command = Command::new("sh");
    assert_success(&command.args(["-c", &script]).current_dir(&place.directory).output().unwrap());
    assert_same(&place.path("tree"), &place.path("dst/tree"));
}

#[test]
fn directories_go_to_a_server_and_come_back() {
    let place = Place::new();
    make_tree(&place);
    fs::create_dir(place.path("served")).unwrap();
    let server = Server::start(&place, &["--readable", "served"]);
    let address = server.address();
    let to = ["copy", "--to", &address, "--json", "tree", "tree/file 3"];
    for (files, unchanged) in [(3009, 0), (0, 3009)] {
        let output = place.run(&to);
        assert_ok(&output);
        let report = json(&output);
        assert_eq!((&report["files"], &report["unchanged"]), (&files.into(), &unchanged.into()));
    }
    assert_eq!(fs::read(place.path("served/file 3")).unwrap(), pattern(4096));
    // A server's umask limits permissions, so they are not compared here.
    assert_eq!(found(&place.path("served/tree")).len(), found(&place.path("tree")).len());
    let from = |path: &str| format!("{address}:{path}");
    for (files, unchanged) in [(3008, 0), (0, 3008)] {
        let output = place.run(&["copy", "--json", &from("tree"), "back"]);
        assert_ok(&output);
        let report = json(&output);
        assert_eq!((&report["files"], &report["unchanged"]), (&files.into(), &unchanged.into()));
    }
    assert_same(&place.path("served/tree"), &place.path("back/tree"));
    // A single file gets the name that the command line gives it.
    assert_ok(&place.run(&["copy", "--quiet", &from("tree/a/file 4"), "alone"]));
    assert_eq!(fs::read(place.path("alone")).unwrap(), pattern((1 << 20) - 30));
    assert_ok(&place.run(&["copy", "--quiet", &from("tree/a/file 4"), "back"]));
    assert!(place.path("back/file 4").is_file());
    // With a slash, it is the name of a directory, which is made.
    for (path, name) in [("tree/a/file 4", "file 4"), ("tree/a/b/", "b")] {
        let directory = format!("new {name}/");
        assert_ok(&place.run(&["copy", "--quiet", &from(path), &directory]));
        assert!(place.path(&directory).join(name).exists());
    }
    for (path, words) in [
        ("missing", "No such file"),
        ("../src", "without . and .."),
        ("tree/..", "without . and .."),
    ] {
        let output = place.run(&["copy", "--quiet", &from(path), "other"]);
        assert!(!output.status.success());
        assert!(stderr(&output).contains(words), "{path}: {}", stderr(&output));
        assert!(!place.path("other").exists());
    }
}

#[test]
fn a_server_names_what_it_skips() {
    let place = Place::new();
    fs::create_dir_all(place.path("served/tree")).unwrap();
    fs::write(place.path("served/tree/file"), "file").unwrap();
    symlink("file", place.path("served/tree/link")).unwrap();
    let server = Server::start(&place, &["--readable", "served"]);
    let output = place.run(&["copy", "--json", &format!("{}:tree/", server.address()), "dst"]);
    assert_ok(&output);
    let report = json(&output);
    assert_eq!((&report["files"], &report["skipped"]), (&1.into(), &1.into()), "{report}");
    let line = server.line("polyrail: skipped ");
    assert!(line.ends_with("served/tree/link: it is a symbolic link"), "{line}");
}

#[test]
fn a_server_that_is_not_readable_sends_nothing() {
    let place = Place::with_source(1000);
    let server = Server::start(&place, &["."]);
    let output = place.run(&["copy", "--quiet", &format!("{}:src", server.address()), "dst"]);
    assert_failure(
        &output,
        6,
        &["this server does not let peers read files: start it with --readable"],
    );
    assert_eq!(place.files(), ["src"]);
}
