//! Devices over TCP: in one process, and between two.

use crate::misuse::{about_to_meet, meet_after_a_lack};
use crate::random::Random;
use crate::ranks::{LOGGER, LONG, Memory, Pair, at_once, logged, until};
use crate::sockets::{epolls, no_descriptor};
use crate::table::{HANDLE, Pointer, SYSTEM, Table};
use crate::works::merged;
use crate::{CHILD, Plugin, VERSIONS, cases, traffic};
use std::env;
use std::ffi::c_int;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Four devices on the loopback interface.
const TCP: &[(&str, &str)] = &[
    ("POLYRAIL_BACKEND", "tcp"),
    ("POLYRAIL_DEVICES", "lo,tcp:127.0.0.2,127.0.0.3,tcp:127.0.0.4"),
];

const IMPATIENT: &[(&str, &str)] = &[TCP[0], TCP[1], ("POLYRAIL_CONNECT_TIMEOUT_MS", "3000")];

cases! {
    devices_over_tcp_are_described: TCP,
    every_version_moves_random_messages_over_tcp: TCP,
    merged_devices_over_tcp_move_random_messages: TCP,
    interfaces_are_found_without_names: &[("POLYRAIL_BACKEND", "tcp"), ("POLYRAIL_DEVICES", "")],
    two_processes_exchange_messages_over_tcp: TCP,
    a_lack_of_descriptors_for_the_senders_queues_is_waited_for: TCP,
    a_lack_of_descriptors_for_the_senders_queues_ends_in_time: IMPATIENT,
    a_lack_of_descriptors_for_the_receivers_queues_is_waited_for: TCP,
    a_lack_of_descriptors_for_the_receivers_queues_ends_in_time: IMPATIENT,
}

/// The handle of the process that started this one.
const THEIRS: &str = "OVER_TCP_HANDLE";

/// Messages that each process sends.
const MESSAGES: usize = 100;

const LONGEST: usize = 1 << 20;

fn devices_over_tcp_are_described(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        let context = table.init(LOGGER, -1).unwrap();
        assert_eq!(table.devices(), Ok(4));
        let all: Vec<_> = (0..4).map(|device| table.properties(device).unwrap()).collect();
        let names: Vec<_> = all.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["tcp:lo", "tcp:127.0.0.2", "tcp:127.0.0.3", "tcp:127.0.0.4"]);
        for (at, found) in all.iter().enumerate() {
            assert_eq!((&found.pci_path, found.ptr_support, found.port), (&None, 1, 1));
            assert_eq!((found.max_recvs, found.force_flush), (8, 0));
            assert_eq!(found.rail_ids, [-1, -1], "one network is not a rail");
            assert!(found.speed > 0);
            assert!(all[..at].iter().all(|other| other.guid != found.guid));
        }
        assert_eq!(table.finalize(context), 0);
    }
}

fn every_version_moves_random_messages_over_tcp(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        let context = table.init(LOGGER, -1).unwrap();
        let pair = Pair::new(table, context, 0, 1);
        traffic::run(&pair, 100, version.into(), &mut ());
        pair.close();
        assert_eq!(table.finalize(context), 0);
    }
}

fn merged_devices_over_tcp_move_random_messages(plugin: &Plugin) {
    let pair = merged(plugin);
    traffic::run(&pair, 300, 7, &mut ());
    pair.close();
}

/// A host that no other host can reach has no device.
fn interfaces_are_found_without_names(plugin: &Plugin) {
    // SAFETY: there is one thread.
    unsafe { env::remove_var("POLYRAIL_DEVICES") };
    let table = plugin.table(12);
    let Ok(context) = table.init(LOGGER, -1) else {
        let logged = crate::ranks::logged();
        assert!(logged.iter().any(|line| line.contains("no network interface")), "{logged:?}");
        return;
    };
    let found = table.devices().unwrap();
    assert!((1..=8).contains(&found), "{found}");
    for device in 0..found {
        let name = table.properties(device).unwrap().name;
        assert!(name.starts_with("tcp:") && name != "tcp:lo", "{name}");
    }
    assert_eq!(table.finalize(context), 0);
}

