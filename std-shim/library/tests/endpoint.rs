//! Endpoints: making, connecting, moving data.

mod fixture;

use fixture::pair::{BYTES, Host, pair, poll_both};
use fixture::{LONG, impatient};
use polyrail::backend::{ConnectOptions, Mtu};
use polyrail::card::ConnectionCard;
use polyrail::chain::Chain;
use polyrail::endpoint::{
    Address, BuildError, ConnectError, EndpointBuilder, EndpointQp, RailMismatch, connect_endpoints,
};
use polyrail::nic::{self, DeviceConfig, Fabric, Fault, ProtectionDomain, When};
use polyrail::verbs::{ImmOrder, RecvWr, SendWr, WcOpcode, WcStatus};
use polyrail::virtual_qp::{
    FragmentSizeError, PairDevicesError, PeerWindow, PeerWindowError, RailFailure, RailId,
    RailState, Scheme,
};
use std::time::Instant;

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn both_schemes_deliver_over_any_number_of_rails_and_devices() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for (rails, devices) in [(1, 1), (2, 1), (4, 4), (8, 3), (2, 4)] {
            let builder = EndpointBuilder::new().rails(rails).scheme(scheme);
            let (mut a, mut b) = pair(devices, &builder);
            a.buffer.write_at(0, &pattern()).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            a.notify(&b, 2, BYTES as u32, 3);
            let (sent, received) = poll_both(&mut a, &mut b, (1, 1));
            assert_eq!((sent[0].wr_id, sent[0].status), (2, WcStatus::SUCCESS));
            assert_eq!((received[0].wr_id, received[0].status), (1, WcStatus::SUCCESS));
            let imm = if scheme == Scheme::Dqplb && rails > 1 { None } else { Some(3) };
            assert_eq!(received[0].imm, imm, "{scheme:?} {rails}");
            assert!(b.bytes() == pattern(), "{scheme:?}, {rails} rails on {devices} devices");
        }
    }
}

#[test]
fn different_numbers_of_devices_meet_rail_by_rail() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for (rails, near, far) in
            [(1, 1, 2), (4, 1, 2), (4, 2, 1), (8, 3, 2), (6, 2, 3), (2, 4, 1), (8, 8, 3)]
        {
            let fabric = Fabric::threaded();
            let builder = EndpointBuilder::new().rails(rails).scheme(scheme);
            let mut a = Host::new(&fabric, "a", near, &builder);
            let mut b = Host::new(&fabric, "b", far, &builder);
            connect_endpoints(&mut a.endpoint, &mut b.endpoint).unwrap();
            a.buffer.write_at(0, &pattern()).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            a.notify(&b, 2, BYTES as u32, 3);
            let (sent, received) = poll_both(&mut a, &mut b, (1, 1));
            let shape = format!("{scheme:?}, {rails} rails on {near} and {far} devices");
            assert_eq!((sent[0].wr_id, sent[0].status), (2, WcStatus::SUCCESS), "{shape}");
            assert_eq!(received[0].status, WcStatus::SUCCESS, "{shape}");
            assert!(b.bytes() == pattern(), "{shape}");
            // And back, by a READ of the other end's.
            let back = b.buffer.toward(&a.buffer.remote()).unwrap();
            a.buffer.write_at(0, &vec![9; BYTES]).unwrap();
            let local = b.buffer.local(0, BYTES as u32).unwrap();
            b.endpoint.post_send(&SendWr::read(4, local, a.buffer.addr(), &back)).unwrap();
            let (_, read) = poll_both(&mut a, &mut b, (0, 1));
            assert_eq!(read[0].status, WcStatus::SUCCESS, "{shape}");
            assert!(b.bytes() == vec![9; BYTES], "{shape}");
            if scheme == Scheme::Dqplb {
                continue;
            }
            // A SEND needs keys of the sender's memory only.
            let buffer = a.buffer.local(0, 64).unwrap();
            a.endpoint.post_recv(&RecvWr::data(5, buffer, &a.buffer.local_keys())).unwrap();
            let sent = b.buffer.local(0, 64).unwrap();
            b.endpoint.post_send(&SendWr::send(6, sent, &b.buffer.local_keys())).unwrap();
            let (received, _) = poll_both(&mut a, &mut b, (1, 1));
            assert_eq!(received[0].status, WcStatus::SUCCESS, "{shape}");
        }
    }
}

