//! Links that break are reconnected: no message is lost, and rails still come back.

use crate::random::Random;
use crate::ranks::{
    LOGGER, LONG, Memory, Pair, at_once, count_lines, count_logged, last_logged, logged, some,
    until,
};
use crate::sockets::{flood, framed, links, listening, reset, silence, sockets};
use crate::table::{HANDLE, REMOTE};
use crate::traffic::{self, Meanwhile};
use crate::works::merged;
use crate::{Plugin, cases};
use polyrail::p2p::{End, HealingMessage, QueuePairId};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

cases! {
    links_that_are_reset_cost_no_message: &[("POLYRAIL_QP_TIMEOUT", "17")],
    what_is_lost_with_a_link_is_sent_again: &[
        ("POLYRAIL_QP_TIMEOUT", "14"),
        ("POLYRAIL_RETRIES", "3"),
    ],
    a_link_is_reconnected_while_no_call_is_made: &[("POLYRAIL_HEALING", "off")],
    a_link_that_is_silent_is_reconnected: &[("POLYRAIL_LINK_TIMEOUT_MS", "10000")],
    a_peer_whose_host_is_gone_ends_an_idle_receive: &[("POLYRAIL_LINK_TIMEOUT_MS", "3000")],
    a_link_that_breaks_before_it_is_accepted_is_reconnected,
    a_connection_that_is_closed_is_not_found_again: &[("POLYRAIL_LINK_TIMEOUT_MS", "8000")],
    strangers_at_the_listener_disturb_no_connection: &[("POLYRAIL_INTERFACE", "lo")],
    silent_strangers_keep_no_peer_out: &[("POLYRAIL_INTERFACE", "lo")],
    a_peer_that_floods_its_link_holds_up_no_other,
    rails_come_back_in_time_while_calls_are_rare,
}

/// Returns something once links were reconnected this many times. Only the sender's lines count,
/// one for each: a receiver may also log a link that the sender had given up, on a slow machine.
fn reconnected(times: usize) -> Option<()> {
    let is_so = |line: &str| line.contains("Sender on") && line.ends_with("the link is resumed");
    (count_lines(is_so) == times).then_some(())
}

/// Whether all rails that failed are in service again, at both ends. One may fail several times
/// before it is.
fn are_back() -> bool {
    ["s0", "s1", "s2", "s3"].iter().all(|nic| {
        let rail = format!("a rail on {nic} ");
        last_logged(&rail).is_none_or(|line| line.ends_with("is back"))
    })
}

/// How often rails have failed.
fn failures() -> usize {
    count_logged(" failed: ")
}

/// Resets links, of either end in turn, and now and then with a rail that is away.
struct Resetting<'p> {
    plugin: &'p Plugin,
    random: Random,
    resets: usize,
    /// The NIC that is away, and how many failures there were before.
    cut: Option<(&'static str, usize)>,
}

impl Resetting<'_> {
    /// Whether the traffic is enough: a NIC that was to be cut after some bytes has to have carried
    /// them, or it would be cut after it was to come back.
    fn is_done(&self) -> bool {
        self.resets >= 10 && self.cut.is_none_or(|(_, before)| failures() > before)
    }
}

impl Meanwhile for Resetting<'_> {
    fn done(&mut self, messages: usize) {
        let is_whole = reconnected(self.resets).is_some();
        if !messages.is_multiple_of(8) || !is_whole {
            return;
        }
        match (self.cut, self.random.below(4)) {
            // While one rail is away, the other one has to stay. The first reset cuts one in any
            // case, so that a rail fails in every run.
            (None, draw) if are_back() && (draw == 0 || self.resets == 0) => {
                let nic = ["s0", "s1", "s2", "s3"][self.random.below(4)];
                self.cut = Some((nic, failures()));
                self.plugin.fault(nic, self.random.below(10_000) as u64, 0);
            }
            (Some((nic, before)), 0) if failures() > before => {
                self.plugin.fault(nic, 0, 1);
                self.cut = None;
            }
            _ => {}
        }
        let links = links();
        assert_eq!(links.len(), 2);
        reset(links[self.random.below(2)]);
        self.resets += 1;
    }
}

