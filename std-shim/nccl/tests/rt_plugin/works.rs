//! What works.

use crate::random::Random;
use crate::ranks::{LOGGER, Memory, Pair, at_once, logged, until};
use crate::table::{HANDLE, Pointer, Table};
use crate::{Plugin, VERSIONS, cases, text, traffic};
use std::ffi::c_int;
use std::time::{Duration, Instant};

cases! {
    the_headers_agree,
    every_version_finds_the_devices,
    every_version_moves_random_messages,
    four_rails_of_two_queue_pairs_move_random_messages: &[
        ("POLYRAIL_RAILS", "4"),
        ("POLYRAIL_QUEUE_PAIRS_PER_RAIL", "2"),
        ("POLYRAIL_SPLIT_THRESHOLD", "1K"),
    ],
    merged_devices_move_random_messages,
    devices_are_merged,
    merging_one_end_only_connects,
    an_optional_completion_comes_at_once: &[("POLYRAIL_HEALING", "off")],
    what_is_sent_again_never_lands_in_a_buffer_that_is_used_again,
    many_connections_of_one_listening_end,
    memory_is_registered_in_any_order,
    threads_share_a_connection,
    what_older_versions_merged_stays,
    what_a_communicator_left_ends_with_it,
    older_versions_see_four_parts_of_a_device_of_eight: &[
        ("POLYRAIL_DEVICES", "s0,s1,s2,s3,s4,s5,s6,s7"),
    ],
    messages_of_no_bytes_may_lie_anywhere,
    listed_rails_and_planes_are_reported: &[
        ("POLYRAIL_DEVICES", "s0,s1,s2,s3"),
        ("POLYRAIL_RAIL_IDS", "s0=7,s1=7:0,s2=7:0,gone=1"),
    ],
    metrics_of_a_process_are_in_its_folder,
    rates_that_are_given_decide_what_each_nic_carries: &[
        ("POLYRAIL_DEVICES", "s0,s1,s2,s3"),
        ("POLYRAIL_DEVICE_MBPS", "s0=300000,s1=100000,gone=1"),
    ],
    a_process_goes_on_without_metrics_that_cannot_be_written,
}

/// A program in C, with the public headers' layouts, sees what it should.
fn the_headers_agree(_: &Plugin) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layout.c");
    let program = std::env::temp_dir().join(format!("polyrail-layout-{}", std::process::id()));
    let mut compile = std::process::Command::new("cc");
    compile
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-ldl");
    if let Some(headers) = std::env::var_os("NCCL_HEADERS") {
        compile.arg("-DNCCL_HEADERS").arg("-I").arg(headers);
    }
    assert!(compile.status().unwrap().success());
    let ran = std::process::Command::new(&program).arg(Plugin::path()).status();
    std::fs::remove_file(&program).unwrap();
    assert!(ran.unwrap().success());
}

fn every_version_finds_the_devices(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        assert_eq!(text(table.name()), "polyrail");
        let context = table.init(LOGGER, -1).unwrap();
        assert_eq!(table.devices(), Ok(4));
        for device in 0..4 {
            let found = table.properties(device).unwrap();
            assert_eq!(found.name, format!("s{device}"));
            assert_eq!((found.pci_path, found.ptr_support, found.port), (None, 1, 1));
            assert_eq!((found.max_recvs, found.force_flush, found.speed), (8, 0, 100_000));
            assert!(found.max_comms >= 1000 && found.max_p2p_bytes >= 1 << 30);
            assert_eq!(found.rail_ids, [-1, -1], "it has no network");
            if version >= 9 {
                assert_eq!(found.parts, [device]);
            }
        }
        let guids: std::collections::HashSet<u64> =
            (0..4).map(|device| table.properties(device).unwrap().guid).collect();
        assert_eq!(guids.len(), 4, "each NIC is one of its own");
        assert_eq!(table.finalize(context), 0);
    }
}

fn every_version_moves_random_messages(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        let context = table.init(LOGGER, -1).unwrap();
        let pair = Pair::new(table, context, 0, 1);
        traffic::run(&pair, 150, version.into(), &mut ());
        pair.close();
        assert_eq!(table.finalize(context), 0);
    }
}