#[test]
fn devices_are_paired_before_anything_is_sent() {
    let (mut a, b) = pair(1, &EndpointBuilder::new());
    let qp = a.endpoint.virtual_qp_mut();
    let three = PairDevicesError::Rails { rails: 4, given: 3 };
    assert_eq!(qp.pair_devices(&[0, 1, 0]), Err(three));
    let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    let wr = SendWr::write(1, a.buffer.local(0, 64).unwrap(), b.buffer.addr(), &keys);
    a.endpoint.post_send(&wr).unwrap();
    let paired = a.endpoint.virtual_qp_mut().pair_devices(&[0, 1, 0, 1]);
    assert_eq!(paired, Err(PairDevicesError::InUse));
    a.endpoint.post_send(&wr).unwrap();
}

/// New queue pairs are where the first ones were, so that requests have the keys for them.
#[test]
fn rails_between_different_numbers_of_devices_come_back() {
    for (near, far) in [(1, 2), (2, 1), (2, 3)] {
        let fabric = Fabric::threaded();
        let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute);
        let builder = builder.connect_options(impatient());
        let mut a = Host::new(&fabric, "a", near, &builder);
        let mut b = Host::new(&fabric, "b", far, &builder);
        connect_endpoints(&mut a.endpoint, &mut b.endpoint).unwrap();
        let rails = (0..4).map(RailId::Data).chain([RailId::Notify]);
        for (round, failed) in (1..).zip(rails) {
            a.endpoint.fail_rail(failed);
            a.buffer.write_at(0, &vec![round; BYTES]).unwrap();
            // One that passes by rail 0, and waits while it is away.
            let short = a.buffer.local(0, 64).unwrap();
            let inbox = b.buffer.local(0, 64).unwrap();
            b.endpoint.post_recv(&RecvWr::data(1, inbox, &b.buffer.local_keys())).unwrap();
            a.endpoint.post_send(&SendWr::send(2, short, &a.buffer.local_keys())).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(3)).unwrap();
            a.notify(&b, 4, BYTES as u32, 5);
            let (sent, received) = poll_both(&mut a, &mut b, (2, 2));
            let shape = format!("{near} and {far} devices, {failed}");
            let all = sent.iter().chain(&received);
            assert!(all.into_iter().all(|wc| wc.status.is_success()), "{shape}");
            assert!(b.bytes() == vec![round; BYTES], "{shape}");
            let begin = Instant::now();
            let is_back = |host: &Host| {
                host.endpoint.virtual_qp().rail_state(failed) == Some(RailState::InService)
            };
            while !(is_back(&a) && is_back(&b)) {
                assert!(begin.elapsed() < LONG, "{shape}");
                let polled = [a.endpoint.poll(16), b.endpoint.poll(16)];
                assert!(polled.iter().all(|polled| polled.completions.is_empty()), "{shape}");
            }
        }
    }
}

/// Two ends of the same order understand each other, whichever order it is; a peer whose card does
/// not name one is assumed to have this side's.
#[test]
fn immediates_arrive_as_they_were_sent_if_both_ends_have_one_order() {
    let big = ImmOrder::BigEndian;
    let little = ImmOrder::LittleEndian;
    for (sends, takes, number) in
        [(big, big, 0x0102_0304), (little, little, 0x0102_0304), (little, big, 0x0403_0201)]
    {
        for rails in [1, 2] {
            let fabric = Fabric::threaded();
            let builder = EndpointBuilder::new().rails(rails);
            let mut a = Host::new(&fabric, "a", 1, &builder.imm_order(sends));
            let mut b = Host::new(&fabric, "b", 1, &builder.imm_order(takes));
            a.endpoint.connect(&as_the_reference_has_it(&b.endpoint)).unwrap();
            b.endpoint.connect(&as_the_reference_has_it(&a.endpoint)).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            a.notify(&b, 2, 4096, 0x0102_0304);
            let arrived = poll_both(&mut a, &mut b, (1, 1)).1[0].imm;
            assert_eq!(arrived, Some(number), "{sends}, {takes}, {rails} rails");
        }
    }
}

