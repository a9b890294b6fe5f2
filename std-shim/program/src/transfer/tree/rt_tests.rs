//! Receivers of directories, and senders that break the protocol or name paths outside.

use super::receive::receive_tree;
use super::record::{CHUNK_HEADER, Entry, Record, RelativePath, Time};
use super::stream::{CREDIT_SLOTS, CREDIT_STRIDE, Meter, Opening};
use super::target::{Roots, Rules, Target};
use crate::hosts::{Host, software_hosts};
use crate::job::{Job, Link, TreeJob, TreePlan};
use crate::session::{Environment, Reporter, expect_asker};
use crate::transfer::error::{CopyRole, TransferError};
use crate::transfer::side::Side;
use polyrail::chain::Chain;
use polyrail::endpoint::EndpointBuilder;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::ProtectionDomain;
use polyrail::verbs::{AccessFlags, SendWr};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

const CHUNK: usize = 256 << 10;

/// Rules of a server.
const RULES: Rules =
    Rules { overwrite: true, exact: false, max_file_size: Some(1000), sync: false };

fn entry(path: &str, size: u64) -> Entry {
    let path = RelativePath::new(path.into()).unwrap();
    Entry { path, mode: 0o644, modified: Time { seconds: 1_000_000_000, nanoseconds: 5 }, size }
}

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    [Record::Data { offset, length }.encode(), bytes.to_vec()].concat()
}

fn file(path: &str, size: u64) -> Vec<u8> {
    Record::File(entry(path, size)).encode()
}

fn end(of: &[u8]) -> Vec<u8> {
    Record::End { crc32: crc32fast::hash(of) }.encode()
}

fn environment<'a>(
    host: &'a Host,
    builder: &'a EndpointBuilder,
    interrupted: &'a AtomicBool,
) -> Environment<'a, ProtectionDomain> {
    let stall_timeout = Duration::from_secs(60);
    let (domains, reporter) = (host.domains(), Reporter::unheard());
    Environment { domains, builder, stall_timeout, reporter, timeouts: None, interrupted }
}

/// Returns why a receiver ends that gets one chunk with these records, whose stated length is
/// `extra` too long.
fn refused(records: &[Vec<u8>], extra: usize, target: Target) -> String {
    let (here, there) = software_hosts(2).unwrap();
    let builder = EndpointBuilder::new();
    let interrupted = AtomicBool::new(false);
    let plan = TreePlan::new(CHUNK as u64, 2).unwrap();
    let (near, mut far) = Link::pair().unwrap();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let hello = expect_asker(&mut far).unwrap();
            let environment = environment(&there, &builder, &interrupted);
            let opening = Opening::Answer(&hello);
            receive_tree(environment, far, opening, plan, target, Meter::default()).unwrap_err()
        });
        let domains = here.domains();
        let ring = RegisteredBuffer::new(2 * CHUNK, AccessFlags::empty(), &domains).unwrap();
        let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let credits = RegisteredBuffer::new(CREDIT_SLOTS * CREDIT_STRIDE, writable, &domains);
        let credits = credits.unwrap();
        let mut side = Side::new(environment(&here, &builder, &interrupted), near).unwrap();
        let job = Job::Tree(TreeJob { plan, overwrite: true });
        let peer = Opening::Ask(job).meet(&mut side, &credits, 2).unwrap();
        let bytes = records.concat();
        let length = (bytes.len() + extra) as u32;
        ring.write_at(0, &length.to_be_bytes()).unwrap();
        ring.write_at(CHUNK_HEADER, &bytes).unwrap();
        let keys = ring.toward(&peer.buffer).unwrap();
        let local = ring.local(0, (CHUNK_HEADER + bytes.len()) as u32).unwrap();
        let remote = peer.buffer.at(0, (CHUNK_HEADER + bytes.len()) as u32).unwrap();
        assert!(side.post(&SendWr::write_with_imm(0, local, remote, 0, &keys)).unwrap());
        // Until the receiver reports why it ends.
        while side.poll().and_then(|progress| side.rest(progress)).is_ok() {}
        side.conclude(None::<&TransferError>);
        Chain(&receiver.join().unwrap().of(CopyRole::Receiver)).to_string()
    })
}

