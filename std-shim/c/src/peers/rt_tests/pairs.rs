//! Two ends whose devices are in the same networks, and listed in different orders.

use super::over_tcp::open_tcp;
use super::*;
use crate::region::{polyrail_region_close, polyrail_remote_close};
use crate::types::{Completion, Opcode, Request};

const BYTES: usize = 4 << 20;

/// `::1` and `127.0.0.1` are two networks, which do not reach each other.
const ASKING: &CStr = c"127.0.0.1,::1";
const ANSWERING: &CStr = c"::1,127.0.0.1";

/// Connects the first peers over a link. The end that answers adds its peer toward the other end,
/// or before the link comes.
fn connect(both: [*mut Peers; 2], is_toward: bool) -> ([u64; 2], Result<(), String>) {
    let (mut listener, mut links) = (ptr::null_mut(), [ptr::null_mut::<Link>(); 2]);
    let (mut address, mut length) = ([0u8; 64], 0);
    let [asking, answering] = both;
    let asker = add(asking);
    // SAFETY: zeros are values of options, and all pointers are to what they should be.
    let (answerer, met) = unsafe {
        let options =
            LinkOptions { size: size_of::<LinkOptions>() as u32, message_ms: 60_000, ..zeroed() };
        ok(polyrail_listener_open(c"127.0.0.1:0".as_ptr(), &raw const options, &raw mut listener));
        let start = address.as_mut_ptr().cast::<c_char>();
        ok(polyrail_listener_address(listener, start, address.len(), &raw mut length));
        ok(polyrail_link_open(start, &raw const options, &raw mut links[0]));
        let mut answerer = 0;
        let early = polyrail_peers_add_toward(answering, ptr::null(), links[0], &raw mut answerer);
        assert_eq!(early, Code::Argument, "the other side's devices are not known yet");
        ok(polyrail_peers_meet(asking, asker, links[0], ptr::null(), 0));
        while polyrail_listener_accept(listener, &raw mut links[1]) != Code::Ok {
            ok(polyrail_peers_drive(asking));
        }
        if is_toward {
            let link = links[1];
            ok(polyrail_peers_add_toward(answering, ptr::null(), link, &raw mut answerer));
        } else {
            answerer = add(answering);
        }
        let met = polyrail_peers_meet(answering, answerer, links[1], ptr::null(), 0);
        let words = || CStr::from_ptr(polyrail_last_error()).to_str().unwrap().to_owned();
        let met = if met == Code::Ok { Ok(()) } else { Err(words()) };
        ok(polyrail_listener_close(listener));
        (answerer, met)
    };
    ([asker, answerer], met)
}

/// Writes all bytes with one request: fragments go over all rails.
fn write_all(
    [near, far]: [*mut Peers; 2],
    peer: u64,
    (region, remote): (*mut Region, *mut Remote),
) {
    // SAFETY: zeros are values of the structures, and all pointers are to what they should be.
    unsafe {
        let length = BYTES as u32;
        let request =
            Request { id: 7, opcode: Opcode::Write as u32, region, length, remote, ..zeroed() };
        ok(polyrail_peers_post(near, peer, &raw const request));
        loop {
            let (mut done, mut count): (Completion, _) = (zeroed(), 0);
            ok(polyrail_peers_poll(near, &raw mut done, 1, &raw mut count));
            if count == 1 {
                assert_eq!((done.id, done.status), (7, 0));
                return;
            }
            ok(polyrail_peers_poll(far, ptr::null_mut(), 0, &raw mut count));
        }
    }
}

fn close(ends: [(*mut Domain, *mut Peers); 2]) {
    for (domain, peers) in ends {
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    }
}

#[test]
fn both_ends_write_over_the_pairs_that_reach_each_other() {
    on_a_deep_stack(write_both_ways);
}

fn write_both_ways() {
    let ends = [open_tcp(ASKING), open_tcp(ANSWERING)];
    let both = ends.map(|(_, peers)| peers);
    let (peers, met) = connect(both, true);
    met.unwrap();
    for (of, peer) in both.into_iter().zip(peers) {
        let (kind, words) = next_event(both, (of, peer));
        assert_eq!(kind, EventKind::Connected as u32, "{words}");
    }
    for (near, far) in [(0, 1), (1, 0)] {
        let mut here: Vec<u8> = (0..BYTES).map(|at| (at / 7 + near) as u8).collect();
        let mut there = vec![0; BYTES];
        let region = register(ends[near].0, &mut here);
        let target = register(ends[far].0, &mut there);
        let remote = import(target);
        let sides = [both[near], both[far]];
        write_all(sides, peers[near], (region, remote));
        ok(polyrail_remote_close(remote));
        ok(polyrail_region_close(region));
        ok(polyrail_region_close(target));
        assert!(here == there, "from end {near}");
    }
    let rails = |of: *mut Peers, peer| {
        let mut any = exclusive(of).unwrap();
        let found = any.find(peer).unwrap();
        let rails = found.set.rails(found.place);
        let name = |rail: &crate::types::RailInfo| {
            // SAFETY: the name ends with a zero.
            unsafe { CStr::from_ptr(rail.device.as_ptr()) }.to_str().unwrap().to_owned()
        };
        assert!(rails.iter().all(|rail| rail.failures == 0));
        rails.iter().map(name).collect::<Vec<_>>()
    };
    let names = rails(both[0], peers[0]);
    assert_eq!(names, rails(both[1], peers[1]));
    assert_eq!(names[..2], ["tcp:127.0.0.1", "tcp:::1"]);
    close(ends);
}