/// A pair over two merged devices of two NICs each.
pub(crate) fn merged(plugin: &Plugin) -> Pair {
    let (table, context, [here, there]) = merged_devices(plugin);
    Pair::new(table, context, here, there)
}

/// Two devices of two NICs each, which are not connected.
pub(crate) fn merged_devices(plugin: &Plugin) -> (Table, Pointer, [c_int; 2]) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let devices = [[0, 1], [2, 3]].map(|nics| table.make_v_device(&nics).unwrap());
    (table, context, devices)
}

fn four_rails_of_two_queue_pairs_move_random_messages(plugin: &Plugin) {
    merged_devices_move_random_messages(plugin);
}

fn merged_devices_move_random_messages(plugin: &Plugin) {
    let pair = merged(plugin);
    traffic::run(&pair, 500, 7, &mut ());
    pair.close();
}

fn devices_are_merged(plugin: &Plugin) {
    for version in [12, 11, 10, 9] {
        let table = plugin.table(version);
        let context = table.init(LOGGER, -1).unwrap();
        assert_eq!(table.make_v_device(&[2, 0]), Ok(4));
        let found = table.properties(4).unwrap();
        // Without a PCI device, a merged device takes the place of its first NIC.
        assert_eq!((found.name.as_str(), found.speed, found.parts), ("s2", 200_000, vec![2, 0]));
        assert_eq!(table.make_v_device(&[2, 0]), Ok(4), "the same again");
        assert_eq!(table.make_v_device(&[0, 2]), Ok(5), "in another order: other rails");
        assert_eq!(table.make_v_device(&[3]), Ok(3), "a NIC is a device already");
        assert_eq!(table.devices(), Ok(6));
        logged();
        for wrong in [&[][..], &[0, 0], &[0, 4], &[-1], &[7]] {
            assert_eq!(table.make_v_device(wrong), Err(4), "{wrong:?}");
        }
        for count in [-1, 9, c_int::MAX] {
            let merged = [count, 0, 1, 2, 3, 0, 0, 0, 0];
            assert_eq!(table.make_v_device_of(&merged), Err(4));
        }
        assert_eq!(logged().len(), 8);
        assert_eq!(table.devices(), Ok(6));
        // Where there are communicators, merging is their affair: once there are none, NCCL counts
        // NICs again.
        assert_eq!(table.finalize(context), 0);
        let again = table.init(LOGGER, -1).unwrap();
        assert_eq!(table.devices(), Ok(if version >= 11 { 4 } else { 6 }));
        assert_eq!(table.finalize(again), 0);
    }
}

fn merging_one_end_only_connects(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let merged = table.make_v_device(&[0, 1, 2]).unwrap();
    for (from, to) in [(merged, 3), (3, merged)] {
        let pair = Pair::new(table, context, from, to);
        traffic::run(&pair, 50, 3, &mut ());
        pair.close();
    }
}

/// One buffer, with the hint of NCCL's protocols that look for flags in data.
fn early(pair: &Pair, to: &mut Memory) -> Option<Pointer> {
    let buffer = [(to.at(0), 64, 1, to.handle)];
    let request = at_once(|| pair.table.irecv(pair.recv, &buffer, true)).unwrap();
    assert_ne!(request.addr(), 1, "the hint is replaced by a request");
    crate::ranks::some(request)
}

/// Time of 1,000 messages of 64 bytes, one at a time, whose receives have an optional completion or
/// not.
fn thousand(pair: &Pair, optional: bool) -> Duration {
    let [mut from, mut to] = pair.memories(64);
    let begin = Instant::now();
    for round in 0..1000u32 {
        let receive = until("irecv", || match optional {
            true => early(pair, &mut to),
            false => pair.irecv(&[(to.at(0), 64, 1, to.handle)]),
        });
        // This also polls, and a device in software needs that to send the offer.
        let tested = pair.test(receive).map(|sizes| sizes[0]);
        assert_eq!(tested, optional.then_some(0), "nothing came yet");
        from.bytes[..4].copy_from_slice(&(round + 1).to_le_bytes());
        let send = until("isend", || pair.isend((from.at(0), 64), 1, from.handle));
        until("a send", || pair.test(send));
        until("the data", || {
            // SAFETY: the memory is there; a device may be writing it.
            let flag = unsafe { to.at(0).cast::<u32>().read_volatile() };
            (flag == round + 1).then_some(())
        });
        if !optional {
            until("a receive", || pair.test(receive));
        }
    }
    begin.elapsed()
}

