//! Endpoints: making, connecting, moving data, failing.

mod fixture;

use fixture::impatient;
use polyrail::card::ConnectionCard;
use polyrail::chain::Chain;
use polyrail::endpoint::{
    Address, BuildError, ConnectError, Endpoint, EndpointBuilder, EndpointError, EndpointQp,
    RailMismatch, StallWatch, connect_endpoints,
};
use polyrail::nic::{
    self, ConnectOptions, Device, DeviceConfig, Fabric, Fault, Mtu, ProtectionDomain,
    RegisteredBuffer, When,
};
use polyrail::verbs::{ImmOrder, RecvWr, SendWr, WcOpcode, WcStatus};
use polyrail::virtual_cq::VirtualWc;
use polyrail::virtual_qp::{
    PeerWindow, PeerWindowError, PostSendError, QpState, RailFailure, RailId, Scheme,
};
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;

/// One host with a buffer.
struct Host {
    devices: Vec<Device>,
    domains: Vec<ProtectionDomain>,
    buffer: RegisteredBuffer,
    endpoint: Endpoint,
}

impl Host {
    fn new(fabric: &Fabric, prefix: &str, devices: usize, builder: &EndpointBuilder) -> Self {
        let host = fixture::Host::new(fabric, prefix, devices, BYTES);
        let endpoint = builder.build(&host.all()).unwrap();
        let fixture::Host { devices, domains, buffer } = host;
        Self { devices, domains, buffer, endpoint }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; BYTES];
        self.buffer.read_at(0, &mut bytes).unwrap();
        bytes
    }
}

fn pair(devices: usize, builder: &EndpointBuilder) -> (Host, Host) {
    let fabric = Fabric::threaded();
    let builder = builder.connect_options(impatient());
    let mut a = Host::new(&fabric, "a", devices, &builder);
    let mut b = Host::new(&fabric, "b", devices, &builder);
    connect_endpoints(&mut a.endpoint, &mut b.endpoint).unwrap();
    (a, b)
}

/// Polls both until each has as many completions as wanted.
fn poll_both(
    a: &mut Host,
    b: &mut Host,
    wanted: (usize, usize),
) -> (Vec<VirtualWc>, Vec<VirtualWc>) {
    let mut from_a = Vec::new();
    let mut from_b = Vec::new();
    let begin = Instant::now();
    while from_a.len() < wanted.0 || from_b.len() < wanted.1 {
        assert!(begin.elapsed() < Duration::from_secs(10), "a: {from_a:?}, b: {from_b:?}");
        let batch_a = a.endpoint.poll(32);
        let batch_b = b.endpoint.poll(32);
        assert_eq!((batch_a.error, batch_b.error), (None, None));
        from_a.extend(batch_a.completions);
        from_b.extend(batch_b.completions);
    }
    (from_a, from_b)
}

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
            let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            let local = a.buffer.local(0, BYTES as u32).unwrap();
            let wr = SendWr::write_with_imm(2, local, b.buffer.addr(), 3, &keys);
            a.endpoint.post_send(&wr).unwrap();
            let (sent, received) = poll_both(&mut a, &mut b, (1, 1));
            assert_eq!((sent[0].wr_id, sent[0].status), (2, WcStatus::SUCCESS));
            assert_eq!((received[0].wr_id, received[0].status), (1, WcStatus::SUCCESS));
            let imm = if scheme == Scheme::Dqplb && rails > 1 { None } else { Some(3) };
            assert_eq!(received[0].imm, imm, "{scheme:?} {rails}");
            assert!(b.bytes() == pattern(), "{scheme:?}, {rails} rails on {devices} devices");
        }
    }
}