#[test]
fn reads_sends_and_atomics_pass() {
    let (mut a, mut b) = pair(2, &EndpointBuilder::new());
    b.buffer.write_at(0, &pattern()).unwrap();
    let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    let local = a.buffer.local(0, BYTES as u32 / 2).unwrap();
    a.endpoint.post_send(&SendWr::read(1, local, b.buffer.addr(), &keys)).unwrap();
    let received = b.buffer.local(BYTES - 100, 100).unwrap();
    b.endpoint.post_recv(&RecvWr::data(2, received, &b.buffer.local_keys())).unwrap();
    let sent = a.buffer.local(0, 100).unwrap();
    a.endpoint.post_send(&SendWr::send(3, sent, &keys)).unwrap();
    let old = a.buffer.local(BYTES - 8, 8).unwrap();
    a.endpoint.post_send(&SendWr::fetch_add(4, old, b.buffer.addr(), 1, &keys)).unwrap();
    let (sent, received) = poll_both(&mut a, &mut b, (3, 1));
    let opcodes: Vec<WcOpcode> = sent.iter().map(|wc| wc.opcode).collect();
    assert_eq!(opcodes, [WcOpcode::RDMA_READ, WcOpcode::SEND, WcOpcode::FETCH_ADD]);
    assert_eq!((received[0].wr_id, received[0].byte_len), (2, 100));
    assert_eq!(a.bytes()[..BYTES / 2], pattern()[..BYTES / 2]);
    assert_eq!(b.bytes()[BYTES - 100..], pattern()[..100]);
}

#[test]
fn the_card_names_the_queue_pairs_and_survives_json() {
    let (a, _b) = pair(2, &EndpointBuilder::new().rails(3));
    let card = a.endpoint.card();
    assert_eq!(card.qp_nums.len(), 3);
    assert_ne!(card.notify_qp_num, 0);
    assert_eq!(card.window, None);
    assert_eq!(card.imm_order, Some(ImmOrder::BigEndian));
    assert_eq!(ConnectionCard::from_json(card.to_json().as_bytes()), Ok(card));

    let (a, _b) = pair(1, &EndpointBuilder::new().scheme(Scheme::Dqplb));
    let card = a.endpoint.card();
    assert_eq!(card.notify_qp_num, 0);
    assert_eq!(card.window, Some(a.endpoint.virtual_qp().window()));
}

#[test]
fn virtual_qp_numbers_are_unique() {
    let (a, b) = pair(1, &EndpointBuilder::new());
    assert_ne!(a.endpoint.virtual_qp().virtual_qp_num(), b.endpoint.virtual_qp().virtual_qp_num());
}

#[test]
fn what_cannot_be_built_is_refused() {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("x")).alloc_pd().unwrap();
    let build = |builder: EndpointBuilder, domains: &[&ProtectionDomain]| {
        builder.build(domains).map(|_| ()).unwrap_err()
    };
    let new = EndpointBuilder::new;
    assert_eq!(build(new().rails(0), &[&domain]), BuildError::Rails { rails: 0, max: 8 });
    assert_eq!(build(new().rails(9), &[&domain]), BuildError::Rails { rails: 9, max: 8 });
    assert_eq!(build(new(), &[]), BuildError::Devices { devices: 0, rails: 4 });
    assert_eq!(build(new(), &[&domain; 9]), BuildError::Devices { devices: 9, rails: 4 });
    let error = build(new().max_msg_size(100), &[&domain]);
    assert!(error.to_string().contains("max_msg_size 100"), "{error}");
    let reroute = new().rail_failure(RailFailure::Reroute);
    let error = build(reroute.rails(1), &[&domain]);
    assert_eq!(error.to_string(), "a single rail cannot be re-routed: there is no other rail");
    let error = build(reroute.min_rails(5), &[&domain]);
    assert_eq!(error.to_string(), "min_rails is 5, but there are only 4 rails");
    let error = build(new().max_inline_data(1 << 20), &[&domain]);
    assert!(
        Chain(&error)
            .to_string()
            .starts_with("device x: 1048576 bytes of inline data exceed what the device supports"),
        "{error}"
    );
    let other = fabric.create_device(DeviceConfig::named("y")).alloc_pd().unwrap();
    let standby = |positions: &[usize]| build(new().standby_devices(positions), &[&domain, &other]);
    for position in [2, 7, 8, 100] {
        let refused = BuildError::StandbyDevice { position, devices: 2 };
        assert_eq!(standby(&[1, position]), refused);
    }
    assert_eq!(standby(&[0, 1]), BuildError::OnlyStandbyDevices { devices: 2 });
    assert_eq!(standby(&[0]), BuildError::StandbyFirstDevice);
    domain.device().inject(When::Now, Fault::DeviceGone);
    assert_eq!(Chain(&build(new(), &[&domain])).to_string(), "device x: the device is gone");
}