fn hex(handle: &[u8; HANDLE]) -> String {
    handle.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> [u8; HANDLE] {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}

/// This process and another one: each listens, connects to the other, and sends and receives.
fn two_processes_exchange_messages_over_tcp(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let is_first = env::var_os(THEIRS).is_none();
    let nics = if is_first { [0, 1] } else { [2, 3] };
    let device = table.make_v_device(&nics).unwrap();
    let mut ours = [0u8; HANDLE];
    let listener = table.listen(context, device, ours.as_mut_ptr().cast()).unwrap();
    if !is_first {
        println!("{}", hex(&ours));
        let theirs = from_hex(&env::var(THEIRS).unwrap());
        exchange(table, context, device, listener, theirs, [1, 2]);
        return;
    }
    let mut other = Command::new(env::current_exe().unwrap())
        .env(CHILD, "two_processes_exchange_messages_over_tcp")
        .env(THEIRS, hex(&ours))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    exchange(table, context, device, listener, from_hex(line.trim()), [2, 1]);
    assert!(other.wait().unwrap().success());
}

fn exchange(
    table: Table,
    context: Pointer,
    device: c_int,
    listener: Pointer,
    mut theirs: [u8; HANDLE],
    [sends, receives]: [u64; 2],
) {
    let (mut send, mut recv) = (Pointer::default(), Pointer::default());
    let begin = Instant::now();
    while send.is_null() || recv.is_null() {
        if send.is_null() {
            send = at_once(|| table.connect(context, device, theirs.as_mut_ptr().cast())).unwrap();
        }
        if recv.is_null() {
            recv = at_once(|| table.accept(listener)).unwrap();
        }
        assert!(begin.elapsed() < LONG, "not connected: {:?}", crate::ranks::logged());
    }
    let pair = Pair { table, context, send, recv };
    let mut from = Memory::new(&table, send, LONGEST);
    let mut to = Memory::new(&table, recv, LONGEST);
    let (mut sending, mut receiving) = (Random(sends), Random(receives));
    let mut expected = vec![0; LONGEST];
    for _ in 0..MESSAGES {
        let bytes = sending.below(LONGEST);
        sending.fill(&mut from.bytes[..bytes]);
        let receive = until("irecv", || pair.irecv(&[(to.at(0), LONGEST, 1, to.handle)]));
        let send = until("isend", || pair.isend((from.at(0), bytes), 1, from.handle));
        let (mut sent, mut came) = (None, None);
        until("a message", || {
            sent = sent.or_else(|| pair.test(send));
            came = came.or_else(|| pair.test(receive));
            sent.and(came)
        });
        let theirs = receiving.below(LONGEST);
        receiving.fill(&mut expected[..theirs]);
        assert_eq!((sent.unwrap()[0], came.unwrap()[0]), (bytes as c_int, theirs as c_int));
        assert!(to.bytes[..theirs] == expected[..theirs]);
    }
    pair.close();
    assert_eq!(table.close_listen(listener), 0);
    assert_eq!(table.finalize(context), 0);
}

/// The sender's link is being opened.
fn a_lack_of_descriptors_for_the_senders_queues_is_waited_for(plugin: &Plugin) {
    meet_after_a_lack(about_to_meet(plugin));
}

fn a_lack_of_descriptors_for_the_senders_queues_ends_in_time(plugin: &Plugin) {
    let begin = Instant::now();
    let (table, context, listener, mut handle) = about_to_meet(plugin);
    let taken = no_descriptor();
    let sender = until("an error", || {
        assert_eq!(at_once(|| table.accept(listener)), Ok(Pointer::default()), "{:?}", logged());
        at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast())).err()
    });
    drop(taken);
    let words = logged().join("\n");
    assert_eq!(sender, SYSTEM, "{words}");
    assert!(words.contains("cannot create a completion queue: errno 24"), "{words}");
    assert!(begin.elapsed() >= Duration::from_secs(3), "{:?}: {words}", begin.elapsed());
    Pair::new(table, context, 1, 0).close();
    assert_eq!(table.close_listen(listener), 0);
}

/// A sender that has its end, and has sent its hello, which the receiver has not accepted yet.
fn about_to_be_accepted(plugin: &Plugin) -> (Table, Pointer, Pointer, [u8; HANDLE]) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
    let before = epolls();
    until("a hello", || {
        assert_eq!(table.connect(context, 1, handle.as_mut_ptr().cast()), Ok(Pointer::default()));
        if epolls() > before {
            return Some(());
        }
        assert_eq!(table.accept(listener), Ok(Pointer::default()));
        None
    });
    (table, context, listener, handle)
}

fn a_lack_of_descriptors_for_the_receivers_queues_is_waited_for(plugin: &Plugin) {
    meet_after_a_lack(about_to_be_accepted(plugin));
}

fn a_lack_of_descriptors_for_the_receivers_queues_ends_in_time(plugin: &Plugin) {
    let (table, context, listener, mut handle) = about_to_be_accepted(plugin);
    let mut taken = no_descriptor();
    let begin = Instant::now();
    let mut sender = Ok(Pointer::default());
    let receiver = until("an error", || {
        if sender == Ok(Pointer::default()) {
            sender = at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast()));
            // Those of the sender, if it has given up.
            taken.extend(no_descriptor());
        }
        at_once(|| table.accept(listener)).err()
    });
    drop(taken);
    let words = logged().join("\n");
    assert_eq!(receiver, SYSTEM, "{words}");
    assert!(words.contains("cannot create a completion queue: errno 24"), "{words}");
    assert!(begin.elapsed() >= Duration::from_secs(3), "{:?}: {words}", begin.elapsed());
    Pair::new(table, context, 1, 0).close();
    assert_eq!(table.close_listen(listener), 0);
}