fn links_that_are_reset_cost_no_message(plugin: &Plugin) {
    for seed in 0..2 {
        logged();
        let pair = merged(plugin);
        let before = sockets().len();
        let mut resetting = Resetting { plugin, random: Random(seed), resets: 0, cut: None };
        // A link is resumed after 100 ms or more, however fast the traffic is.
        while !resetting.is_done() {
            traffic::run(&pair, 1000, seed, &mut resetting);
        }
        let Resetting { resets, cut, .. } = resetting;
        until("a link", || reconnected(resets));
        assert!(failures() > 0);
        cut.into_iter().for_each(|(nic, _)| plugin.fault(nic, 0, 1));
        // Rails come back by what the link carries.
        until("all rails", || are_back().then_some(()));
        assert_eq!(sockets().len(), before);
        pair.close();
    }
}

/// A rail fails while its two ends' messages about it are on a silent link, which then breaks.
fn what_is_lost_with_a_link_is_sent_again(plugin: &Plugin) {
    const BYTES: usize = 1 << 20;
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(BYTES);
    pair.send_through(&mut from, &mut to, BYTES);
    for (round, nic) in ["s0", "s3", "s1", "s2"].into_iter().enumerate() {
        Random(round as u64).fill(&mut from.bytes);
        links().into_iter().for_each(silence);
        let before = failures();
        plugin.fault(nic, 100_000, 0);
        let receive = until("irecv", || pair.irecv(&[(to.at(0), BYTES, 1, to.handle)]));
        let send = until("isend", || pair.isend((from.at(0), BYTES), 1, from.handle));
        let (mut sent, mut came) = (None, None);
        let mut go_on = || {
            sent = sent.or_else(|| pair.test(send));
            came = came.or_else(|| pair.test(receive));
            sent.and(came).map(|_| ())
        };
        until("a failure", || {
            assert_eq!(go_on(), None, "without what the other end has to tell");
            (failures() > before).then_some(())
        });
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(100) {
            assert_eq!(go_on(), None, "without what the other end has to tell");
        }
        links().into_iter().for_each(reset);
        until("a message", go_on);
        assert!(from.bytes == to.bytes);
        assert!(reconnected(round + 1).is_some());
        plugin.fault(nic, 0, 1);
        until("all rails", || are_back().then_some(()));
    }
    pair.close();
}

/// The thread that sees to connections does it.
fn a_link_is_reconnected_while_no_call_is_made(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1000);
    pair.send_through(&mut from, &mut to, 1000);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    for round in 0..4 {
        reset(links()[round % 2]);
        until("a link", || reconnected(round + 1));
        assert_eq!(links().len(), 2);
    }
    assert_eq!(pair.test(receive), None);
    let send = until("isend", || pair.isend((from.at(0), 1000), 1, from.handle));
    until("a send", || pair.test(send));
    assert_eq!(until("a receive", || pair.test(receive))[0], 1000);
    // The new link also reports that the peer has ended.
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    assert_eq!(pair.table.close_send(pair.send), 0);
    assert_eq!(until("an error", || at_once(|| pair.table.test(receive)).err()), REMOTE);
    assert_eq!(pair.table.close_recv(pair.recv), 0);
}

/// What comes over the link is dropped unanswered, as by a network that is out of order: a new one
/// is not.
fn a_link_that_is_silent_is_reconnected(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1000);
    pair.send_through(&mut from, &mut to, 1000);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    let begin = Instant::now();
    links().into_iter().for_each(silence);
    until("a link", || reconnected(1));
    assert!(begin.elapsed() > Duration::from_secs(1), "{:?}", begin.elapsed());
    let send = until("isend", || pair.isend((from.at(0), 1000), 1, from.handle));
    until("a send", || pair.test(send));
    assert_eq!(until("a receive", || pair.test(receive))[0], 1000);
    pair.close();
}

