//! Endpoints over TCP, both in this process, on the loopback interface.

mod fixture;
mod messages;

use fixture::{Host, LONG};
use messages::{Pair, Side};
use polyrail::endpoint::{
    ConnectError, Endpoint, EndpointBuilder, NamedRailEvent, RailMismatch, connect_endpoints,
};
use polyrail::heal::Detected;
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::Fabric;
use polyrail::p2p::{End, P2pBuilder, P2pConnectError, P2pEndpointSet};
use polyrail::tcp::{
    CompletionQueue, Device, DeviceOptions, MemoryRegion, ProtectionDomain, QueuePair,
};
use polyrail::verbs::{AccessFlags, RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{RailEventKind, RailFailure, RailId, RailState, Scheme};
use polyrail_faults::Relay;
use std::net::TcpListener;
use std::time::{Duration, Instant};

type Buffer = RegisteredBuffer<MemoryRegion>;

const ACCESS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);

/// Opens devices on addresses of the loopback interface, which differ from those of other ends.
fn host(end: u8, devices: u8, bytes: usize) -> (Vec<Device>, Vec<ProtectionDomain>, Buffer) {
    let open = |number: u8| {
        let name = format!("127.1.{end}.{}", number + 1);
        Device::open(&name, &DeviceOptions::default()).unwrap()
    };
    with_devices((0..devices).map(open).collect(), bytes)
}

fn with_devices(
    devices: Vec<Device>,
    bytes: usize,
) -> (Vec<Device>, Vec<ProtectionDomain>, Buffer) {
    let domains: Vec<_> = devices.iter().map(|device| device.alloc_pd().unwrap()).collect();
    let buffer = Buffer::new(bytes, ACCESS, &domains.iter().collect::<Vec<_>>()).unwrap();
    (devices, domains, buffer)
}

fn pair(devices: u8, bytes: usize, builder: &P2pBuilder) -> Pair<ProtectionDomain, Device> {
    let side = |end| Side::with(host(end, devices, bytes), builder);
    Pair::connected(side(1), side(2))
}

#[test]
fn messages_of_all_sizes_arrive_over_any_number_of_rails() {
    const MOST: u32 = 1 << 20;
    for (rails, each) in [(1, 1), (2, 1), (2, 3), (8, 2)] {
        let builder = P2pBuilder::new().rails(rails).queue_pairs_per_rail(each);
        let mut pair = pair((rails as u8).min(4), MOST as usize, &builder);
        for length in [0, 1, 8, 128, 129, 65_536, 65_537, 300_001, MOST] {
            pair.exchange(length, MOST);
            pair.exchange(length, length);
        }
        let mut pair = pair.turned();
        pair.exchange(100_000, MOST);
    }
}

/// All members share the receives of the device's shared receive queue.
#[test]
fn a_set_of_message_endpoints_has_room_for_a_hundred_peers() {
    const PEERS: u16 = 100;
    let (_devices, domains, _buffer) = host(3, 1, 64);
    let builder = P2pBuilder::new().rails(1);
    let mut set: P2pEndpointSet<ProtectionDomain, 1024> =
        P2pEndpointSet::build(&builder, &domains, PEERS).unwrap();
    for number in 0..PEERS.into() {
        assert_eq!(set.add(), Ok(number));
    }
}

/// The queue pairs that flush are connected to themselves.
#[test]
fn received_messages_can_be_flushed() {
    let mut pair = pair(2, 1 << 20, &P2pBuilder::new().rails(2).flushes(true));
    let (send, receive) = pair.start(300_000);
    let received = pair.received(receive).unwrap();
    pair.sent(send).unwrap();
    let flush = pair.until(|pair| pair.far.endpoint.flush(&received)).unwrap();
    pair.flushed(&flush).unwrap();
}