fn an_optional_completion_comes_at_once(plugin: &Plugin) {
    let pair = merged(plugin);
    let [usual, optional] = [false, true].map(|optional| thousand(&pair, optional));
    // If an offer waited for the plugin's thread, each round would take 10 ms.
    assert!(optional < 20 * usual + Duration::from_secs(2), "{optional:?}, others {usual:?}");
    pair.close();
}

/// With healing, a share may be sent again after its data was seen.
fn what_is_sent_again_never_lands_in_a_buffer_that_is_used_again(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(64);
    let receive = until("irecv", || early(&pair, &mut to));
    assert_eq!(pair.test(receive), None, "the hint is not taken");
    let send = until("isend", || pair.isend((from.at(0), 64), 1, from.handle));
    assert_eq!(until("a receive", || pair.test(receive))[0], 64);
    until("a send", || pair.test(send));
    pair.close();
}

fn many_connections_of_one_listening_end(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
    let mut handles = [handle; 20];
    let (mut sends, mut recvs) = ([Pointer::default(); 20], Vec::new());
    until("20 connections", || {
        for (send, handle) in sends.iter_mut().zip(&mut handles) {
            if send.is_null() {
                *send = at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast())).unwrap();
            }
        }
        let recv = at_once(|| table.accept(listener)).unwrap();
        recvs.extend(crate::ranks::some(recv));
        (recvs.len() == 20 && sends.iter().all(|send| !send.is_null())).then_some(())
    });
    assert_eq!(table.close_listen(listener), 0);
    // Each end has another one: what one sends comes to one only.
    let receives: Vec<_> = recvs
        .iter()
        .map(|recv| {
            let mut to = Memory::new(&table, *recv, 8);
            let request = table.irecv(*recv, &[(to.at(0), 8, 0, to.handle)], false).unwrap();
            (to, request)
        })
        .collect();
    for (number, send) in sends.iter().enumerate() {
        let mut from = Memory::new(&table, *send, 8);
        from.bytes.copy_from_slice(&(number as u64 + 1).to_le_bytes());
        let request = until("isend", || {
            crate::ranks::some(table.isend(*send, (from.at(0), 8), 0, from.handle).unwrap())
        });
        until("a send", || table.test(request).unwrap());
    }
    let mut came: Vec<u64> = receives
        .iter()
        .map(|(to, request)| {
            until("a receive", || table.test(*request).unwrap());
            u64::from_le_bytes(to.bytes[..].try_into().unwrap())
        })
        .collect();
    came.sort_unstable();
    assert_eq!(came, (1..=20).collect::<Vec<u64>>());
    for (send, recv) in sends.iter().zip(recvs) {
        assert_eq!((table.close_send(*send), table.close_recv(recv)), (0, 0));
    }
}

fn memory_is_registered_in_any_order(plugin: &Plugin) {
    let pair = merged(plugin);
    let table = pair.table;
    let mut random = Random(5);
    let mut bytes = vec![0u8; 1 << 20];
    let mut handles: Vec<(usize, Pointer)> = Vec::new();
    for _ in 0..3000 {
        if handles.len() < 100 && random.below(2) == 0 {
            let start = random.below(bytes.len() - 4096);
            let data = bytes[start..].as_mut_ptr().cast();
            handles
                .push((start, table.reg_mr(pair.recv, data, 1 + random.below(4096), 1).unwrap()));
        } else if !handles.is_empty() {
            let (_, handle) = handles.swap_remove(random.below(handles.len()));
            assert_eq!(table.dereg_mr(pair.recv, handle), 0);
            assert_eq!(table.dereg_mr(pair.recv, handle), 4, "it is undone");
        }
    }
    // What remains is undone with the connection.
    pair.close();
}

/// NCCL registers and deregisters on one thread, and moves data on another.
fn threads_share_a_connection(plugin: &Plugin) {
    let pair = merged(plugin);
    let (table, send, recv) = (pair.table, pair.send.addr(), pair.recv.addr());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for connection in [send, recv] {
            let stop = &stop;
            scope.spawn(move || {
                let connection = std::ptr::without_provenance_mut(connection);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let memory = Memory::new(&table, connection, 10_000);
                    assert_eq!(table.dereg_mr(connection, memory.handle), 0);
                    std::thread::yield_now();
                }
            });
        }
        traffic::run(&pair, 300, 11, &mut ());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    pair.close();
}

