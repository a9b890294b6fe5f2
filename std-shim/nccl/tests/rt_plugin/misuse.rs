//! Calls that cannot be: a code and words, and nothing else.

use crate::ranks::{LOGGER, LONG, Memory, Pair, at_once, logged, some, until};
use crate::sockets::{framed, links, no_descriptor};
use crate::table::{HANDLE, INTERNAL, INVALID_ARGUMENT, Pointer, SYSTEM, Table};
use crate::works::merged;
use crate::{Plugin, VERSIONS, cases};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ptr::without_provenance_mut;
use std::time::{Duration, Instant};

cases! {
    null_pointers_are_refused,
    handles_that_are_none_are_refused,
    sizes_and_ranges_are_checked,
    nothing_unwinds_into_c,
    strangers_disturb_no_connection,
    a_peer_that_does_not_answer_is_given_up: &[("POLYRAIL_CONNECT_TIMEOUT_MS", "300")],
    a_lack_of_descriptors_is_waited_for,
    a_lack_of_descriptors_of_ends_that_have_met_is_waited_for,
    a_lack_of_descriptors_of_ends_that_have_met_ends_in_time: &[
        ("POLYRAIL_CONNECT_TIMEOUT_MS", "3000"),
    ],
    a_lack_of_descriptors_that_lasts_is_no_failure_of_the_peer: &[
        ("POLYRAIL_CONNECT_TIMEOUT_MS", "300"),
    ],
    contexts_keep_their_64_bits,
    calls_before_init_are_refused,
}

fn null_pointers_are_refused(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        let context = table.init(LOGGER, -1).unwrap();
        let pair = Pair::new(table, context, 1, 0);
        let [mut from, mut to] = pair.memories(100);
        logged();
        let called = table.with_nulls(&pair, &mut from, &mut to);
        assert_eq!(called.accepted, Vec::<String>::new());
        let words = logged();
        assert_eq!(words.len(), called.count, "every refusal has words: {words:?}");
        pair.close();
        assert_eq!(table.finalize(context), 0);
    }
}

/// Handles of all sorts, none of which is one.
fn none() -> Vec<Pointer> {
    let on_the_stack = 5u64;
    let mut none = vec![1, 0xdead_beef, usize::MAX, (&raw const on_the_stack).addr()];
    // Of every kind, with a place that was never used, and one that may be.
    none.extend((0..16usize).flat_map(|kind| [kind << 60 | 0xffff, kind << 60 | 77 << 16]));
    none.into_iter().map(without_provenance_mut).collect()
}

fn handles_that_are_none_are_refused(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        let context = table.init(LOGGER, -1).unwrap();
        let pair = Pair::new(table, context, 0, 1);
        let (send, recv) = (pair.send, pair.recv);
        let mut from = Memory::new(&table, send, 100);
        let mut to = Memory::new(&table, recv, 100);
        let data = from.at(0);
        logged();
        let mut calls = 0;
        let mut refused = |is_refused: bool, what: &str| {
            calls += 1;
            assert!(is_refused, "{what}");
        };
        let argument = Err(INVALID_ARGUMENT);
        let mut room = [0u8; HANDLE];
        for handle in none() {
            refused(table.accept(handle) == argument, "accept");
            refused(table.isend(handle, (data, 1), 0, from.handle) == argument, "isend");
            refused(table.isend(send, (data, 1), 0, handle) == argument, "isend's memory");
            let to_at = to.at(0);
            refused(table.irecv(handle, &[(to_at, 1, 0, to.handle)], false) == argument, "irecv");
            refused(
                table.irecv(recv, &[(to_at, 1, 0, handle)], false) == argument,
                "irecv's memory",
            );
            refused(table.iflush(handle, &[(to_at, 1, to.handle)]) == argument, "iflush");
            refused(table.iflush(recv, &[(to_at, 1, handle)]) == argument, "iflush's memory");
            refused(table.test(handle) == argument.map(|_: Pointer| None), "test");
            refused(table.reg_mr(handle, data, 1, 1) == argument, "regMr");
            refused(table.dereg_mr(handle, from.handle) == INVALID_ARGUMENT, "deregMr");
            refused(table.dereg_mr(send, handle) == INVALID_ARGUMENT, "deregMr's memory");
            refused(table.close_send(handle) == INVALID_ARGUMENT, "closeSend");
            refused(table.close_recv(handle) == INVALID_ARGUMENT, "closeRecv");
            refused(table.close_listen(handle) == INVALID_ARGUMENT, "closeListen");
            if version >= 11 {
                refused(table.finalize(handle) == INVALID_ARGUMENT, "finalize");
                refused(table.listen(handle, 0, room.as_mut_ptr().cast()) == argument, "listen");
            }
        }
        // Registered with another connection.
        refused(table.dereg_mr(recv, from.handle) == INVALID_ARGUMENT, "deregMr of another's");
        refused(
            table.irecv(recv, &[(data, 1, 0, from.handle)], false) == argument,
            "irecv's memory, which is another's",
        );
        // One end for the other, and what was closed.
        refused(table.isend(recv, (data, 1), 0, to.handle) == argument, "isend on a receiver");
        refused(
            table.irecv(send, &[(data, 1, 0, from.handle)], false) == argument,
            "irecv on a sender",
        );
        refused(table.close_send(recv) == INVALID_ARGUMENT, "a receiver closed as a sender");
        refused(
            table.connect(context, 0, room.as_mut_ptr().cast()) == argument,
            "bytes that are no handle",
        );
        pair.close();
        refused(table.close_send(send) == INVALID_ARGUMENT, "closed twice");
        refused(
            table.isend(send, (data, 1), 0, from.handle) == argument,
            "isend on what is closed",
        );
        assert_eq!(logged().len(), calls, "every refusal has words");
        assert_eq!(table.finalize(context), 0);
    }
}