/// Nothing is under way on the rails, and whatever comes by TCP is dropped unanswered, as it is by
/// a host that has lost its power.
fn a_peer_whose_host_is_gone_ends_an_idle_receive(plugin: &Plugin) {
    let pair = merged(plugin);
    let [mut from, mut to] = pair.memories(1000);
    pair.send_through(&mut from, &mut to, 1000);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    sockets().into_iter().for_each(silence);
    let begin = Instant::now();
    assert_eq!(until("an error", || at_once(|| pair.table.test(receive)).err()), REMOTE);
    assert!(begin.elapsed() > Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_eq!(
        count_logged("test: the link to the peer: the link broke and was not resumed within "),
        1
    );
    pair.close();
}

/// The sender, which is connected, comes back before NCCL has the connection at the other end.
fn a_link_that_breaks_before_it_is_accepted_is_reconnected(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let mut handle = [0u8; HANDLE];
    let listener = table.listen(context, 1, handle.as_mut_ptr().cast()).unwrap();
    let mut connect = || some(table.connect(context, 0, handle.as_mut_ptr().cast()).unwrap());
    assert_eq!(connect(), None);
    let link = links()[0];
    let accept = || some(table.accept(listener).unwrap());
    // Its hello is answered, and its "ready" is on its way.
    let send = until("connect", || {
        assert_eq!(accept(), None);
        connect()
    });
    reset(link);
    until("a link that is broken", || (count_logged("the link broke") == 1).then_some(()));
    // It waits for an answer.
    thread::sleep(Duration::from_millis(300));
    let recv = until("accept", accept);
    until("a link", || reconnected(1));
    let pair = Pair { table, context, send, recv };
    let mut from = Memory::new(&table, send, 1000);
    let mut to = Memory::new(&table, recv, 1000);
    pair.send_through(&mut from, &mut to, 1000);
    pair.close();
    assert_eq!(table.close_listen(listener), 0);
}

/// One end is closed while the link is away: the other one is notified all the same.
fn a_connection_that_is_closed_is_not_found_again(plugin: &Plugin) {
    for is_sender in [true, false] {
        logged();
        let pair = merged(plugin);
        let table = pair.table;
        let [mut from, mut to] = pair.memories(1000);
        pair.send_through(&mut from, &mut to, 1000);
        let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
        reset(links()[0]);
        if is_sender {
            assert_eq!(table.close_send(pair.send), 0);
            assert_eq!(until("an error", || at_once(|| table.test(receive)).err()), REMOTE);
            assert_eq!(table.close_recv(pair.recv), 0);
        } else {
            assert_eq!(table.close_recv(pair.recv), 0);
            // A message that is never received.
            let data = (from.at(0), 1000);
            let send = || at_once(|| table.isend(pair.send, data, 1, from.handle));
            let sent = until("a send, or an error", || match send() {
                Ok(send) if send.is_null() => None,
                sent => Some(sent),
            });
            let status = match sent {
                Ok(send) => until("an error", || at_once(|| table.test(send)).err()),
                Err(status) => status,
            };
            assert_eq!(status, REMOTE);
            assert_eq!(table.close_send(pair.send), 0);
        }
    }
}

fn strangers_at_the_listener_disturb_no_connection(plugin: &Plugin) {
    let table = plugin.table(12);
    let context = table.init(LOGGER, -1).unwrap();
    let pair = Pair::new(table, context, 0, 1);
    let [door] = listening()[..] else { panic!("one door, and nobody listens: {:?}", listening()) };
    let resume = framed(r#"{"resume":{"session":"0123456789abcdef0123456789abcdef"}}"#);
    let mut strangers = Vec::new();
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", &resume[..9], &resume, &[0xff; 4096]] {
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, door)).unwrap();
        stranger.set_read_timeout(Some(LONG)).unwrap();
        stranger.write_all(bytes).unwrap();
        strangers.push(stranger);
    }
    let mut answer = Vec::new();
    strangers[3].read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("refused") && answer.contains("token"), "{answer}");
    for at in [1, 4] {
        let begin = Instant::now();
        // The reason may come first.
        _ = strangers[at].read_to_end(&mut Vec::new());
        assert!(begin.elapsed() < LONG, "{at} is not dropped");
    }
    let [mut from, mut to] = pair.memories(1000);
    pair.send_through(&mut from, &mut to, 1000);
    drop(strangers);
    until("strangers to be gone", || (links().len() == 2).then_some(()));
    reset(links()[0]);
    until("a link", || reconnected(1));
    pair.send_through(&mut from, &mut to, 1000);
    // The listener is the same for later connections, and no other is opened.
    let later = Pair::new(table, context, 0, 1);
    assert_eq!(listening(), [door]);
    pair.close();
    assert_eq!(listening(), [door]);
    later.close();
    // Nobody would answer.
    until("a door that is closed", || listening().is_empty().then_some(()));
}