/// NCCL's AllGather with buffers of its user passes addresses beyond their registration, and no
/// bytes.
fn messages_of_no_bytes_may_lie_anywhere(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        let context = table.init(LOGGER, -1).unwrap();
        let pair = Pair::new(table, context, 0, 1);
        let [mut from, mut to] = pair.memories(100);
        let anywhere = |memory: &mut Memory| {
            let inside = memory.bytes.as_mut_ptr();
            [inside, inside.wrapping_add(15_000), std::ptr::null_mut()].map(<*mut u8>::cast)
        };
        for (from_at, to_at) in anywhere(&mut from).into_iter().zip(anywhere(&mut to)) {
            let receive = until("irecv", || pair.irecv(&[(to_at, 0, 1, to.handle)]));
            let send = until("isend", || pair.isend((from_at, 0), 1, from.handle));
            until("a send", || pair.test(send));
            assert_eq!(until("a receive", || pair.test(receive))[0], 0);
        }
        // A registration that is none is refused all the same.
        let none = std::ptr::without_provenance_mut(1);
        assert_eq!(table.isend(pair.send, (from.at(0), 0), 1, none), Err(4));
        assert_eq!(table.irecv(pair.recv, &[(to.at(0), 0, 1, none)], false), Err(4));
        pair.close();
        assert_eq!(table.finalize(context), 0);
    }
}

/// Their array has four places: a reader of as many as are counted must not read behind it.
fn older_versions_see_four_parts_of_a_device_of_eight(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let all: Vec<c_int> = (0..8).collect();
    let eight = table.make_v_device(&all).unwrap();
    assert_eq!(table.properties(eight).unwrap().parts, all);
    for version in [11, 10, 9] {
        assert_eq!(plugin.table(version).properties(eight).unwrap().parts, all[..4]);
    }
    assert_eq!(table.finalize(context), 0);
}

/// As NCCL does for its merge policy `RAIL`, devices of one rail are merged, and stay on it.
fn listed_rails_and_planes_are_reported(plugin: &Plugin) {
    let table = plugin.table(12);
    logged();
    let context = table.init(LOGGER, -1).unwrap();
    let words = logged().join("\n");
    assert!(words.contains("POLYRAIL_RAIL_IDS: gone is not a device"), "{words}");
    assert!(words.contains("s0 (rail 7), s1 (rail 7, plane 0), s2"), "{words}");
    let ids = |device| table.properties(device).unwrap().rail_ids;
    assert_eq!([0, 1, 2, 3].map(ids), [[7, -1], [7, 0], [7, 0], [-1, -1]]);
    for (parts, expected) in [([1, 2], [7, 0]), ([0, 1], [7, -1]), ([2, 3], [-1, -1])] {
        assert_eq!(ids(table.make_v_device(&parts).unwrap()), expected, "{parts:?}");
    }
    // The other versions have no such properties.
    for version in [11, 10, 9, 8] {
        let table = plugin.table(version);
        assert_eq!(table.properties(1).unwrap().max_p2p_bytes, 1 << 30);
        assert_eq!(table.properties(1).unwrap().name, "s1");
    }
    assert_eq!(table.finalize(context), 0);
}

fn what_a_communicator_left_ends_with_it(plugin: &Plugin) {
    let table = plugin.table(12);
    let contexts = [(); 2].map(|()| table.init(LOGGER, -1).unwrap());
    table.make_v_device(&[0, 1]).unwrap();
    let left = contexts.map(|context| {
        let mut handle = [0u8; HANDLE];
        let listener = table.listen(context, 4, handle.as_mut_ptr().cast()).unwrap();
        (listener, Pair::new(table, context, 0, 4))
    });
    // Older versions have no communicators: what is theirs stays.
    let older = Pair::new(plugin.table(10), Pointer::default(), 2, 3);
    let has_ended = |(listener, pair): &(Pointer, Pair)| {
        let ended = [
            table.close_send(pair.send),
            table.close_recv(pair.recv),
            table.close_listen(*listener),
        ];
        ended == [4; 3]
    };
    assert_eq!(table.finalize(contexts[0]), 0);
    assert!(has_ended(&left[0]));
    traffic::run(&left[1].1, 20, 1, &mut ());
    assert_eq!(table.finalize(contexts[1]), 0);
    assert!(has_ended(&left[1]));
    traffic::run(&older, 20, 2, &mut ());
    older.close();
    let again = table.init(LOGGER, -1).unwrap();
    assert_eq!(table.devices(), Ok(4), "nothing is open any more");
    assert_eq!(table.finalize(again), 0);
}

