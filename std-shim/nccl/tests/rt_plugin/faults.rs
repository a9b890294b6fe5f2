//! What goes wrong, and the faults of other plugins that this one must not have.

use crate::random::Random;
use crate::ranks::{LOGGER, Pair, at_once, count_logged, logged, until};
use crate::table::{INVALID_ARGUMENT, INVALID_USAGE, Pointer, REMOTE};
use crate::traffic::{self, Meanwhile};
use crate::works::merged;
use crate::{Plugin, cases};
use std::time::{Duration, Instant};

cases! {
    no_request_free_is_not_now,
    thirty_two_receives_of_eight_buffers_are_under_way,
    no_such_tag_is_not_now,
    a_send_that_is_too_long_is_refused_and_not_clipped,
    a_request_is_there_until_its_completions_are_in,
    a_send_waits_for_its_acknowledgement,
    the_rest_of_an_entry_is_not_waited_for: &[
        ("POLYRAIL_HEALING", "off"),
        ("POLYRAIL_QP_TIMEOUT", "8"),
        ("POLYRAIL_RETRIES", "1"),
    ],
    connections_are_closed_at_any_moment,
    a_peer_that_has_ended_ends_requests,
    a_peer_that_has_ended_takes_no_message,
    rails_that_fail_cost_no_message: &[("POLYRAIL_QP_TIMEOUT", "17")],
    a_device_that_goes_costs_no_message: &[
        ("POLYRAIL_QP_TIMEOUT", "14"),
        ("POLYRAIL_RETRIES", "3"),
    ],
    an_idle_end_helps_its_peer: &[("POLYRAIL_QP_TIMEOUT", "14"), ("POLYRAIL_RETRIES", "3")],
    without_healing_a_rail_ends_the_connection: &[
        ("POLYRAIL_HEALING", "off"),
        ("POLYRAIL_QP_TIMEOUT", "8"),
        ("POLYRAIL_RETRIES", "1"),
    ],
    rails_that_drop_everything_end_the_connection: &[
        ("POLYRAIL_QP_TIMEOUT", "14"),
        ("POLYRAIL_RETRIES", "1"),
        ("POLYRAIL_RAIL_TIMEOUT_MS", "1000"),
    ],
}

fn no_request_free_is_not_now(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1000);
    // Receives until there is no room, and more: null, and no error.
    let mut receives = Vec::new();
    for _ in 0..2000 {
        receives.extend(pair.irecv(&[(to.at(0), 1000, 0, to.handle)]));
    }
    assert!((32..1000).contains(&receives.len()), "{} receives", receives.len());
    assert_eq!(logged().iter().filter(|words| words.contains("irecv")).count(), 0);
    // The same for sends: each is done only when it is tested.
    let mut sends = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(500) {
        sends.extend(pair.isend((from.at(0), 1000), 0, from.handle));
    }
    assert_eq!(sends.len(), receives.len());
    for (send, receive) in sends.iter().zip(&receives) {
        assert_eq!(until("a send", || pair.test(*send))[0], 1000);
        assert_eq!(until("a receive", || pair.test(*receive))[0], 1000);
    }
    // All can be used again.
    for _ in 0..100 {
        pair.send_through(&mut from, &mut to, 1000);
    }
    pair.close();
}

fn thirty_two_receives_of_eight_buffers_are_under_way(plugin: &Plugin) {
    const BYTES: usize = 100;
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(256 * BYTES);
    Random(9).fill(&mut from.bytes);
    for _ in 0..10 {
        to.bytes.fill(0);
        let mut receives = Vec::new();
        for number in 0..32 {
            let buffers: Vec<_> = (0..8)
                .map(|part| (to.at((number * 8 + part) * BYTES), BYTES, part as i32, to.handle))
                .collect();
            receives.push(pair.irecv(&buffers).expect("32 are what NCCL has under way"));
        }
        let mut sends = Vec::new();
        for number in 0..32 {
            for part in (0..8).rev() {
                let data = (from.at((number * 8 + part) * BYTES), BYTES);
                sends.push(until("isend", || pair.isend(data, part as i32, from.handle)));
            }
        }
        assert_eq!(sends.len(), 256);
        sends.iter().for_each(|send| assert_eq!(until("a send", || pair.test(*send))[0], 100));
        for receive in receives {
            assert_eq!(until("a receive", || pair.test(receive)), [100; 8]);
        }
        assert!(from.bytes == to.bytes);
    }
    pair.close();
}