#[test]
fn messages_survive_links_that_fail_and_return() {
    let builder = P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let mut pair = pair(2, 1 << 20, &builder);
    for round in 0..6 {
        let device = round % 2;
        let (send, receive) = pair.start(1 << 20);
        pair.near.devices[device].set_link(false);
        pair.finish(send, receive, 1 << 20);
        pair.near.devices[device].set_link(true);
        pair.wait_until_whole();
        pair.exchange(200_000, 1 << 20);
    }
}

type TcpEndpoint = Endpoint<QueuePair, CompletionQueue>;

/// Two endpoints with two rails that are re-routed, and memory.
struct Requests {
    near: TcpEndpoint,
    far: TcpEndpoint,
    devices: Vec<Device>,
    from: Buffer,
    to: Buffer,
}

const LENGTH: u32 = 4 << 20;

impl Requests {
    fn new(scheme: Scheme) -> Self {
        let (near, far) = (host(3, 2, LENGTH as usize), host(4, 2, LENGTH as usize));
        Self::over(scheme, near, far)
    }

    fn over(
        scheme: Scheme,
        (devices, near_domains, from): (Vec<Device>, Vec<ProtectionDomain>, Buffer),
        (_, far_domains, to): (Vec<Device>, Vec<ProtectionDomain>, Buffer),
    ) -> Self {
        let builder =
            EndpointBuilder::new().rails(4).scheme(scheme).rail_failure(RailFailure::Reroute);
        let mut near = builder.build(&near_domains.iter().collect::<Vec<_>>()).unwrap();
        let mut far = builder.build(&far_domains.iter().collect::<Vec<_>>()).unwrap();
        connect_endpoints(&mut near, &mut far).unwrap();
        Self { near, far, devices, from, to }
    }

    /// Writes all bytes, and waits for the notification. `during` is called once meanwhile.
    fn write(&mut self, seed: u64, during: impl FnOnce(&Self)) {
        let mut during = Some(during);
        let bytes: Vec<u8> = (0..u64::from(LENGTH))
            .map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9) >> 24) as u8)
            .collect();
        self.from.write_at(0, &bytes).unwrap();
        self.far.post_recv(&RecvWr::notification(1)).unwrap();
        let keys = self.from.toward(&self.to.remote()).unwrap();
        let local = self.from.local(0, LENGTH).unwrap();
        let write = SendWr::write_with_imm(2, local, self.to.addr(), 7, &keys);
        self.near.post_send(&write).unwrap();
        let begin = Instant::now();
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            if let Some(during) = during.take() {
                during(self);
            }
            for done in self.near.poll(16).completions {
                assert_eq!(done.status, WcStatus::SUCCESS, "{}", self.near.explain(done.status));
                sent = true;
            }
            for done in self.far.poll(16).completions {
                assert_eq!(done.status, WcStatus::SUCCESS, "{}", self.far.explain(done.status));
                received = true;
            }
            assert!(begin.elapsed() < LONG, "sent {sent}, received {received}");
        }
        let mut arrived = vec![0; LENGTH as usize];
        self.to.read_at(0, &mut arrived).unwrap();
        assert!(arrived == bytes, "seed {seed}");
    }

    /// The other end writes from now on.
    fn turn(&mut self) {
        std::mem::swap(&mut self.near, &mut self.far);
        std::mem::swap(&mut self.from, &mut self.to);
    }

    fn wait_until_whole(&mut self) {
        let begin = Instant::now();
        let is_whole = |endpoint: &TcpEndpoint| {
            (0..4).all(|rail| {
                let state = endpoint.virtual_qp().rail_state(RailId::Data(rail));
                state == Some(RailState::InService)
            })
        };
        while !(is_whole(&self.near) && is_whole(&self.far)) {
            self.near.poll(16).check().unwrap();
            self.far.poll(16).check().unwrap();
            assert!(begin.elapsed() < LONG);
        }
    }
}