fn sizes_and_ranges_are_checked(plugin: &Plugin) {
    let pair = merged(plugin);
    let table = pair.table;
    let [mut from, mut to] = pair.memories(1000);
    let refused = Err(INVALID_ARGUMENT);
    // Registrations.
    let data = from.at(0);
    for (data, length, kind) in [
        (Pointer::default(), 100, 1),
        (data, 0, 1),
        (without_provenance_mut(usize::MAX - 10), 100, 1),
        (data, 100, 2),
        (data, 100, 0),
        (data, 100, 99),
    ] {
        assert_eq!(table.reg_mr(pair.send, data, length, kind), refused, "{length} of kind {kind}");
    }
    assert_eq!(table.reg_mr_dma_buf(pair.send, (data, 100), 2, -1), refused);
    assert!(
        table.reg_mr_dma_buf(pair.send, (data, 100), 2, 0).is_err(),
        "NICs in memory take none"
    );
    // Buffers.
    for (offset, length) in [(0, 1001), (1, 1000), (999, 2), (0, 5 << 30)] {
        let data = from.bytes.as_mut_ptr().wrapping_add(offset).cast();
        assert_eq!(
            table.isend(pair.send, (data, length), 0, from.handle),
            refused,
            "{offset} {length}"
        );
        let data = to.bytes.as_mut_ptr().wrapping_add(offset).cast();
        assert_eq!(table.irecv(pair.recv, &[(data, length, 0, to.handle)], false), refused);
    }
    let before = from.bytes.as_mut_ptr().wrapping_sub(1).cast();
    assert_eq!(table.isend(pair.send, (before, 1), 0, from.handle), refused);
    // Numbers of buffers.
    let buffer = (to.at(0), 1, 0, to.handle);
    assert_eq!(table.irecv(pair.recv, &[], false), refused);
    assert_eq!(table.irecv(pair.recv, &[buffer; 9], false), refused);
    // Devices.
    let mut room = [0u8; HANDLE];
    for device in [-1, 6, i32::MAX, i32::MIN] {
        assert!(table.properties(device).is_err());
        assert_eq!(table.listen(pair.context, device, room.as_mut_ptr().cast()), refused);
    }
    // Negative sizes, where sizes have signs.
    let v8 = plugin.table(8);
    assert_eq!(v8.isend(pair.send, (from.at(0), u32::MAX as usize), 0, from.handle), refused);
    assert_eq!(v8.irecv(pair.recv, &[(to.at(0), u32::MAX as usize, 0, to.handle)], false), refused);
    assert_eq!(table.iflush(pair.recv, &[(to.at(0), -1, to.handle)]), refused);
    // Nothing of that did any harm.
    pair.send_through(&mut from, &mut to, 1000);
    pair.close();
}