#[test]
fn endpoints_that_do_not_match_are_refused_with_the_reason() {
    let fabric = Fabric::threaded();
    let new = EndpointBuilder::new;
    let host = |devices, builder| Host::new(&fabric, "h", devices, &builder);
    let mut four = host(2, new());
    let error = |four: &mut Host, other: &Host| {
        four.endpoint.connect(&other.endpoint.address()).unwrap_err()
    };
    let three = host(2, new().rails(3));
    assert_eq!(error(&mut four, &three), ConnectError::Rails { local: 4, peer: 3, addresses: 3 });
    let dqplb = host(2, new().scheme(Scheme::Dqplb));
    let here = Scheme::Spray;
    let peer = Scheme::Dqplb;
    assert_eq!(error(&mut four, &dqplb), ConnectError::Scheme { here, peer });
    let mut shorter = four.endpoint.address();
    shorter.max_msg_size = 127;
    let fragments = ConnectError::FragmentSize(FragmentSizeError::TooShort { bytes: 127 });
    let mut other = host(2, new());
    assert_eq!(other.endpoint.connect(&shorter), Err(fragments));
    let spread = host(4, new());
    let swapped = host(2, new().imm_order(ImmOrder::LittleEndian));
    let here = ImmOrder::BigEndian;
    let peer = ImmOrder::LittleEndian;
    let orders = error(&mut four, &swapped);
    assert_eq!(orders, ConnectError::ImmOrder { here, peer });
    let text = "the byte order of immediates is big endian here, little endian at the peer";
    assert_eq!(orders.to_string(), text);
    let rerouted = host(2, new().rail_failure(RailFailure::Reroute));
    let here = RailFailure::Fatal;
    let peer = RailFailure::Reroute;
    let failures = error(&mut four, &rerouted);
    assert_eq!(failures, ConnectError::RailFailure { here, peer });
    let text = "a rail that fails is fatal here, re-routed at the peer";
    assert_eq!(failures.to_string(), text);
    // Four devices, but not in turn.
    let mut crossed = spread.endpoint.address();
    crossed.rails.swap(2, 3);
    let devices = RailMismatch::Devices { rail: RailId::Data(2), here: 0, peer: 3 };
    assert_eq!(four.endpoint.connect(&crossed), Err(ConnectError::Ends(devices)));
    let mut mute = four.endpoint.address();
    mute.notify = None;
    assert_eq!(four.endpoint.connect(&mute), Err(ConnectError::NoNotify));
    // Nothing had changed.
    let mut fits = host(2, new());
    connect_endpoints(&mut four.endpoint, &mut fits.endpoint).unwrap();
}

/// Each end cuts what it sends; no fragment is longer than the devices of the other end take.
#[test]
fn of_two_fragment_sizes_both_ends_take_the_lesser_one() {
    for (near, far, agreed) in [(65536, 4096, 4096), (4096, 65536, 4096), (8192, 8192, 8192)] {
        let fabric = Fabric::threaded();
        let host =
            |name, size| Host::new(&fabric, name, 2, &EndpointBuilder::new().max_msg_size(size));
        let (mut a, mut b) = (host("a", near), host("b", far));
        connect_endpoints(&mut a.endpoint, &mut b.endpoint).unwrap();
        for (from, to) in [(0, 1), (1, 0)] {
            let ends = [&mut a, &mut b];
            assert_eq!(ends[from].endpoint.address().max_msg_size, agreed);
            ends[from].buffer.write_at(0, &pattern()).unwrap();
            let keys = ends[from].buffer.toward(&ends[to].buffer.remote()).unwrap();
            let local = ends[from].buffer.local(0, BYTES as u32).unwrap();
            let wr = SendWr::write(2, local, ends[to].buffer.addr(), &keys);
            ends[from].endpoint.post_send(&wr).unwrap();
            let expected = if from == 0 { (1, 0) } else { (0, 1) };
            poll_both(&mut a, &mut b, expected);
            let sender = if from == 0 { &a } else { &b };
            let of_rail = |at| sender.endpoint.virtual_qp().counters(RailId::Data(at)).unwrap();
            let fragments: u64 = (0..4).map(|at| of_rail(at).send_requests).sum();
            assert_eq!(fragments, BYTES.div_ceil(agreed as usize) as u64, "{near} and {far}");
        }
        assert!(a.bytes() == pattern() && b.bytes() == pattern());
    }
}