/// Makes a directory `served` with a file, a directory, and links that lead out of it to `outside`.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir_all(place.path().join("served/directory")).unwrap();
    fs::create_dir(place.path().join("outside")).unwrap();
    fs::write(place.path().join("served/old"), "old").unwrap();
    symlink("../outside", place.path().join("served/out")).unwrap();
    symlink("../outside/file", place.path().join("served/link")).unwrap();
    place
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_sender_that_breaks_the_protocol_is_refused_and_writes_nothing() {
    let finish = Record::Finish.encode();
    let many = vec![Record::Offer(entry("x", 1)).encode(); 1025];
    let broken: [(&[Vec<u8>], usize, &str); 14] = [
        (&[vec![9]], 0, "the first byte of a record is 9, which is not a kind of record"),
        (&[], CHUNK, "longer than agreed"),
        (&[file("new", 5)], 3, "cannot be read"),
        (&[finish.clone(), finish.clone()], 0, "after the last one"),
        (&[data(0, b"x")], 0, "before the file that they are of"),
        (&[end(b"")], 0, "did not begin"),
        (&[file("new", 5), file("new2", 5)], 0, "before a file was complete"),
        (&[file("new", 5), finish], 0, "before a file was complete"),
        (&[file("new", 5), data(3, b"123")], 0, "not within their file"),
        (&[file("new", 5), data(u64::MAX, b"123")], 0, "not within their file"),
        (&[file("new", 5), data(2, b"123"), data(1, b"1")], 0, "not in order"),
        (&[file("new", 3), data(0, b"123"), end(b"124")], 0, "checksums differ"),
        (&[file("new", 1001)], 0, "the file has 1001 bytes, but the server accepts"),
        (&many, 0, "offered too many files at a time"),
    ];
    for (records, extra, words) in broken {
        let place = place();
        let served = place.path().join("served");
        let target = Target::existing(&served, Roots::Visible, RULES);
        let why = refused(records, extra, target);
        assert!(why.contains(words), "{words:?} is not in: {why}");
        assert_eq!(names(&served), ["directory", "link", "old", "out"], "{words}");
        assert_eq!(fs::read(served.join("old")).unwrap(), b"old");
    }
}

#[test]
fn a_sender_reaches_nothing_outside_the_directory() {
    let enter = |path: &str| Record::Enter(entry(path, 0)).encode();
    let leave = |path: &str| Record::Leave(entry(path, 0)).encode();
    let offer = |path: &str| Record::Offer(entry(path, 5)).encode();
    let through = [file("out/file", 3), data(0, b"123"), end(b"123")];
    let reaching: [(&[Vec<u8>], &str); 13] = [
        (&[enter("out")], "served/out: it is a symbolic link"),
        (&[enter("out/new")], "served/out: it is a symbolic link"),
        (&[leave("out")], "cannot write"),
        (&[offer("out/file")], "served/out: it is a symbolic link"),
        (&through, "served/out: it is a symbolic link"),
        (&[file("out", 3)], "served/out: it is a symbolic link"),
        (&[offer("link")], "served/link: it is a symbolic link"),
        (&[file("link", 3)], "served/link: it is a symbolic link"),
        (&[enter("old")], "served/old: it is a regular file"),
        (&[file("directory", 3)], "served/directory: it is a directory"),
        (&[enter(".ssh")], "a receiver would refuse the name \".ssh\""),
        (&[file(".profile", 3)], "a receiver would refuse the name \".profile\""),
        (&[offer("a\nb")], "a receiver would refuse the name"),
    ];
    for (records, words) in reaching {
        let place = place();
        let served = place.path().join("served");
        let why = refused(records, 0, Target::existing(&served, Roots::Visible, RULES));
        assert!(why.contains(words), "{words:?} is not in: {why}");
        assert_eq!(names(&served), ["directory", "link", "old", "out"], "{words}");
        assert_eq!(names(&place.path().join("outside")), [""; 0], "{words}");
    }
}

#[test]
fn a_server_sends_only_what_was_asked_for() {
    for records in [[file("other", 3)], [Record::Enter(entry("other", 0)).encode()]] {
        let place = place();
        let directory = place.path().join("directory");
        let target = Target::file_or_directory(&directory, "asked".into(), RULES);
        let why = refused(&records, 0, target);
        assert!(why.contains("a receiver would refuse the name \"other\""), "{why}");
        assert!(!directory.exists());
    }
}