fn no_such_tag_is_not_now(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(100);
    let receive =
        pair.irecv(&[(to.at(0), 50, 7, to.handle), (to.at(50), 50, -8, to.handle)]).unwrap();
    let next = pair.irecv(&[(to.at(0), 50, 9, to.handle)]).unwrap();
    let first = until("isend", || pair.isend((from.at(0), 5), -8, from.handle));
    for tag in [8, 9, -8, i32::MIN] {
        let request = pair.isend((from.at(0), 5), tag, from.handle);
        assert_eq!(request, None, "tag {tag}: matching is in the order of receives");
    }
    let second = until("isend", || pair.isend((from.at(0), 6), 7, from.handle));
    let third = until("isend", || pair.isend((from.at(0), 7), 9, from.handle));
    for send in [first, second, third] {
        until("a send", || pair.test(send));
    }
    assert_eq!(until("a receive", || pair.test(receive))[..2], [6, 5]);
    assert_eq!(until("a receive", || pair.test(next))[0], 7);
    pair.close();
}

fn a_send_that_is_too_long_is_refused_and_not_clipped(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(200_000);
    let receive = pair.irecv(&[(to.at(0), 100_000, 1, to.handle)]).unwrap();
    until("the offer", || pair.table.isend(pair.send, (from.at(0), 100_001), 1, from.handle).err());
    logged();
    let refused = pair.table.isend(pair.send, (from.at(0), 100_001), 1, from.handle);
    assert_eq!(refused, Err(INVALID_USAGE));
    assert!(
        logged()[0].contains("the message has 100001 bytes, but the peer's buffer only 100000")
    );
    // Nothing changed: what fits finds the buffer.
    let send = pair.isend((from.at(0), 100_000), 1, from.handle).unwrap();
    until("a send", || pair.test(send));
    assert_eq!(until("a receive", || pair.test(receive))[0], 100_000);
    assert!(to.bytes[100_000..].iter().all(|byte| *byte == 0));
    pair.close();
}

/// A request that was done is refused afterwards, though others have its place.
fn a_request_is_there_until_its_completions_are_in(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1 << 20);
    let mut old: Vec<Pointer> = Vec::new();
    for _ in 0..600 {
        let receive = until("irecv", || pair.irecv(&[(to.at(0), 1 << 20, 1, to.handle)]));
        let send = until("isend", || pair.isend((from.at(0), 1000), 1, from.handle));
        until("a send", || pair.test(send));
        until("a receive", || pair.test(receive));
        old.extend([send, receive]);
    }
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1 << 20, 1, to.handle)]));
    for request in &old {
        assert_eq!(pair.table.test(*request), Err(INVALID_ARGUMENT), "it was done before");
        assert_ne!(*request, receive);
    }
    // Closed with completions out: whatever comes of them touches nothing that is gone.
    let send = until("isend", || pair.isend((from.at(0), 1 << 20), 1, from.handle));
    let table = pair.table;
    pair.close();
    for request in [send, receive] {
        assert_eq!(table.test(request), Err(INVALID_ARGUMENT));
    }
}

/// A send is there as long as it is not acknowledged, though its bytes have arrived.
fn a_send_waits_for_its_acknowledgement(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1000);
    Random(3).fill(&mut from.bytes);
    let lose = |fault| ["s0", "s1"].map(|device| plugin.fault(device, 0, fault));
    lose(3);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    let send = until("isend", || pair.isend((from.at(0), 1000), 1, from.handle));
    assert_eq!(until("a receive", || pair.test(receive))[0], 1000);
    assert!(from.bytes == to.bytes);
    for _ in 0..1000 {
        assert_eq!(pair.test(send), None, "nobody has acknowledged it");
    }
    lose(4);
    until("a send", || pair.test(send));
    assert_eq!(pair.table.test(send), Err(INVALID_ARGUMENT), "it was done before");
    pair.close();
}

/// The entry of a receive of eight buffers is cut in the middle by a link that goes down: isend
/// says "not now", at once, for as long as the rest does not come.
fn the_rest_of_an_entry_is_not_waited_for(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    for cut_at in [1, 64, 100, 256, 500] {
        let pair = Pair::new(table, context, 0, 1);
        let [mut from, mut to] = pair.memories(800);
        plugin.fault("s1", cut_at, 0);
        let buffers: Vec<_> =
            (0..8).map(|part| (to.at(part * 100), 100, part as i32, to.handle)).collect();
        let receive = pair.irecv(&buffers).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(200) {
            match at_once(|| table.isend(pair.send, (from.at(0), 100), 0, from.handle)) {
                Ok(request) => assert!(request.is_null(), "the entry is not whole"),
                Err(status) => assert_eq!(status, REMOTE),
            }
        }
        let failed = until("an end", || at_once(|| table.test(receive)).err());
        assert_eq!(failed, REMOTE);
        pair.close();
        plugin.fault("s1", 0, 1);
    }
}