/// NCCL 2.24 and 2.25 count devices once in a process: init is called again, and makeVDevice is
/// not.
fn what_older_versions_merged_stays(plugin: &Plugin) {
    for version in [9, 10] {
        let table = plugin.table(version);
        table.init(LOGGER, -1).unwrap();
        let merged = table.make_v_device(&[0, 1]).unwrap();
        for _ in 0..2 {
            assert_eq!(table.properties(merged).unwrap().name, "s0");
            Pair::new(table, Pointer::default(), merged, merged).close();
            table.init(LOGGER, -1).unwrap();
        }
    }
}

/// Moves a message while metrics go to a target, between devices of these NICs.
fn move_with_metrics(plugin: &Plugin, target: &std::path::Path, nics: [&[c_int]; 2]) {
    // SAFETY: there is one thread.
    unsafe { std::env::set_var("POLYRAIL_METRICS", target) };
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let [here, there] = nics.map(|nics| match nics {
        [one] => *one,
        several => table.make_v_device(several).unwrap(),
    });
    let pair = Pair::new(table, context, here, there);
    let [mut from, mut to] = pair.memories(1 << 20);
    pair.send_through(&mut from, &mut to, 1 << 20);
    pair.close();
    assert_eq!(table.finalize(context), 0);
}

/// Moves a message, and returns the metrics of the payload bytes that each rail sent: their labels,
/// and the bytes.
fn sent_bytes(plugin: &Plugin, nics: [&[c_int]; 2]) -> Vec<(String, f64)> {
    let folder = std::env::temp_dir().join(format!("polyrail-nccl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    move_with_metrics(plugin, &folder, nics);
    let file = folder.join(format!("polyrail-nccl-{}.prom", std::process::id()));
    let text = std::fs::read_to_string(&file);
    std::fs::remove_dir_all(&folder).unwrap();
    let text = text.unwrap();
    let is_sent = |line: &&str| {
        line.starts_with("polyrail_rail_sent_bytes_total{component=\"nccl\"")
            && line.contains("traffic=\"sent_messages\"")
    };
    let sent = |line: &str| {
        let (labels, bytes) = line.rsplit_once(' ').unwrap();
        (labels.to_owned(), bytes.parse().unwrap())
    };
    text.lines().filter(is_sent).map(sent).collect()
}

fn metrics_of_a_process_are_in_its_folder(plugin: &Plugin) {
    let sent = sent_bytes(plugin, [&[0], &[1]]);
    let bytes: f64 = sent.iter().map(|(_, bytes)| bytes).sum();
    assert!(bytes >= f64::from(1 << 20), "{sent:?}");
}

fn rates_that_are_given_decide_what_each_nic_carries(plugin: &Plugin) {
    logged();
    let sent = sent_bytes(plugin, [&[0, 1], &[2, 3]]);
    let words = logged().join("\n");
    assert_eq!(words.matches("POLYRAIL_DEVICE_MBPS: gone is not a device").count(), 1, "{words}");
    let of = |device: &str| -> f64 {
        let label = format!("device=\"{device}\"");
        sent.iter().filter(|(labels, _)| labels.contains(&label)).map(|(_, bytes)| bytes).sum()
    };
    let ratio = of("s0") / of("s1");
    assert!((2.9..3.1).contains(&ratio), "{sent:?}");
}

fn a_process_goes_on_without_metrics_that_cannot_be_written(plugin: &Plugin) {
    logged();
    move_with_metrics(plugin, std::path::Path::new("/does/not/exist"), [&[0], &[1]]);
    let words = logged().join("\n");
    assert!(words.contains("/does/not/exist/polyrail-nccl-"), "{words}");
    assert!(words.contains("goes on without metrics"), "{words}");
}
