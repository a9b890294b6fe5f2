//! What arrived is made visible to GPUs.

use crate::ranks::{at_once, logged, until};
use crate::table::Pointer;
use crate::works::merged;
use crate::{Plugin, cases};
use std::ffi::c_int;

cases! {
    received_messages_are_flushed: &[("POLYRAIL_FLUSH", "always")],
    flushes_wait_for_room_and_calls_do_not: &[("POLYRAIL_FLUSH", "always")],
    memory_of_the_machine_needs_no_flush,
    a_group_is_flushed_by_any_buffer_that_was_received_into: &[("POLYRAIL_FLUSH", "always")],
}

fn received_messages_are_flushed(plugin: &Plugin) {
    let pair = merged(plugin);
    assert_eq!(pair.table.properties(0).unwrap().force_flush, 1);
    let [mut from, mut to] = pair.memories(1 << 20);
    for bytes in [1, 64, 4096, 1 << 20, 0] {
        pair.send_through(&mut from, &mut to, bytes);
        let buffer = [(to.at(0), bytes as c_int, to.handle)];
        let flush = at_once(|| pair.table.iflush(pair.recv, &buffer)).unwrap();
        assert_eq!(flush.is_null(), bytes == 0);
        if bytes > 0 {
            until("a flush", || pair.test(flush));
        }
    }
    logged();
    let elsewhere = [(to.at(100), 5, to.handle)];
    assert_eq!(pair.table.iflush(pair.recv, &elsewhere), Err(4));
    assert!(logged()[0].contains("no message arrived at"));
    pair.close();
}

/// More than a queue takes, while their device answers nothing.
fn flushes_wait_for_room_and_calls_do_not(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(64);
    pair.send_through(&mut from, &mut to, 64);
    for device in ["s2", "s3"] {
        plugin.fault(device, 0, 5);
    }
    let buffer = [(to.at(0), 64, to.handle)];
    let flush = || at_once(|| pair.table.iflush(pair.recv, &buffer)).unwrap();
    let flushes: Vec<Pointer> = (0..300).map(|_| flush()).collect();
    assert!(flushes.iter().all(|flush| !flush.is_null() && pair.test(*flush).is_none()));
    for device in ["s2", "s3"] {
        plugin.fault(device, 0, 6);
    }
    // The last ones first: none waits for a flush that is not tested.
    for flush in flushes.into_iter().rev() {
        until("a flush", || pair.test(flush));
    }
    pair.close();
}

fn memory_of_the_machine_needs_no_flush(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(64);
    pair.send_through(&mut from, &mut to, 64);
    assert_eq!(pair.table.iflush(pair.recv, &[(to.at(0), 64, to.handle)]), Ok(Pointer::default()));
    pair.close();
}

fn a_group_is_flushed_by_any_buffer_that_was_received_into(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1000);
    let receive = until("irecv", || pair.irecv(&[(to.at(500), 100, 1, to.handle)]));
    let send = until("isend", || pair.isend((from.at(0), 100), 1, from.handle));
    until("a receive", || pair.test(receive));
    until("a send", || pair.test(send));
    let [known, unknown, other] =
        [(500, 100), (0, 100), (200, 100)].map(|(at, bytes)| (to.at(at), bytes, to.handle));
    let empty = (to.at(500), 0, to.handle);
    for group in [&[known, unknown][..], &[unknown, known], &[empty, unknown, other, known]] {
        let flush = at_once(|| pair.table.iflush(pair.recv, group)).unwrap();
        assert!(!flush.is_null());
        until("a flush", || pair.test(flush));
    }
    for group in [&[unknown][..], &[unknown, other], &[empty, unknown]] {
        assert_eq!(pair.table.iflush(pair.recv, group), Err(4));
    }
    assert_eq!(pair.table.iflush(pair.recv, &[empty, empty]), Ok(Pointer::default()));
    pair.close();
}