fn connections_are_closed_at_any_moment(plugin: &Plugin) {
    let mut random = Random(17);
    for round in 0..60 {
        let pair = merged(plugin);
        let [mut from, mut to] = pair.memories(1 << 20);
        let (mut receives, mut sends) = (Vec::new(), Vec::new());
        for _ in 0..random.below(40) {
            let bytes = 1 + random.below(1 << 20);
            let receive = pair.irecv(&[(to.at(0), 1 << 20, 1, to.handle)]);
            receives.extend(receive);
            if receive.is_some() && random.below(2) == 0 {
                let send = until("isend", || pair.isend((from.at(0), bytes), 1, from.handle));
                sends.push(send);
            }
        }
        let (table, send, recv, context) = (pair.table, pair.send, pair.recv, pair.context);
        // One end is closed, and the other goes on.
        let test_all = |requests: &[Pointer]| {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(5) {
                requests.iter().for_each(|request| _ = table.test(*request));
            }
        };
        if round % 2 == 0 {
            assert_eq!(table.close_send(send), 0);
            // Nothing is read after that.
            from.bytes.fill(0x77);
            test_all(&receives);
            assert!(!to.bytes.contains(&0x77));
            assert_eq!(table.close_recv(recv), 0);
        } else {
            assert_eq!(table.close_recv(recv), 0);
            // Nothing is written after that, though there are buffers that were offered.
            to.bytes.fill(0x77);
            for _ in 0..10 {
                let more = table.isend(send, (from.at(0), 1 << 20), 1, from.handle);
                sends.extend(more.ok().and_then(crate::ranks::some));
            }
            test_all(&sends);
            assert!(to.bytes.iter().all(|byte| *byte == 0x77));
            assert_eq!(table.close_send(send), 0);
        }
        for request in receives.into_iter().chain(sends) {
            assert_eq!(table.test(request), Err(INVALID_ARGUMENT));
        }
        assert_eq!(table.finalize(context), 0);
    }
}

fn a_peer_that_has_ended_ends_requests(plugin: &Plugin) {
    for who in [0, 1] {
        let pair = merged(plugin);
        let [mut from, mut to] = pair.memories(100);
        pair.send_through(&mut from, &mut to, 100);
        let table = pair.table;
        let receive =
            pair.irecv(&[(to.at(0), 50, 1, to.handle), (to.at(50), 50, 2, to.handle)]).unwrap();
        let send = until("isend", || pair.isend((from.at(0), 5), 1, from.handle));
        let (closed, waits) = if who == 0 {
            (table.close_send(pair.send), receive)
        } else {
            (table.close_recv(pair.recv), send)
        };
        assert_eq!(closed, 0);
        logged();
        let status = until("an error", || at_once(|| table.test(waits)).err());
        assert_eq!(status, REMOTE);
        assert!(logged()[0].contains("the peer has ended"));
        let rest = if who == 0 { table.close_recv(pair.recv) } else { table.close_send(pair.send) };
        assert_eq!(rest, 0);
    }
}

/// Nothing is under way: a send that returns "not now" would do so forever.
fn a_peer_that_has_ended_takes_no_message(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(100);
    pair.send_through(&mut from, &mut to, 100);
    assert_eq!(pair.table.close_recv(pair.recv), 0);
    let data = (from.at(0), 100);
    let refused = || at_once(|| pair.table.isend(pair.send, data, 1, from.handle).err());
    assert_eq!(until("an error", refused), REMOTE);
    assert_eq!(pair.table.close_send(pair.send), 0);
}

/// Cuts a link now and then, and mends it.
struct Cutting<'p> {
    plugin: &'p Plugin,
    random: Random,
    /// Which one, after how many messages it is to be mended, and the failures before.
    cut: Option<(&'static str, usize, usize)>,
    cuts: usize,
}

impl Cutting<'_> {
    fn mend(&mut self) {
        let Some((device, ..)) = self.cut.take() else { return };
        self.plugin.fault(device, 0, 1);
        // The rail comes back at both ends without any call. Before that there is only one.
        let is_back = || (count_logged("is back") == count_logged(" failed")).then_some(());
        until("a rail that is back", is_back);
    }
}

