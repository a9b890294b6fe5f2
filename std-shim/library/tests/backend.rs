//! What endpoints ask of a backend, and in which order.

mod recorded;

use polyrail::backend::{ConnectOptions, Mtu};
use polyrail::chain::Chain;
use polyrail::endpoint::{Address, ConnectError, Endpoint, EndpointBuilder, connect_endpoints};
use polyrail::hardware::QueuePair;
use polyrail::link::{Hello, Link, LinkError, Message, bring_up};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{self, DeviceConfig, DeviceLimits, Fabric};
use polyrail::p2p::{P2pBuilder, P2pEndpointSet};
use polyrail::verbs::{AccessFlags, DeviceId, RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{PostRecvError, RailId, Scheme};
use recorded::{Asked, Log, Recorded, RecordedQp, RecordedRegion, receives_come_first};
use std::thread;

type RecordedEndpoint = Endpoint<RecordedQp, nic::CompletionQueue>;

/// One side, with all that was asked of its queue pairs.
struct Side {
    log: Log,
    domains: Vec<Recorded>,
}

impl Side {
    fn new(fabric: &Fabric, devices: usize, config: &DeviceConfig) -> Self {
        let log = Log::default();
        let open = |n: usize| {
            let name = format!("{}{n}", config.name);
            let device = fabric.create_device(DeviceConfig { name, ..config.clone() });
            Recorded::new(device.alloc_pd().unwrap(), &log)
        };
        Self { domains: (0..devices).map(open).collect(), log }
    }

    fn build(&self, builder: &EndpointBuilder) -> RecordedEndpoint {
        builder.build(&self.domains.iter().collect::<Vec<_>>()).unwrap()
    }

    /// What was asked of one queue pair, in order.
    fn asked(&self, device: usize, qp_num: u32) -> Vec<Asked> {
        let device = self.domains[device].domain.device().id();
        let of = |entry: &&(DeviceId, u32, Asked)| (entry.0, entry.1) == (device, qp_num);
        self.log.lock().unwrap().iter().filter(of).map(|(_, _, asked)| *asked).collect()
    }

    fn buffer(&self) -> RegisteredBuffer<RecordedRegion> {
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let domains: Vec<_> = self.domains.iter().collect();
        RegisteredBuffer::new(1 << 20, access, &domains).unwrap()
    }
}

fn sides(devices: usize) -> (Side, Side) {
    let fabric = Fabric::threaded();
    let side = |name: &str| Side::new(&fabric, devices, &DeviceConfig::named(name));
    (side("a"), side("b"))
}

#[test]
fn every_queue_pair_goes_from_init_to_rts_with_the_peers_address() {
    let (a, b) = sides(2);
    let small = ConnectOptions { path_mtu: Mtu::Mtu1024, ..ConnectOptions::default() };
    let mut here = a.build(&EndpointBuilder::new());
    let mut there = b.build(&EndpointBuilder::new().connect_options(small));
    connect_endpoints(&mut here, &mut there).unwrap();
    let Address { card, rails, notify, .. } = there.address();
    let own = here.address();
    let peers = rails.iter().zip(&card.qp_nums).chain(notify.iter().zip([&card.notify_qp_num]));
    for (peer, qp_num) in peers {
        // Both sides number alike.
        let asked = a.asked(peer.device.into(), *qp_num);
        let [
            Asked::Init { port: 1, .. },
            Asked::Rtr { port: 1, peer: to, options },
            Asked::Rts { psn, .. },
        ] = asked[..]
        else {
            panic!("{asked:?}")
        };
        assert_eq!((to.gid, to.lid, to.qp_num, to.psn), (peer.gid, 0, *qp_num, peer.psn));
        assert_eq!((options.path_mtu, psn), (Mtu::Mtu1024, own.rails[0].psn));
    }
}

#[test]
fn the_fields_that_distinguish_packets_reach_every_queue_pair() {
    let (a, b) = sides(2);
    let given = ConnectOptions {
        service_level: 15,
        traffic_class: 106,
        flow_label: 0xf_ffff,
        hop_limit: 1,
        ..ConnectOptions::default()
    };
    let mut here = a.build(&EndpointBuilder::new().connect_options(given));
    let mut there = b.build(&EndpointBuilder::new());
    connect_endpoints(&mut here, &mut there).unwrap();
    let log = a.log.lock().unwrap();
    let path = |options: &ConnectOptions| {
        (options.service_level, options.traffic_class, options.flow_label, options.hop_limit)
    };
    let rtr = |asked: &Asked| match asked {
        Asked::Rtr { options, .. } => Some(path(options)),
        _ => None,
    };
    let told: Vec<_> = log.iter().filter_map(|(.., asked)| rtr(asked)).collect();
    // Four rails, and the one that notifies.
    assert_eq!(told, [path(&given); 5]);
}

#[test]
fn the_partition_key_is_chosen_at_init() {
    let (a, _) = sides(1);
    let options = ConnectOptions { pkey_index: 1, ..ConnectOptions::default() };
    let domains: Vec<_> = a.domains.iter().collect();
    let built: Result<RecordedEndpoint, _> =
        EndpointBuilder::new().connect_options(options).build(&domains);
    let error = built.expect_err("the software NIC has one partition key");
    assert_eq!(Chain(&error).to_string(), "device a0: PKEY_INDEX must not be 1");
    let log = a.log.lock().unwrap();
    assert!(
        matches!(log[..], [(_, _, Asked::Init { port: 1, options: asked })] if asked == options)
    );
}

/// Options that do not fit the fields of a packet, and the error for each.
fn unfit() -> [(ConnectOptions, &'static str); 3] {
    let usual = ConnectOptions::default();
    [
        (
            ConnectOptions { service_level: 16, ..usual },
            "service_level is 16, but must be from 0 to 15",
        ),
        (
            ConnectOptions { flow_label: 1 << 20, ..usual },
            "flow_label is 1048576, but must be from 0 to 1048575",
        ),
        (ConnectOptions { hop_limit: 0, ..usual }, "hop_limit is 0, but must be from 1 to 255"),
    ]
}

#[test]
fn what_does_not_fit_a_packet_is_refused_before_anything_is_made() {
    let (a, _) = sides(1);
    let domains: Vec<_> = a.domains.iter().collect();
    for (options, message) in unfit() {
        let builder = EndpointBuilder::new().connect_options(options);
        let built: Result<RecordedEndpoint, _> = builder.build(&domains);
        assert_eq!(built.err().map(|error| error.to_string()).as_deref(), Some(message));
    }
    assert!(a.log.lock().unwrap().is_empty());
}

#[test]
fn what_does_not_fit_a_packet_is_refused_for_messages_too() {
    let (a, _) = sides(1);
    let domains: Vec<_> = a.domains.iter().collect();
    for (options, message) in unfit() {
        let builder = P2pBuilder::new().connect_options(options);
        let built = builder.build(&domains).err().map(|error| error.to_string());
        assert_eq!(built.as_deref(), Some(message));
        let built = P2pEndpointSet::<Recorded>::build(&builder, &domains, 2);
        assert_eq!(built.err().map(|error| error.to_string()).as_deref(), Some(message));
    }
    assert!(a.log.lock().unwrap().is_empty());
}

/// A peer that has a notify queue pair without a use for it, as the reference always does, finds
/// one to connect it to; ours without one goes together with both.
#[test]
fn a_notify_queue_pair_without_a_use_is_connected_and_failed_with_the_others() {
    for (scheme, rails) in [(Scheme::Dqplb, 2), (Scheme::Dqplb, 1), (Scheme::Spray, 1)] {
        let (a, b) = sides(2);
        let builder = EndpointBuilder::new().scheme(scheme).rails(rails);
        let with_notify = builder.always_notify_qp(true);
        let mut here = a.build(&with_notify);
        let mut there = b.build(&with_notify);
        let own = here.address();
        let peer = there.address();
        let qp_num = own.card.notify_qp_num;
        assert_ne!((qp_num, peer.card.notify_qp_num), (0, 0));
        assert!(here.virtual_qp().notify_qp().is_none(), "the engine does not know of it");
        connect_endpoints(&mut here, &mut there).unwrap();
        let lives = peer.notify.expect("its address is there");
        assert_eq!(lives.device, 0);
        let asked = a.asked(0, qp_num);
        let [
            Asked::Init { port: 1, .. },
            Asked::Rtr { port: 1, peer: to, .. },
            Asked::Rts { psn, .. },
        ] = asked[..]
        else {
            panic!("{scheme:?} {rails}: {asked:?}")
        };
        assert_eq!((to.gid, to.qp_num, to.psn), (lives.gid, peer.card.notify_qp_num, lives.psn));
        assert_eq!(Some(psn), own.notify.map(|notify| notify.psn));
        write(&a, &mut here, &b, &mut there);
        here.fail();
        assert_eq!(a.asked(0, qp_num).last(), Some(&Asked::Err));

        let mut without = b.build(&builder);
        assert_eq!((without.card().notify_qp_num, without.address().notify), (0, None));
        let mut with = a.build(&with_notify);
        connect_endpoints(&mut with, &mut without).unwrap();
        let idle = a.asked(0, with.card().notify_qp_num);
        let never_connected = matches!(idle[..], [Asked::Init { port: 1, .. }]);
        assert!(never_connected, "there is nothing to connect it to: {idle:?}");
        write(&a, &mut with, &b, &mut without);
    }
}

/// With SPRAY over several rails there is the one that is used, and no other.
#[test]
fn a_notify_queue_pair_in_use_is_the_only_one() {
    let (a, _) = sides(2);
    let count = |builder: &EndpointBuilder| {
        a.log.lock().unwrap().clear();
        let endpoint = a.build(builder);
        let used = endpoint.virtual_qp().notify_qp().map(QueuePair::qp_num);
        assert_eq!(used, Some(endpoint.card().notify_qp_num));
        let log = a.log.lock().unwrap();
        log.iter().filter(|(.., asked)| matches!(asked, Asked::Init { .. })).count()
    };
    assert_eq!(count(&EndpointBuilder::new()), 5);
    assert_eq!(count(&EndpointBuilder::new().always_notify_qp(true)), 5);
}

#[test]
fn devices_alternate_and_then_their_ports() {
    let fabric = Fabric::threaded();
    let two_ports = DeviceConfig { ports: 2, ..DeviceConfig::named("a") };
    let a = Side::new(&fabric, 2, &two_ports);
    let b = Side::new(&fabric, 2, &DeviceConfig { ports: 3, ..two_ports });
    let mut here = a.build(&EndpointBuilder::new().rails(6));
    let mut there = b.build(&EndpointBuilder::new().rails(6));
    let place = |side: &Side, endpoint: &RecordedEndpoint| -> Vec<(u8, u8)> {
        let address = endpoint.address();
        let port = |rail: &polyrail::endpoint::RailAddress| {
            let device = side.domains[usize::from(rail.device)].domain.device();
            (1..=device.ports()).find(|port| device.gid(*port) == Some(rail.gid)).unwrap()
        };
        address.rails.iter().chain(&address.notify).map(|rail| (rail.device, port(rail))).collect()
    };
    assert_eq!(place(&a, &here), [(0, 1), (1, 1), (0, 2), (1, 2), (0, 1), (1, 1), (0, 1)]);
    assert_eq!(place(&b, &there), [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3), (0, 1)]);
    connect_endpoints(&mut here, &mut there).unwrap();
    write(&a, &mut here, &b, &mut there);
}

/// Moves a megabyte, which must not fail.
fn write(a: &Side, here: &mut RecordedEndpoint, b: &Side, there: &mut RecordedEndpoint) {
    let from = a.buffer();
    let to = b.buffer();
    from.fill(0, 1 << 20, 7).unwrap();
    let keys = from.toward(&to.remote()).unwrap();
    let local = from.local(0, 1 << 20).unwrap();
    here.post_send(&SendWr::write(1, local, to.addr(), &keys)).unwrap();
    let sent = loop {
        _ = there.poll(16);
        if let Some(sent) = here.poll(16).completions.pop() {
            break sent;
        }
    };
    assert_eq!(sent.status, WcStatus::SUCCESS);
    let mut bytes = vec![0; 1 << 20];
    to.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn a_driver_that_grants_more_than_is_asked_for_is_taken_as_it_is() {
    for rails in [1, 4] {
        let (a, b) = sides(1);
        let builder = EndpointBuilder::new().rails(rails);
        let mut here = a.build(&builder);
        let mut there = b.build(&builder);
        connect_endpoints(&mut here, &mut there).unwrap();
        write(&a, &mut here, &b, &mut there);
    }
}

#[test]
fn fewer_reads_than_asked_for_are_agreed_on() {
    let fabric = Fabric::threaded();
    let a = Side::new(&fabric, 1, &DeviceConfig::named("a"));
    let limits = DeviceLimits { max_qp_rd_atom: 4, ..DeviceLimits::default() };
    let b = Side::new(&fabric, 1, &DeviceConfig { limits, ..DeviceConfig::named("b") });
    let mut here = a.build(&EndpointBuilder::new());
    let mut there = b.build(&EndpointBuilder::new());
    connect_endpoints(&mut here, &mut there).unwrap();
    let depths = |side: &Side| match side.asked(0, 17)[..] {
        [.., Asked::Rtr { options: takes, .. }, Asked::Rts { options: sends, .. }] => {
            (takes.max_rd_atomic, sends.max_rd_atomic)
        }
        ref other => panic!("{other:?}"),
    };
    // What it takes, and what it sends.
    assert_eq!((depths(&a), depths(&b)), ((16, 4), (4, 4)));
}

#[test]
fn a_transition_that_is_refused_is_named() {
    let (mut a, b) = sides(2);
    // The second queue pair on its device: rail 2.
    a.domains[0].stubborn = Some(18);
    let mut here = a.build(&EndpointBuilder::new());
    let there = b.build(&EndpointBuilder::new());
    let error = here.connect(&there.address()).unwrap_err();
    assert!(matches!(error, ConnectError::Modify { rail: RailId::Data(2), .. }), "{error:?}");
    assert_eq!(Chain(&error).to_string(), "rail 2 (device a0): the device is gone");
}

#[test]
fn receives_are_posted_before_any_queue_pair_can_be_reached() {
    for (scheme, rails) in [(Scheme::Spray, 4), (Scheme::Dqplb, 4), (Scheme::Spray, 1)] {
        let (a, b) = sides(2);
        let builder = EndpointBuilder::new().scheme(scheme).rails(rails);
        let (near, far) = Link::pair().unwrap();
        thread::scope(|scope| {
            let a = &a;
            let b = &b;
            let other = scope.spawn(move || meet(b, &builder, far));
            meet(a, &builder, near);
            other.join().unwrap();
        });
        for side in [&a, &b] {
            assert!(receives_come_first(&side.log), "{scheme:?} {:?}", side.log);
        }
    }
}

/// Brings one side up with three notification receives.
fn meet(side: &Side, builder: &EndpointBuilder, mut control: Link) {
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    enum MeetError {
        Control(#[from] LinkError),
        Connect(#[from] ConnectError),
        Post(#[from] PostRecvError),
    }
    let mut endpoint = side.build(builder);
    let buffer = side.buffer();
    let endpoint_address = endpoint.address();
    let buffer_address = buffer.remote();
    let hello = Hello {
        reach: endpoint_address.into(),
        buffer: buffer_address,
        purpose: None,
        session: None,
    };
    control.send(&Message::Hello(hello)).unwrap();
    let peer = control.expect_hello().unwrap();
    let met: Result<(), MeetError> = bring_up(&mut endpoint, &mut control, &peer, |endpoint| {
        for wr_id in 0..3 {
            endpoint.post_recv(&RecvWr::notification(wr_id))?;
        }
        Ok(())
    });
    met.unwrap();
}