/// Packets of the two versions of IP do not meet, and every driver reports only EINVAL.
#[test]
fn addresses_of_two_kinds_are_named_before_anything_is_posted() {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new();
    let mut a = Host::new(&fabric, "a", 2, &builder);
    let b = Host::new(&fabric, "b", 2, &builder);
    let refused = |a: &mut Host, address: &Address| {
        let never = |_: &mut EndpointQp| -> Result<(), ConnectError> { panic!("{address:?}") };
        a.endpoint.connect_after(address, never).unwrap_err().to_string()
    };
    let own = a.devices[1].gid(1).unwrap();
    let mut address = b.endpoint.address();
    address.rails[3].gid = "::ffff:10.0.0.2".parse().unwrap();
    let expected = format!(
        "rail 3 (device a1): IPv6 link-local here ({own}), IPv4 at the peer (::ffff:10.0.0.2)"
    );
    assert_eq!(refused(&mut a, &address), expected);
    let mut address = b.endpoint.address();
    address.notify.as_mut().unwrap().gid = "::ffff:10.0.0.2".parse().unwrap();
    let error = refused(&mut a, &address);
    assert!(error.starts_with("the notify queue pair (device a0): IPv6 link-local"), "{error}");
    let mut infiniband = b.endpoint.address();
    infiniband.rails[2].lid = 7;
    assert_eq!(
        refused(&mut a, &infiniband),
        "rail 2 (device a0): the local port is Ethernet, the peer's InfiniBand"
    );
    // The routes decide which addresses of IPv6 reach each other. Nothing had changed, and this
    // gets as far as the receives.
    let mut routed = b.endpoint.address();
    routed.rails[3].gid = "2001:db8::2".parse().unwrap();
    let enough = |_: &mut EndpointQp| Err(ConnectError::NoNotify);
    let error = a.endpoint.connect_after(&routed, enough).unwrap_err();
    assert_eq!(error, ConnectError::NoNotify);
}

#[test]
fn two_fabrics_do_not_connect() {
    let host = |name| Host::new(&Fabric::threaded(), name, 2, &EndpointBuilder::new());
    let (mut a, mut b) = (host("a"), host("b"));
    let error = connect_endpoints(&mut a.endpoint, &mut b.endpoint).unwrap_err();
    assert!(matches!(error, ConnectError::Modify { rail: RailId::Data(0), .. }), "{error:?}");
    let gid = b.devices[0].gid(1).unwrap();
    let words = Chain(&error).to_string();
    assert!(words.contains(&format!("{gid} is not an address of this fabric")), "{words}");
}

#[test]
fn a_window_that_is_too_small_is_refused_before_anything_is_posted() {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new().scheme(Scheme::Dqplb);
    let mut a = Host::new(&fabric, "a", 1, &builder);
    let b = Host::new(&fabric, "b", 1, &builder);
    let mut address = b.endpoint.address();
    let small = PeerWindow { window: 8, receives_per_rail: 100 };
    address.card.window = Some(small);
    let never = |_: &mut EndpointQp| -> Result<(), ConnectError> { panic!("they do not agree") };
    let error = a.endpoint.connect_after(&address, never).unwrap_err();
    let refused = PeerWindowError { peer: small, rails: 4 };
    assert_eq!(error, ConnectError::PeerWindow(refused));
}