#[test]
fn requests_survive_links_that_fail_and_return() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        let mut requests = Requests::new(scheme);
        for round in 0..6_u64 {
            let device = (round % 2) as usize;
            requests.write(round, |requests| requests.devices[device].set_link(false));
            requests.devices[device].set_link(true);
            requests.wait_until_whole();
            requests.write(100 + round, |_| ());
        }
    }
}

type Ends = [(Vec<Device>, Vec<ProtectionDomain>, Buffer); 2];

/// Two ends of two devices each. The second device of the first end connects to its peer through a
/// relay.
fn ends_with_a_relay() -> (Ends, Relay) {
    let open = |name: &str, port: u16, advertised| {
        Device::open(name, &DeviceOptions { port, advertised, ..DeviceOptions::default() })
    };
    let direct = |name| open(name, 0, None).unwrap();
    let far_port = TcpListener::bind("127.1.8.2:0").unwrap().local_addr().unwrap();
    let relay = Relay::to(far_port).unwrap();
    // Of two queue pairs, the one with the lower address and port connects.
    let mut lower = (1024..relay.address().port()).rev();
    let near = lower.find_map(|port| open("127.0.0.1", port, None).ok()).unwrap();
    let far = open("127.1.8.2", far_port.port(), Some(relay.address())).unwrap();
    let ends = [vec![direct("127.1.7.1"), near], vec![direct("127.1.8.1"), far]];
    (ends.map(|devices| with_devices(devices, LENGTH as usize)), relay)
}

/// Counts what happens to rails whose link is closed. The first count is of attempts that got no
/// connection, and the second of the queue pairs that the other end gave up then.
#[derive(Default)]
struct Attempts([usize; 2]);

impl Attempts {
    /// Requires that no rail returned.
    fn observe(&mut self, event: &NamedRailEvent) {
        assert!(!matches!(event.event.kind, RailEventKind::Returned), "{event}");
        match event.detected {
            Some(Detected::NotReached(waited)) => {
                assert!(waited >= Duration::from_secs(2));
                let text = event.to_string();
                let reason =
                    format!("no connection to the peer's new queue pair within {waited:?}");
                assert!(text.contains("127.") && text.ends_with(&reason), "{text}");
                self.0[0] += 1;
            }
            Some(Detected::NoOtherEnd) => self.0[1] += 1,
            _ => {}
        }
    }

    fn were_made(&self) -> bool {
        self.0.iter().all(|count| *count > 0)
    }
}

/// The link of two of four rails accepts connections and answers nothing.
#[test]
fn a_rail_that_reaches_no_peer_does_not_return() {
    let requests_of = |offers: bool| loop {
        let ([near, far], relay) = ends_with_a_relay();
        let requests = Requests::over(Scheme::Spray, near, far);
        // The end with the lower number offers new queue pairs. Devices begin at random numbers.
        let first = |endpoint: &TcpEndpoint| endpoint.address().card.qp_nums[0];
        if (first(&requests.near) < first(&requests.far)) == offers {
            break (requests, relay);
        }
    };
    // The end that connects offers, or answers.
    for (mut requests, relay) in [true, false].map(requests_of) {
        requests.write(1, |_| ());
        let relayed = relay.relayed();
        assert!(relayed > 0);
        relay.close(true);
        requests.write(2, |_| relay.cut());
        let mut attempts = Attempts::default();
        let mut seed = 2;
        while !attempts.were_made() {
            seed += 1;
            requests.write(seed, |_| ());
            requests.turn();
            for end in [&mut requests.near, &mut requests.far] {
                std::iter::from_fn(|| end.take_rail_event())
                    .for_each(|event| attempts.observe(&event));
            }
        }
        relay.close(false);
        requests.wait_until_whole();
        assert!(relay.relayed() > relayed);
        requests.write(seed + 1, |_| ());
        requests.turn();
        requests.write(seed + 2, |_| ());
    }
}