/// Two ends of the same order understand each other, whichever order it is; a peer whose card does not
/// name one is assumed to have this side's.
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
            let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            let local = a.buffer.local(0, 4096).unwrap();
            let wr = SendWr::write_with_imm(2, local, b.buffer.addr(), 0x0102_0304, &keys);
            a.endpoint.post_send(&wr).unwrap();
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
    assert_eq!(error.to_string(), "one rail alone cannot be re-routed");
    let error = build(reroute.min_rails(5), &[&domain]);
    assert_eq!(error.to_string(), "min_rails is 5 of 4 rails");
    let error = build(new().max_inline_data(1 << 20), &[&domain]);
    assert!(Chain(&error).to_string().starts_with("device x: max_inline_data"), "{error}");
    domain.device().inject(When::Now, Fault::DeviceGone);
    assert_eq!(Chain(&build(new(), &[&domain])).to_string(), "device x: the device is gone");
}

#[test]
fn endpoints_that_do_not_go_together_are_told_apart() {
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
    let short = host(2, new().max_msg_size(4096));
    let fragments = ConnectError::FragmentSize { here: 65536, peer: 4096 };
    assert_eq!(error(&mut four, &short), fragments);
    let spread = host(4, new());
    let swapped = host(2, new().imm_order(ImmOrder::LittleEndian));
    let here = ImmOrder::BigEndian;
    let peer = ImmOrder::LittleEndian;
    let orders = error(&mut four, &swapped);
    assert_eq!(orders, ConnectError::ImmOrder { here, peer });
    let text = "immediates travel big endian from here, little endian from the peer";
    assert_eq!(orders.to_string(), text);
    let rerouted = host(2, new().rail_failure(RailFailure::Reroute));
    let here = RailFailure::Fatal;
    let peer = RailFailure::Reroute;
    let failures = error(&mut four, &rerouted);
    assert_eq!(failures, ConnectError::RailFailure { here, peer });
    let text = "a rail that fails is fatal here, re-routed at the peer";
    assert_eq!(failures.to_string(), text);
    let devices = RailMismatch::Devices { rail: RailId::Data(2), here: 0, peer: 2 };
    assert_eq!(error(&mut four, &spread), ConnectError::Ends(devices));
    let mut mute = four.endpoint.address();
    mute.notify = None;
    assert_eq!(four.endpoint.connect(&mute), Err(ConnectError::NoNotify));
    // Nothing had changed.
    let mut fits = host(2, new());
    connect_endpoints(&mut four.endpoint, &mut fits.endpoint).unwrap();
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
    // The routes decide which addresses of IPv6 reach each other, and on InfiniBand packets go by
    // LID: nothing had changed, and both get as far as the receives.
    let mut routed = b.endpoint.address();
    routed.rails[3].gid = "2001:db8::2".parse().unwrap();
    let mut infiniband = b.endpoint.address();
    for rail in infiniband.rails.iter_mut().chain(&mut infiniband.notify) {
        (rail.lid, rail.gid) = (7, "::ffff:10.0.0.2".parse().unwrap());
    }
    for address in [routed, infiniband] {
        let enough = |_: &mut EndpointQp| Err(ConnectError::NoNotify);
        let error = a.endpoint.connect_after(&address, enough).unwrap_err();
        assert_eq!(error, ConnectError::NoNotify);
    }
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
            let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            let local = a.buffer.local(0, BYTES as u32).unwrap();
            let wr = SendWr::write_with_imm(2, local, b.buffer.addr(), 3, &keys);
            a.endpoint.post_send(&wr).unwrap();
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
    let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    let local = a.buffer.local(0, BYTES as u32).unwrap();
    a.endpoint.post_send(&SendWr::write(1, local, b.buffer.addr(), &keys)).unwrap();
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
    peer.max_msg_size = 128;
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

#[test]
fn a_link_that_fails_is_named() {
    let (mut a, mut b) = pair(4, &EndpointBuilder::new());
    a.devices[2].inject(When::Now, Fault::LinkDown);
    let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    let local = a.buffer.local(0, BYTES as u32).unwrap();
    a.endpoint.post_send(&SendWr::write(1, local, b.buffer.addr(), &keys)).unwrap();
    let (sent, _) = poll_both(&mut a, &mut b, (1, 0));
    assert_eq!(sent[0].status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(a.endpoint.state(), QpState::Error);
    let EndpointError::Rail(error) = a.endpoint.explain(sent[0].status) else { panic!() };
    assert_eq!((error.error.rail, error.device.as_str()), (RailId::Data(2), "a2"));
    let text = error.to_string();
    assert!(text.starts_with("rail 2 (device a2, queue pair 17) failed: RETRY_EXC_ERR"), "{text}");
    let again = a.endpoint.post_send(&SendWr::write(2, local, b.buffer.addr(), &keys));
    assert_eq!(again, Err(PostSendError::InErrorState));
    assert_eq!(a.endpoint.rail_reports()[2].errors, 4);
    drop(b.domains);
}

/// Polls and watches until a rail is found silent; returns the time that took.
fn fall_silent(a: &mut Host, b: &mut Host, posted: u64) -> (EndpointError, Duration) {
    let mut watch = StallWatch::new(SILENCE);
    let begin = Instant::now();
    let mut reported = 0;
    loop {
        reported += a.endpoint.poll(16).completions.len() as u64;
        _ = b.endpoint.poll(16);
        if let Err(error) = watch.check(&mut a.endpoint, posted, reported) {
            return (error, begin.elapsed());
        }
        assert!(begin.elapsed() < 20 * SILENCE);
    }
}

const SILENCE: Duration = Duration::from_millis(100);

#[test]
fn a_rail_that_falls_silent_is_named_and_moved_to_err() {
    for (scheme, rails, device) in
        [(Scheme::Spray, 4, 2), (Scheme::Spray, 4, 0), (Scheme::Dqplb, 4, 3), (Scheme::Spray, 1, 0)]
    {
        let builder = EndpointBuilder::new().scheme(scheme).rails(rails);
        let (mut a, mut b) = pair(rails, &builder);
        b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
        a.devices[device].inject(When::Now, Fault::Silent(true));
        let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
        let local = a.buffer.local(0, BYTES as u32).unwrap();
        let wr = SendWr::write_with_imm(1, local, b.buffer.addr(), 1, &keys);
        a.endpoint.post_send(&wr).unwrap();
        let (error, took) = fall_silent(&mut a, &mut b, 1);
        let silent = RailId::Data(device as u8);
        let device = format!("a{device}");
        let expected = EndpointError::Silent { rail: silent, device, waited: SILENCE };
        assert_eq!(error, expected);
        assert!(took >= SILENCE && took < 10 * SILENCE, "{took:?}");
        let state = a.endpoint.virtual_qp().physical(silent).unwrap().state();
        assert_eq!(state, nic::QpState::Err);
        // Its requests come back, and so does the caller's.
        let (sent, _) = poll_both(&mut a, &mut b, (1, 0));
        assert_eq!((sent[0].wr_id, sent[0].status), (1, WcStatus::WR_FLUSH_ERR));
        assert_eq!(a.endpoint.unreported(), 0);
    }
}

#[test]
fn rails_that_are_slow_or_idle_are_not_silent() {
    for rails in [1, 4] {
        let (mut a, mut b) = pair(rails, &EndpointBuilder::new().rails(rails));
        // Each request takes most of the patience, and all of them several times as much.
        a.devices[rails - 1].inject(When::Now, Fault::DelayCompletions(SILENCE / 2));
        let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
        let local = a.buffer.local(0, BYTES as u32).unwrap();
        let mut watch = StallWatch::new(SILENCE);
        let begin = Instant::now();
        let mut posted = 0;
        let mut reported = 0;
        let mut done = None;
        while done.is_none_or(|done: Instant| done.elapsed() < 2 * SILENCE) {
            if posted == reported && posted < 4 {
                let wr = SendWr::write(posted, local, b.buffer.addr(), &keys);
                a.endpoint.post_send(&wr).unwrap();
                posted += 1;
            }
            reported += a.endpoint.poll(16).completions.len() as u64;
            _ = b.endpoint.poll(16);
            assert_eq!(watch.check(&mut a.endpoint, posted, reported), Ok(()));
            done = done.or_else(|| (reported == 4).then(Instant::now));
            assert!(begin.elapsed() < 100 * SILENCE);
        }
    }
}

#[test]
fn failing_all_rails_flushes_everything() {
    for rails in [1, 4] {
        let (mut a, mut b) = pair(1, &EndpointBuilder::new().rails(rails));
        for wr_id in 0..10 {
            b.endpoint.post_recv(&RecvWr::notification(wr_id)).unwrap();
        }
        b.endpoint.fail_all();
        let (_, flushed) = poll_both(&mut a, &mut b, (0, 10));
        assert!((0..).zip(&flushed).all(|(i, wc)| wc.wr_id == i));
        assert!(flushed.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR), "{flushed:?}");
        assert_eq!(b.endpoint.unreported(), 0);
    }
}

#[test]
fn a_device_that_goes_away_is_named_by_its_queue() {
    let (mut a, _b) = pair(2, &EndpointBuilder::new());
    a.devices[1].inject(When::Now, Fault::DeviceGone);
    let error = a.endpoint.poll(16).error.unwrap();
    let text = a.endpoint.queue_error(error).to_string();
    let expected = "completion queue of device a1: polling failed: No such device (os error 19)";
    assert_eq!(text, expected);
}

#[test]
fn polling_with_a_callback_sees_the_same() {
    let (mut a, b) = pair(1, &EndpointBuilder::new());
    let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    let local = a.buffer.local(0, 4096).unwrap();
    a.endpoint.post_send(&SendWr::write(9, local, b.buffer.addr(), &keys)).unwrap();
    let mut seen = Vec::new();
    while seen.is_empty() {
        let polled = a.endpoint.poll_with(8, |event| seen.extend(event.completion()));
        assert_eq!(polled.error, None);
    }
    assert_eq!(seen[0].wr_id, 9);
    assert_eq!(a.endpoint.unreported(), 0);
}

#[test]
fn a_post_before_the_connection_is_told_what_is_missing() {
    let fabric = Fabric::threaded();
    for (rails, scheme) in [(1, Scheme::Spray), (2, Scheme::Spray), (2, Scheme::Dqplb)] {
        let builder = EndpointBuilder::new().rails(rails).scheme(scheme);
        let mut host = Host::new(&fabric, "mlx5_", 2, &builder);
        let keys = host.buffer.toward(&host.buffer.remote()).unwrap();
        let local = host.buffer.local(0, 4096).unwrap();
        let wr = SendWr::write_with_imm(1, local, host.buffer.addr(), 7, &keys);
        let error = host.endpoint.post_send(&wr).unwrap_err();
        assert!(error.to_string().contains("connect first"), "{error}");
        let named = host.endpoint.post_error(error).to_string();
        let begin =
            "rail 0 (device mlx5_0) takes no requests before it is connected: connect first";
        assert_eq!(named, begin);
    }
}

#[test]
fn a_refused_post_names_the_device() {
    let (mut a, b) = pair(2, &EndpointBuilder::new().rails(2));
    let mut keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    keys.pop();
    let local = a.buffer.local(0, 4096).unwrap();
    let error = a.endpoint.post_send(&SendWr::write(1, local, b.buffer.addr(), &keys)).unwrap_err();
    assert!(error.to_string().contains("register its buffer with every device"), "{error}");
    let named = a.endpoint.post_error(error).to_string();
    assert!(named.starts_with("the request has no keys for device a1: register"), "{named}");
    // Connected endpoints do not lack a connection.
    let refused = PostSendError::Driver { rail: RailId::Data(1), errno: libc::ENOMEM };
    let named = a.endpoint.post_error(refused).to_string();
    let begin = "rail 1 (device a1): the driver refused the request: Cannot allocate memory";
    assert!(named.starts_with(begin), "{named}");
    // Errors that do not concern a device are unchanged.
    let empty = a.endpoint.post_error(PostSendError::InErrorState).to_string();
    assert_eq!(empty, PostSendError::InErrorState.to_string());
}