#[test]
fn a_replaced_peer_keeps_the_order_of_its_devices() {
    on_a_deep_stack(|| {
        let ends = [open_tcp(ASKING), open_tcp(ANSWERING)];
        let both = ends.map(|(_, peers)| peers);
        let ([_, old], met) = connect(both, true);
        met.unwrap();
        let mut new = 0;
        // SAFETY: all pointers are to what they should be.
        unsafe { ok(polyrail_peers_replace(both[1], old, ptr::null(), &raw mut new)) };
        let mut any = exclusive(both[1]).unwrap();
        let found = any.find(new).unwrap();
        assert_eq!(found.set.devices(found.place), [1, 0]);
        drop(any);
        close(ends);
    });
}

#[test]
fn without_pairs_the_first_that_cannot_reach_each_other_are_named() {
    on_a_deep_stack(name_the_pair);
}

fn name_the_pair() {
    let ends = [open_tcp(ASKING), open_tcp(ANSWERING)];
    let both = ends.map(|(_, peers)| peers);
    let (_, met) = connect(both, false);
    let words = met.unwrap_err();
    for name in ["rail 0", "tcp:::1", "IPv6 here (::1)", "IPv4 at the peer (::ffff:127.0.0.1)"] {
        assert!(words.contains(name), "{words}");
    }
    close(ends);
}

#[test]
fn messages_go_over_the_pairs_that_reach_each_other() {
    on_a_deep_stack(send_messages);
}

fn send_messages() {
    let open = |devices| {
        let (domain, requests) = open_tcp(devices);
        ok(polyrail_peers_close(requests));
        (domain, open_peers(domain, For::Messages))
    };
    let ends = [open(ASKING), open(ANSWERING)];
    let both = ends.map(|(_, peers)| peers);
    let (peers, met) = connect(both, true);
    met.unwrap();
    for (of, peer) in both.into_iter().zip(peers) {
        let (kind, words) = next_event(both, (of, peer));
        assert_eq!(kind, EventKind::Connected as u32, "{words}");
    }
    for (near, far) in [(0, 1), (1, 0)] {
        let mut here: Vec<u8> = (0..BYTES).map(|at| (at / 5 + near) as u8).collect();
        let mut there = vec![0; BYTES];
        let [region, target] =
            [register(ends[near].0, &mut here), register(ends[far].0, &mut there)];
        let (mut sent, mut received) = (0, 0);
        let length = BYTES as u32;
        // SAFETY: all pointers are to what they should be.
        unsafe {
            let buffer = crate::types::Buffer { region: target, offset: 0, length, tag: 3 };
            let (to, from) = (peers[near], peers[far]);
            let receive = || {
                polyrail_messages_receive(both[far], from, &raw const buffer, 1, &raw mut received)
            };
            until(both, receive);
            until(both, || {
                polyrail_messages_send(both[near], to, region, 0, length, 3, &raw mut sent)
            });
            until(both, || polyrail_messages_test(both[near], sent, 0, ptr::null_mut()));
            until(both, || polyrail_messages_test(both[far], received, 0, ptr::null_mut()));
        }
        ok(polyrail_region_close(region));
        ok(polyrail_region_close(target));
        assert!(here == there, "from end {near}");
    }
    close(ends);
}

/// Repeats a call until it succeeds, and polls both ends.
fn until(both: [*mut Peers; 2], mut call: impl FnMut() -> Code) {
    loop {
        match call() {
            Code::NotNow => both.iter().for_each(|peers| ok(polyrail_messages_poll(*peers, 16))),
            code => return ok(code),
        }
    }
}

/// Keys are those of the pairs, in the order of the rails, whatever the order of the exports.
#[test]
fn a_program_that_lies_about_its_devices_gets_no_keys_beyond_its_own() {
    on_a_deep_stack(|| {
        let (domain, peers) = open_tcp(ASKING);
        let mut memory = vec![0; 64];
        let region = register(domain, &mut memory);
        let words = table::words(region).unwrap_or_else(|_| panic!("a region"));
        let local = crate::keys::Local::from_words(&words);
        let far = local.for_peers();
        let rkeys = |own: &[u8], far_order: &[u8]| {
            let order = |positions: &[u8]| crate::pairs::Order::new(positions.iter().copied());
            let pairs = crate::pairs::Pairs { own: order(own), far: order(far_order) };
            let mut keys = crate::keys::Keys::new();
            local.add_keys(&far, &pairs, &mut keys);
            keys.iter().map(|keys| (keys.lkey, keys.rkey)).collect::<Vec<_>>()
        };
        let plain = rkeys(&[], &[]);
        let [(first, to_first), (second, to_second)] = plain[..] else { panic!("{plain:?}") };
        assert_eq!(rkeys(&[1, 0], &[]), [(second, to_first), (first, to_second)]);
        assert_eq!(rkeys(&[], &[1, 0]), [(first, to_second), (second, to_first)]);
        assert_eq!(rkeys(&[1], &[1]), [(second, to_second)]);
        assert_eq!(rkeys(&[], &[7]), []);
        assert_eq!(rkeys(&[], &[0; 8]).len(), 8);
        ok(polyrail_region_close(region));
        ok(polyrail_peers_close(peers));
        ok(polyrail_domain_close(domain));
    });
}