/// Each end offers new queue pairs for what it sends, and answers for what it receives.
#[test]
fn a_queue_pair_for_messages_that_reaches_no_peer_does_not_return() {
    let builder = P2pBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let ([near, far], relay) = ends_with_a_relay();
    let mut pair = Pair::connected(Side::with(near, &builder), Side::with(far, &builder));
    pair.exchange(200_000, 1 << 20);
    pair = pair.turned();
    pair.exchange(200_000, 1 << 20);
    let relayed = relay.relayed();
    assert!(relayed > 0);
    relay.close(true);
    relay.cut();
    // Of what each end sends.
    let mut attempts = [(); 2].map(|()| Attempts::default());
    while !attempts.iter().all(Attempts::were_made) {
        pair.exchange(200_000, 1 << 20);
        pair = pair.turned();
        attempts.reverse();
        for (at, side) in [&mut pair.near, &mut pair.far].into_iter().enumerate() {
            while let Some((end, place, event)) = side.endpoint.take_named_rail_event() {
                assert_eq!(place, 1, "{event}");
                let direction = if end == End::Sender { at } else { 1 - at };
                attempts[direction].observe(&event);
            }
        }
    }
    relay.close(false);
    pair.wait_until_whole();
    assert!(relay.relayed() > relayed);
    pair.exchange(200_000, 1 << 20);
    pair.turned().exchange(200_000, 1 << 20);
}

/// The GIDs of the two ends may well be of one kind, and say nothing then.
#[test]
fn an_end_over_rdma_is_named_at_an_end_over_tcp() {
    let (_, domains, _) = host(5, 1, 64);
    let here: Vec<_> = domains.iter().collect();
    let mut endpoint = EndpointBuilder::new().build(&here).unwrap();
    let mut address = endpoint.address();
    for rail in address.rails.iter_mut().chain(&mut address.notify) {
        rail.meeting = None;
    }
    let refused = endpoint.connect(&address).unwrap_err();
    let device = "tcp:127.1.5.1".to_owned();
    let mismatch = RailMismatch::Backends { rail: RailId::Data(0), device, here_is_tcp: true };
    assert_eq!(refused, ConnectError::Ends(mismatch.clone()));
    let text = "rail 0 (device tcp:127.1.5.1): connects over TCP here, but not at the peer";
    assert_eq!(mismatch.to_string(), text);

    let mut endpoint = P2pBuilder::new().build(&here).unwrap();
    let mut address = endpoint.address();
    for queue_pair in address.sending.iter_mut().chain(&mut address.receiving) {
        queue_pair.address.meeting = None;
    }
    let refused = endpoint.connect(&address).unwrap_err();
    assert!(
        matches!(&refused, P2pConnectError::Backends { end: End::Sender, here_is_tcp: true, .. }),
        "{refused}"
    );
    let text = "connects over TCP here, but not at the peer";
    assert!(refused.to_string().contains(text), "{refused}");
}

/// That the GIDs are of two kinds follows from it, and is not what is named.
#[test]
fn an_end_over_tcp_is_named_at_an_end_over_rdma() {
    let (_, over_tcp, _) = host(6, 1, 64);
    let there: Vec<_> = over_tcp.iter().collect();
    let fabric = Fabric::threaded();
    let over_rdma = Host::new(&fabric, "rdma", 1, 64);
    let text = "connects over TCP at the peer, but not here";

    let address = EndpointBuilder::new().build(&there).unwrap().address();
    let mut endpoint = EndpointBuilder::new().build(&over_rdma.all()).unwrap();
    let refused = endpoint.connect(&address).unwrap_err().to_string();
    assert!(refused.ends_with(&format!("rail 0 (device rdma0): {text}")), "{refused}");

    let address = P2pBuilder::new().build(&there).unwrap().address();
    let mut endpoint = P2pBuilder::new().build(&over_rdma.all()).unwrap();
    let refused = endpoint.connect(&address).unwrap_err().to_string();
    assert!(refused.ends_with(&format!("queue pair 0 (device rdma0): {text}")), "{refused}");
}
