//! Paths that are found late or never while two ends connect.

use crate::ranks::{Pair, at_once, logged, until};
use crate::table::{HANDLE, Pointer};
use crate::works::merged_devices;
use crate::{Plugin, cases};
use std::time::{Duration, Instant};

cases! {
    paths_that_are_found_late_are_waited_for,
    a_search_for_paths_holds_no_call_up,
    paths_that_are_never_found_end_the_attempt: &[("POLYRAIL_CONNECT_TIMEOUT_MS", "6000")],
    a_receiver_that_accepts_late_sends_why_it_is_not_connected: &[
        ("POLYRAIL_CONNECT_TIMEOUT_MS", "6000"),
    ],
}

/// No path is found when the ends connect: at the sender, at the receiver, at both.
fn paths_that_are_found_late_are_waited_for(plugin: &Plugin) {
    let (table, context, [here, there]) = merged_devices(plugin);
    for without in [&["s0", "s1"][..], &["s2", "s3"], &["s0", "s1", "s2", "s3"]] {
        without.iter().for_each(|nic| plugin.fault(nic, 0, 8));
        let begin = Instant::now();
        let pair = Pair::new(table, context, here, there);
        // Three attempts fail, and a pause follows each, however often the calls come.
        assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
        let [mut from, mut to] = pair.memories(1000);
        pair.send_through(&mut from, &mut to, 1000);
        pair.close();
    }
}

/// Neither end's calls wait while the NICs of both search for 4 s.
fn a_search_for_paths_holds_no_call_up(plugin: &Plugin) {
    let (table, context, [here, there]) = merged_devices(plugin);
    let all = ["s0", "s1", "s2", "s3"];
    all.iter().for_each(|nic| plugin.fault(nic, 0, 11));
    let begin = Instant::now();
    let pair = Pair::new(table, context, here, there);
    assert!(begin.elapsed() >= Duration::from_secs(4));
    all.iter().for_each(|nic| plugin.fault(nic, 0, 12));
    let [mut from, mut to] = pair.memories(1000);
    pair.send_through(&mut from, &mut to, 1000);
    pair.close();
}

/// The attempt ends after four fifths of its limit, so that the end without a path can send the
/// reason to the other one, which waits for all of it.
fn paths_that_are_never_found_end_the_attempt(plugin: &Plugin) {
    let (table, context, [here, there]) = merged_devices(plugin);
    for without in [["s0", "s1"], ["s2", "s3"]] {
        logged();
        without.iter().for_each(|nic| plugin.fault(nic, 0, 9));
        let mut handle = [0u8; HANDLE];
        let listener = table.listen(context, there, handle.as_mut_ptr().cast()).unwrap();
        let begin = Instant::now();
        let (mut sender, mut receiver) = (Ok(Pointer::default()), Ok(Pointer::default()));
        until("two errors", || {
            if sender.is_ok() {
                sender = at_once(|| table.connect(context, here, handle.as_mut_ptr().cast()));
            }
            if receiver.is_ok() {
                receiver = at_once(|| table.accept(listener));
            }
            assert!(![sender, receiver].iter().flatten().any(|met| !met.is_null()));
            (sender.is_err() && receiver.is_err()).then_some(())
        });
        let lines = logged();
        let reasons = lines.iter().filter(|line| line.contains("no path to the peer"));
        assert!(reasons.count() >= 2, "{lines:?}");
        assert!(begin.elapsed() >= Duration::from_secs(6) / 5 * 4, "{lines:?}");
        assert_eq!(table.close_listen(listener), 0);
        without.iter().for_each(|nic| plugin.fault(nic, 0, 10));
    }
}

/// The receiver's attempt ends later than six seconds after the sender began.
fn a_receiver_that_accepts_late_sends_why_it_is_not_connected(plugin: &Plugin) {
    let (table, context, [here, there]) = merged_devices(plugin);
    ["s2", "s3"].iter().for_each(|nic| plugin.fault(nic, 0, 9));
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, there, handle.as_mut_ptr().cast()).unwrap();
    logged();
    let begin = Instant::now();
    let (mut sender, mut receiver) = (Ok(Pointer::default()), Ok(Pointer::default()));
    until("two errors", || {
        if sender.is_ok() {
            sender = at_once(|| table.connect(context, here, handle.as_mut_ptr().cast()));
        }
        if receiver.is_ok() && begin.elapsed() > Duration::from_secs(3) {
            receiver = at_once(|| table.accept(listener));
        }
        (sender.is_err() && receiver.is_err()).then_some(())
    });
    let lines = logged();
    let reasons = lines.iter().filter(|line| line.contains("no path to the peer"));
    assert!(reasons.count() >= 2, "{lines:?}");
    assert_eq!(table.close_listen(listener), 0);
}