/// The address that the reference gives for an endpoint like this one: its card has two fields, and
/// always names a notify queue pair.
fn as_the_reference_has_it(endpoint: &EndpointQp) -> Address {
    let mut address = endpoint.address();
    let notify = match address.card.notify_qp_num {
        0 => 4242,
        used => used,
    };
    let number = |qp_num: &u32| format!("\"{qp_num:010}\"");
    let numbers: Vec<String> = address.card.qp_nums.iter().map(number).collect();
    let card = format!(r#"{{"notifyQpNum":"{notify:010}","qpNums":[{}]}}"#, numbers.join(","));
    address.card = ConnectionCard::from_json(card.as_bytes()).unwrap();
    address.notify = address.notify.or(Some(address.rails[0]));
    address
}

#[test]
fn a_reference_peers_card_connects_with_either_scheme_and_any_number_of_rails() {
    let cases = [(Scheme::Spray, 1), (Scheme::Spray, 4), (Scheme::Dqplb, 1), (Scheme::Dqplb, 4)];
    for (scheme, rails) in cases {
        for always in [false, true] {
            let fabric = Fabric::threaded();
            let builder = EndpointBuilder::new().scheme(scheme).rails(rails);
            let builder = builder.always_notify_qp(always);
            let mut a = Host::new(&fabric, "a", 1, &builder);
            let mut b = Host::new(&fabric, "b", 1, &builder);
            let mut reference = as_the_reference_has_it(&b.endpoint);
            let in_use = scheme == Scheme::Spray && rails > 1;
            assert_eq!(a.endpoint.card().notify_qp_num != 0, in_use || always);
            if !in_use {
                // The address of a queue pair that is not needed may be unknown.
                a.endpoint.connect(&reference).unwrap();
                a = Host::new(&fabric, "a", 1, &builder);
                reference.notify = None;
            }
            a.endpoint.connect(&reference).unwrap();
            b.endpoint.connect(&a.endpoint.address()).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            a.notify(&b, 2, BYTES as u32, 3);
            let (sent, received) = poll_both(&mut a, &mut b, (1, 1));
            assert_eq!((sent[0].wr_id, sent[0].status), (2, WcStatus::SUCCESS));
            assert_eq!((received[0].wr_id, received[0].status), (1, WcStatus::SUCCESS));
        }
    }
}

#[test]
fn the_smaller_packets_of_the_two_ends_are_used() {
    let fabric = Fabric::threaded();
    let options = |path_mtu| ConnectOptions { path_mtu, ..impatient() };
    let builder = |mtu| EndpointBuilder::new().connect_options(options(mtu));
    let mut a = Host::new(&fabric, "a", 1, &builder(Mtu::Mtu4096));
    let mut b = Host::new(&fabric, "b", 1, &builder(Mtu::Mtu1024));
    connect_endpoints(&mut a.endpoint, &mut b.endpoint).unwrap();
    a.write_to(&b, 1, BYTES as u32);
    // Ends with different packets do not understand each other.
    assert_eq!(poll_both(&mut a, &mut b, (1, 0)).0[0].status, WcStatus::SUCCESS);
}

#[test]
fn receives_are_posted_before_anybody_can_reach_them() {
    let fabric = Fabric::threaded();
    let builder = EndpointBuilder::new();
    let mut a = Host::new(&fabric, "a", 2, &builder);
    let b = Host::new(&fabric, "b", 2, &builder);
    let states = |endpoint: &EndpointQp| {
        let qp = endpoint.virtual_qp();
        qp.rails().chain(qp.notify_qp()).map(|qp| qp.state()).collect::<Vec<_>>()
    };
    let mut peer = b.endpoint.address();
    peer.scheme = Scheme::Dqplb;
    let never = |_: &mut EndpointQp| -> Result<(), ConnectError> { panic!("they do not agree") };
    a.endpoint.connect_after(&peer, never).unwrap_err();
    let mut seen = Vec::new();
    let post = |endpoint: &mut EndpointQp| -> Result<(), ConnectError> {
        seen = states(endpoint);
        endpoint.post_recv(&RecvWr::notification(1)).unwrap();
        Ok(())
    };
    a.endpoint.connect_after(&b.endpoint.address(), post).unwrap();
    assert_eq!(seen, [nic::QpState::Init; 5]);
    assert_eq!(states(&a.endpoint), [nic::QpState::Rts; 5]);
}

/// A send queue that is drained (SQD), for example to change the path of its packets, loses
/// nothing.
#[test]
fn requests_wait_for_a_rail_whose_send_queue_is_drained() {
    let (mut a, mut b) = pair(2, &EndpointBuilder::new().rails(2));
    a.buffer.write_at(0, &pattern()).unwrap();
    let rail = RailId::Data(1);
    let moved = |a: &Host, to| {
        let qp = a.endpoint.virtual_qp().physical(rail).unwrap();
        qp.modify(to, &nic::QpAttributes::default()).unwrap();
    };
    moved(&a, nic::QpState::Sqd);
    a.write_to(&b, 1, BYTES as u32);
    for _ in 0..10_000 {
        assert!(a.endpoint.poll(8).completions.is_empty());
    }
    assert_eq!(a.endpoint.unreported(), 1);
    moved(&a, nic::QpState::Rts);
    assert_eq!(poll_both(&mut a, &mut b, (1, 0)).0[0].status, WcStatus::SUCCESS);
    assert!(b.bytes() == pattern());
}

#[test]
fn polling_with_a_callback_sees_the_same() {
    let (mut a, b) = pair(1, &EndpointBuilder::new());
    a.write_to(&b, 9, 4096);
    let mut seen = Vec::new();
    while seen.is_empty() {
        let polled = a.endpoint.poll_with(8, |event| seen.extend(event.completion()));
        assert_eq!(polled.error, None);
    }
    assert_eq!(seen[0].wr_id, 9);
    assert_eq!(a.endpoint.unreported(), 0);
}