/// More of them than may be at the door at a time, and a sender whose link breaks behind them.
fn silent_strangers_keep_no_peer_out(plugin: &Plugin) {
    let pair = merged(plugin);
    let link = links()[0];
    let [door] = listening()[..] else { panic!("one door, and nobody listens: {:?}", listening()) };
    let come = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, door)).unwrap();
    let strangers: Vec<TcpStream> = (0..100).map(come).collect();
    let begin = Instant::now();
    reset(link);
    until("a link", || reconnected(1));
    // Sooner than they are sent away for their silence.
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    drop(strangers);
    pair.close();
}

/// The peer sends valid messages as fast as they are read, for as long as others need.
fn a_peer_that_floods_its_link_holds_up_no_other(plugin: &Plugin) {
    let flooded = merged(plugin);
    let link = links()[0];
    let other = Pair::new(flooded.table, flooded.context, 0, 2);
    let rail = QueuePairId { end: End::Sender, index: 0 };
    let wanted = HealingMessage::Wanted { rail }.to_json();
    let wanted: String = wanted.bytes().map(|byte| format!("{byte:02x}")).collect();
    let message = framed(&format!(r#"{{"note":{{"bytes":"{wanted}"}}}}"#));
    flood(link, &message, || {
        let [mut from, mut to] = other.memories(1000);
        (0..100).for_each(|_| other.send_through(&mut from, &mut to, 1000));
        // Its own messages go on, too.
        let [mut from, mut to] = flooded.memories(1000);
        flooded.send_through(&mut from, &mut to, 1000);
    });
    flooded.close();
    other.close();
}

/// The plugin's thread serves a connection every 10 ms, unless calls do the same work meanwhile.
/// One call in 9 ms does not.
fn rails_come_back_in_time_while_calls_are_rare(plugin: &Plugin) {
    const ROUNDS: usize = 16;
    let pair = merged(plugin);
    let [_from, mut to] = pair.memories(1000);
    let receive = until("irecv", || pair.irecv(&[(to.at(0), 1000, 1, to.handle)]));
    let mut calls = 0;
    let mut call_rarely = |is_over: &dyn Fn() -> bool| {
        thread::sleep(Duration::from_millis(9));
        calls += 1;
        assert_eq!(pair.test(receive), None);
        is_over().then_some(())
    };
    for _ in 0..ROUNDS {
        let failed = count_logged("Receiver: a rail on s2 failed: ");
        plugin.fault("s2", 0, 0);
        let fails = || count_logged("Receiver: a rail on s2 failed: ") > failed;
        until("a failure", || call_rarely(&fails));
        plugin.fault("s2", 0, 1);
        until("a rail", || call_rarely(&are_back));
    }
    // With the thread about 3 in each round, and more if it is late now and then; by calls
    // alone 16.
    assert!(calls < 10 * ROUNDS, "{calls} calls");
    pair.close();
}