fn nothing_unwinds_into_c(plugin: &Plugin) {
    let pair = merged(plugin);
    let other = merged(plugin);
    let table = pair.table;
    let mut from = Memory::new(&table, pair.send, 100);
    logged();
    assert_eq!(plugin.panic(pair.send), INTERNAL);
    assert!(logged()[0].contains("panicked"));
    let refused = Err(INTERNAL);
    assert_eq!(table.isend(pair.send, (from.at(0), 1), 0, from.handle), refused);
    assert_eq!(table.reg_mr(pair.send, from.at(0), 1, 1), refused);
    assert_eq!(table.dereg_mr(pair.send, from.handle), INTERNAL);
    assert!(logged().iter().all(|words| words.contains("panicked")));
    // It can be closed, and others go on.
    pair.close();
    let [mut from, mut to] = other.memories(1000);
    other.send_through(&mut from, &mut to, 1000);
    other.close();
}

fn strangers_disturb_no_connection(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
    let port = u16::from_le_bytes([handle[10], handle[11]]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let silent = TcpStream::connect(address).unwrap();
    let mut strangers = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[29, 0, 0, 0, 1], &[0; 64], b""] {
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(bytes).unwrap();
        strangers.push(stranger);
    }
    // A message of the right form, without a proof of the token.
    let hello = framed(r#"{"ready":{}}"#);
    let mut liar = TcpStream::connect(address).unwrap();
    liar.write_all(&hello).unwrap();
    // A handle whose token is another one.
    let mut forged = handle;
    forged[40] ^= 1;
    let mut forger = Err(0);
    let (mut send, mut recv) = (Pointer::default(), Pointer::default());
    let begin = Instant::now();
    while send.is_null() || recv.is_null() || forger != Err(6) {
        if send.is_null() {
            send = at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast())).unwrap();
        }
        if recv.is_null() {
            recv = at_once(|| table.accept(listener)).unwrap();
        }
        forger = table.connect(context, 1, forged.as_mut_ptr().cast());
        if forger != Err(6) && !recv.is_null() {
            assert_eq!(at_once(|| table.accept(listener)), Ok(Pointer::default()));
        }
        assert!(begin.elapsed() < LONG, "{:?}", logged());
    }
    liar.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = Vec::new();
    liar.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("failed"), "who lies is dropped");
    let pair = Pair { table, context, send, recv };
    let mut from = Memory::new(&table, send, 1000);
    let mut to = Memory::new(&table, recv, 1000);
    pair.send_through(&mut from, &mut to, 1000);
    drop(silent);
    pair.close();
    assert_eq!(table.close_listen(listener), 0);
}

fn a_peer_that_does_not_answer_is_given_up(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
    let status = until("a timeout", || {
        at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast())).err()
    });
    assert_eq!(status, 6);
    assert!(logged().join("\n").contains("did not answer"));
    assert_eq!(table.close_listen(listener), 0);
    let refused =
        until("an answer", || table.connect(context, 1, handle.as_mut_ptr().cast()).err());
    assert_eq!(refused, 6, "nobody listens any more");
}

fn a_lack_of_descriptors_is_waited_for(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
    let mut connect = || at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast()));
    let taken = no_descriptor();
    for _ in 0..100 {
        assert_eq!(connect(), Ok(Pointer::default()), "{:?}", logged());
    }
    drop(taken);
    let (mut send, mut recv) = (None, None);
    until("a connection", || {
        send = send.or_else(|| some(connect().unwrap()));
        recv = recv.or_else(|| some(table.accept(listener).unwrap()));
        send.and(recv)
    });
    assert_eq!(table.close_send(send.unwrap()), 0);
    assert_eq!(table.close_recv(recv.unwrap()), 0);
    assert_eq!(table.close_listen(listener), 0);
}

/// Two ends that are about to meet, after which the thread that serves connections needs a
/// descriptor for itself.
pub(crate) fn about_to_meet(plugin: &Plugin) -> (Table, Pointer, Pointer, [u8; HANDLE]) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
    let before = links().len();
    until("a link", || {
        assert_eq!(table.connect(context, 1, handle.as_mut_ptr().cast()), Ok(Pointer::default()));
        assert_eq!(table.accept(listener), Ok(Pointer::default()));
        (links().len() == before + 2).then_some(())
    });
    (table, context, listener, handle)
}

fn a_lack_of_descriptors_of_ends_that_have_met_is_waited_for(plugin: &Plugin) {
    meet_after_a_lack(about_to_meet(plugin));
}