impl Meanwhile for Cutting<'_> {
    fn done(&mut self, messages: usize) {
        match self.cut {
            None if self.random.below(25) == 0 => {
                let device = ["s0", "s1", "s2", "s3"][self.random.below(4)];
                self.cut = Some((device, messages + 10, count_logged(" failed")));
                self.plugin.fault(device, 0, 0);
                self.cuts += 1;
            }
            Some((_, least, failures))
                if messages >= least && count_logged(" failed") >= failures + 2 =>
            {
                self.mend();
            }
            _ => {}
        }
    }
}

fn rails_that_fail_cost_no_message(plugin: &Plugin) {
    for seed in 0..2 {
        let pair = merged(plugin);
        let mut cutting = Cutting { plugin, random: Random(seed), cut: None, cuts: 0 };
        traffic::run(&pair, 400, seed, &mut cutting);
        assert!(cutting.cuts >= 2, "{} cuts", cutting.cuts);
        if cutting.cut.is_some() {
            until("a failure", || {
                (count_logged(" failed") > count_logged("is back")).then_some(())
            });
            cutting.mend();
        }
        pair.close();
    }
    for news in [" failed", "is fenced", "is back"] {
        assert!(count_logged(news) > 0, "{news}");
    }
}

/// The third NIC is unplugged, for good.
fn a_device_that_goes_costs_no_message(plugin: &Plugin) {
    struct Unplugging<'p>(&'p Plugin);
    impl Meanwhile for Unplugging<'_> {
        fn done(&mut self, messages: usize) {
            if messages == 100 {
                self.0.fault("s2", 0, 2);
            }
        }
    }
    let pair = merged(plugin);
    traffic::run(&pair, 400, 3, &mut Unplugging(plugin));
    assert!(count_logged(" failed") > 0, "it was in use");
    // Memory is registered with the NICs that are left.
    let [mut from, mut to] = pair.memories(1 << 20);
    Random(4).fill(&mut from.bytes);
    pair.send_through(&mut from, &mut to, 1 << 20);
    pair.close();
}

/// A share is lost after the sender's own calls have ended: only the plugin itself polls for it.
fn an_idle_end_helps_its_peer(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1 << 20);
    pair.send_through(&mut from, &mut to, 1 << 20);
    for (device, bytes) in [("s0", 1 << 18), ("s2", 1 << 17), ("s3", 5)] {
        let failures = count_logged(" failed");
        Random(bytes).fill(&mut from.bytes);
        let receive = until("irecv", || pair.irecv(&[(to.at(0), 1 << 20, 1, to.handle)]));
        plugin.fault(device, bytes, 0);
        let send = until("isend", || pair.isend((from.at(0), 1 << 20), 1, from.handle));
        // Only the receiver is called.
        assert_eq!(until("a receive", || pair.test(receive))[0], 1 << 20);
        assert!(from.bytes == to.bytes);
        until("a send", || pair.test(send));
        // Both ends know of it, and both rails are in service again, before the next one.
        until("a failure", || (count_logged(" failed") >= failures + 2).then_some(()));
        plugin.fault(device, 0, 1);
        let is_back = || (count_logged("is back") == count_logged(" failed")).then_some(());
        until("a rail that is back", is_back);
    }
    pair.close();
}

fn without_healing_a_rail_ends_the_connection(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1 << 20);
    pair.send_through(&mut from, &mut to, 1 << 20);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1 << 20, 1, to.handle)]));
    plugin.fault("s0", 1000, 0);
    let send = until("isend", || pair.isend((from.at(0), 1 << 20), 1, from.handle));
    logged();
    assert_eq!(until("an error", || at_once(|| pair.table.test(send)).err()), REMOTE);
    assert!(logged()[0].contains("rail"));
    assert_eq!(pair.table.close_send(pair.send), 0);
    // Its peer is notified that it has ended.
    assert_eq!(until("an error", || at_once(|| pair.table.test(receive)).err()), REMOTE);
    assert_eq!(pair.table.close_recv(pair.recv), 0);
}

/// Queue pairs connect again, and nothing that is sent arrives.
fn rails_that_drop_everything_end_the_connection(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1 << 20);
    pair.send_through(&mut from, &mut to, 1 << 20);
    for nic in ["s0", "s1", "s2", "s3"] {
        plugin.fault(nic, 0, 7);
    }
    // The offer of the buffer does not arrive.
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1 << 20, 1, to.handle)]));
    assert_eq!(until("an error", || at_once(|| pair.table.test(receive)).err()), REMOTE);
    let data = (from.at(0), 1 << 20);
    let send = || at_once(|| pair.table.isend(pair.send, data, 1, from.handle)).err();
    assert_eq!(until("an error", send), REMOTE);
    assert_eq!(pair.table.close_send(pair.send), 0);
    assert_eq!(pair.table.close_recv(pair.recv), 0);
}