/// There are no descriptors for a while, and then the two ends meet.
pub(crate) fn meet_after_a_lack(
    (table, context, listener, mut handle): (Table, Pointer, Pointer, [u8; HANDLE]),
) {
    let mut connect = || at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast()));
    let accept = || at_once(|| table.accept(listener));
    let taken = no_descriptor();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        assert_eq!(connect(), Ok(Pointer::default()), "{:?}", logged());
        assert_eq!(accept(), Ok(Pointer::default()), "{:?}", logged());
    }
    drop(taken);
    let (mut send, mut recv) = (None, None);
    let (send, recv) = until("a connection", || {
        send = send.or_else(|| some(connect().unwrap()));
        recv = recv.or_else(|| some(accept().unwrap()));
        send.zip(recv)
    });
    let pair = Pair { table, context, send, recv };
    let [mut from, mut to] = pair.memories(1000);
    pair.send_through(&mut from, &mut to, 1000);
    pair.close();
    assert_eq!(table.close_listen(listener), 0);
}

fn a_lack_of_descriptors_of_ends_that_have_met_ends_in_time(plugin: &Plugin) {
    let begin = Instant::now();
    let (table, context, listener, mut handle) = about_to_meet(plugin);
    let mut taken = no_descriptor();
    let (mut sender, mut receiver) = (Ok(Pointer::default()), Ok(Pointer::default()));
    until("two errors", || {
        if sender.is_ok() {
            sender = at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast()));
            // Those of an end that was closed.
            taken.extend(no_descriptor());
        }
        if receiver.is_ok() {
            receiver = at_once(|| table.accept(listener));
        }
        assert!([sender, receiver].iter().flatten().all(|met| met.is_null()));
        (sender.is_err() && receiver.is_err()).then_some(())
    });
    drop(taken);
    let words = logged().join("\n");
    assert_eq!((sender, receiver), (Err(SYSTEM), Err(SYSTEM)), "{words}");
    assert!(words.contains("Too many open files"), "{words}");
    assert!(begin.elapsed() >= Duration::from_secs(3), "{:?}: {words}", begin.elapsed());
    // The two ends are closed, and others connect.
    assert_eq!(links(), [0; 0]);
    Pair::new(table, context, 1, 0).close();
    assert_eq!(table.close_listen(listener), 0);
}

fn a_lack_of_descriptors_that_lasts_is_no_failure_of_the_peer(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 0, handle.as_mut_ptr().cast()).unwrap();
    let begin = Instant::now();
    let taken = no_descriptor();
    let status = until("a timeout", || {
        at_once(|| table.connect(context, 1, handle.as_mut_ptr().cast())).err()
    });
    drop(taken);
    assert_eq!(status, SYSTEM);
    let words = logged().join("\n");
    assert!(words.contains("Too many open files"), "{words}");
    assert!(begin.elapsed() > Duration::from_millis(300), "{:?}: {words}", begin.elapsed());
    assert_eq!(table.close_listen(listener), 0);
}

fn contexts_keep_their_64_bits(plugin: &Plugin) {
    let table = plugin.table(12);
    let contexts: Vec<Pointer> = (0..10).map(|_| table.init(LOGGER, -1).unwrap()).collect();
    let low: Vec<u32> = contexts.iter().map(|context| context.addr() as u32).collect();
    assert!(contexts.iter().all(|context| context.addr() >> 32 != 0));
    let mut room = [0u8; HANDLE];
    for (context, low) in contexts.iter().zip(low) {
        let cut = without_provenance_mut(low as usize);
        assert_eq!(table.listen(cut, 0, room.as_mut_ptr().cast()), Err(INVALID_ARGUMENT));
        assert_eq!(table.finalize(*context), 0);
        assert_eq!(table.finalize(*context), INVALID_ARGUMENT);
    }
    assert_eq!(table.init(LOGGER, 256), Err(INVALID_ARGUMENT), "a traffic class has 8 bits");
    assert_eq!(table.init(LOGGER, -2), Err(INVALID_ARGUMENT));
    let context = table.init(LOGGER, 255).unwrap();
    Pair::new(table, context, 0, 1).close();
    assert_eq!(table.finalize(context), 0);
}

fn calls_before_init_are_refused(plugin: &Plugin) {
    for version in VERSIONS {
        let table = plugin.table(version);
        assert_eq!(table.devices(), Err(INTERNAL));
        assert!(table.properties(0).is_err());
        let mut room = [0u8; HANDLE];
        assert!(table.listen(Pointer::default(), 0, room.as_mut_ptr().cast()).is_err());
    }
}
