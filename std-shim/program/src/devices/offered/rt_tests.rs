//! Servers with network interfaces, and peers of this process that connect to them over loopback.

use super::*;
use crate::devices::reach;
use crate::hosts::software_hosts;
use crate::perf::{Limit, Operation, PerfConfig, PerfProgress, measure_to};
use crate::serve::Server;
use crate::session::{PeerTimeouts, QualityOfService, RailRepair, ServerAddress};
use crate::transfer::{CopyOptions, send_to};
use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::interfaces::AddressRank;
use polyrail::virtual_qp::{RailEventKind, RailFailure, Scheme};
use std::fs;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for any machine.
const LONG: Duration = Duration::from_secs(600);

fn tcp(devices: &[&str]) -> DeviceChoice {
    let devices = devices.iter().map(|name| name.parse().unwrap()).collect();
    DeviceChoice { backend: Some(Backend::Tcp), devices, ..DeviceChoice::default() }
}

/// Runs a server with these devices for one peer. Returns what the peer returned, and the result of
/// the server.
fn serve<T: Send>(
    offered: Offered,
    options: &ServeOptions,
    visit: impl FnOnce(&ServerAddress) -> T + Send,
) -> (T, Result<Served, ServeError>) {
    let offered = Arc::new(offered);
    let server = Server::bind("127.0.0.1:0").unwrap();
    let server = server.with_offers(Arc::<Offered>::clone(&offered));
    let address = server.local_addr().unwrap().to_string().into();
    let served = Mutex::new(None);
    let attend = |visitor: Visitor| {
        let progress = CopyProgress::default();
        let result = offered.serve(visitor, options, &progress, || ());
        *served.lock().unwrap() = Some(result);
        ControlFlow::Break(())
    };
    let visited = thread::scope(|scope| {
        let visited = scope.spawn(|| visit(&address));
        let stray = |_, error| panic!("a stray peer: {error}");
        server.run(options, &AtomicBool::new(false), attend, stray).unwrap();
        visited.join().unwrap()
    });
    (visited, served.into_inner().unwrap().unwrap())
}

fn reached(server: &ServerAddress, choice: &DeviceChoice) -> Vec<ProtectionDomain> {
    let timeouts = PeerTimeouts::default();
    let not_used = |device: &str, why: &dyn std::error::Error| panic!("{device}: {why}");
    let reached = reach(server, choice, &timeouts, not_used).unwrap();
    assert!(reached.why_tcp.is_none());
    match reached.devices {
        OpenedDevices::Tcp(domains) => domains,
        #[cfg(feature = "verbs")]
        OpenedDevices::Verbs(_) => panic!("{:?}", reached.devices),
    }
}

fn send<D: Domain + Sync>(
    source: &Path,
    server: &ServerAddress,
    domains: &[D],
    options: &CopyOptions,
    progress: &CopyProgress,
) -> Result<(), String> {
    let sent = send_to(source, None, server.clone(), domains, options, progress, || ());
    sent.map(|_| ()).map_err(|error| Chain(&error).to_string())
}

fn chain(served: Result<Served, ServeError>) -> String {
    Chain(&served.unwrap_err()).to_string()
}

/// Returns a directory with a source of some bytes, and the path of its copy.
fn place() -> (tempfile::TempDir, std::path::PathBuf, ServeOptions) {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::write(&source, (0..3_000_000_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
    let options = ServeOptions::new(directory.path().join("copy"));
    (directory, source, options)
}

#[test]
fn a_peer_of_another_backend_is_refused_with_words() {
    let (_directory, source, options) = place();
    let interfaces = Offered::open(&tcp(&["tcp:lo"]), |_, _| ()).unwrap();
    let (sent, served) = serve(interfaces, &options, |server| {
        // Like RDMA devices, the software NIC has no connections over TCP.
        let (here, _) = software_hosts(1).unwrap();
        let (options, progress) = (CopyOptions::default(), CopyProgress::default());
        send(&source, server, here.all_domains(), &options, &progress)
    });
    let words = "the peer uses RDMA devices, but this server offers only tcp:lo: start both sides with \
                 the same --backend";
    assert_eq!(chain(served), words);
    assert!(sent.unwrap_err().ends_with(words));

    let none = Offered { verbs: None, tcp: None, why_no_verbs: None, not_used: unreported };
    let (sent, served) = serve(none, &options, |server| {
        let (options, progress) = (CopyOptions::default(), CopyProgress::default());
        send(&source, server, &reached(server, &tcp(&["tcp:lo"])), &options, &progress)
    });
    assert!(chain(served).starts_with("the peer uses TCP devices, but this server offers only"));
    assert!(sent.unwrap_err().contains("the peer uses TCP devices"));
}

#[test]
fn a_server_offers_what_its_options_say() {
    let far = "192.0.2.77:5".parse().unwrap();
    let near = "127.0.0.1:5".parse().unwrap();
    let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNet>>();
    let named = Offered::open(&tcp(&["tcp:lo"]), |_, _| ()).unwrap();
    assert_eq!(named.names(), ["tcp:lo"]);
    let offer = Offer { verbs: false, tcp: vec![nets(&["127.0.0.1/8"])] };
    assert_eq!(named.offer(far), offer);
    // Of the network of an address for peers, nothing is known.
    let behind_nat = Offered::open(&tcp(&["tcp:lo@192.0.2.1:7500"]), |_, _| ()).unwrap();
    assert_eq!(behind_nat.offer(far).tcp, [nets(&["192.0.2.1/32"])]);

    let all = Offered::open(&tcp(&[]), |_, _| ()).unwrap();
    assert!(all.names().contains(&"tcp:lo".to_owned()), "{:?}", all.names());
    let is_loopback = |net: &IpNet| net.ip().is_loopback();
    assert!(all.offer(near).tcp.iter().flatten().any(is_loopback));
    assert!(!all.offer(far).tcp.iter().flatten().any(is_loopback));
}

/// The address of every host's loopback interface.
fn loopback() -> LocalAddress {
    let (net, rank) = ("127.0.0.1/8".parse().unwrap(), AddressRank::Loopback);
    LocalAddress { interface: "lo".into(), net, rank, is_loopback: true }
}

#[test]
fn a_host_with_many_addresses_offers_what_fits() {
    let own = |interface: usize, last: u8| LocalAddress {
        interface: format!("eth{interface}"),
        net: IpNet::new([10, 0, interface as u8, last].into(), 24).unwrap(),
        rank: AddressRank::Nic,
        is_loopback: false,
    };
    let mut usable: Vec<_> = (1..9).flat_map(|last| (0..99).map(move |i| own(i, last))).collect();
    let lo = loopback();
    usable.push(lo.clone());
    let fitting = fitting(usable);
    let interfaces = MAX_OFFERED_INTERFACES - 1;
    assert_eq!(fitting.len(), interfaces * MAX_OFFERED_ADDRESSES + 1);
    assert_eq!((&fitting[0], fitting.last()), (&own(0, 1), Some(&lo)));
    assert!(!fitting.contains(&own(interfaces, 1)) && !fitting.contains(&own(0, 5)));
}

#[test]
fn hosts_without_common_devices_say_what_is_missing() {
    /// A server that offers nothing, or only RDMA devices.
    #[derive(Debug)]
    struct Only(Offer);

    impl Offers for Only {
        fn offer(&self, _: SocketAddr) -> Offer {
            self.0.clone()
        }
    }

    let lo = vec!["192.0.2.77/32".parse().unwrap()];
    for (verbs, tcp, words) in [
        (true, vec![], "the server offers no TCP devices"),
        (false, vec![], "the server offers no TCP devices"),
        // A peer on this host uses loopback, whatever else is offered.
        (false, vec![lo], ""),
    ] {
        let server = Server::bind("127.0.0.1:0").unwrap();
        let server = server.with_offers(Arc::new(Only(Offer { verbs, tcp })));
        let address: ServerAddress = server.local_addr().unwrap().to_string().into();
        let over = AtomicBool::new(false);
        let reached = thread::scope(|scope| {
            let options = ServeOptions::default();
            let over = &over;
            scope.spawn(move || {
                let attend = |_| ControlFlow::Break(());
                server.run(&options, over, attend, |_, error| panic!("{error}")).unwrap();
            });
            let choice = DeviceChoice { backend: Some(Backend::Tcp), ..DeviceChoice::default() };
            let reached = reach(&address, &choice, &PeerTimeouts::default(), |_, _| ());
            over.store(true, Ordering::Relaxed);
            reached
        });
        match reached {
            Ok(reached) => assert_eq!((reached.devices.names(), words), (vec!["tcp:lo"], "")),
            Err(error) => assert_eq!(error.to_string(), words),
        }
    }
}

/// The peer has two devices, the server one.
#[test]
fn sides_may_have_different_numbers_of_interfaces() {
    let (_directory, source, options) = place();
    let interfaces = Offered::open(&tcp(&["tcp:lo"]), |_, _| ()).unwrap();
    let (sent, served) = serve(interfaces, &options, |server| {
        let domains = reached(server, &tcp(&["tcp:lo", "tcp:127.0.0.2"]));
        let options = CopyOptions { scheme: Scheme::Dqplb, ..CopyOptions::default() };
        send(&source, server, &domains, &options, &CopyProgress::default())
    });
    sent.unwrap();
    let Served::Copy(received) = served.unwrap() else { panic!() };
    assert_eq!((received.shape.rails, received.shape.devices), (4, 1));
    assert!(fs::read(received.path).unwrap() == fs::read(source).unwrap());
}

#[test]
fn messages_are_measured_over_interfaces_of_both_sides() {
    let interfaces = Offered::open(&tcp(&["tcp:lo", "tcp:127.0.0.2"]), |_, _| ()).unwrap();
    let (measured, served) = serve(interfaces, &ServeOptions::default(), |server| {
        let domains = reached(server, &tcp(&["tcp:127.0.0.2", "tcp:lo"]));
        let config = PerfConfig {
            operation: Operation::P2p,
            devices: 2,
            message_size: 200_000,
            limit: Limit::Count(50),
            ..PerfConfig::default()
        };
        measure_to(&config, server.clone(), &domains, &PerfProgress::default())
    });
    measured.unwrap();
    let Served::Perf(measured) = served.unwrap() else { panic!() };
    assert_eq!((measured.operation, measured.shape.devices), (Operation::P2p, 2));
}

/// One of two links goes down while a file is copied, and returns.
#[test]
fn rails_of_a_link_that_goes_down_are_rerouted_and_repaired() {
    let (_directory, source, serve_options) = place();
    let interfaces = Offered::open(&tcp(&["tcp:lo", "tcp:127.0.0.2"]), |_, _| ()).unwrap();
    let Some(Interfaces::Named(named)) = &interfaces.tcp else { panic!() };
    let link = named[1].domain.device().clone();
    let rail_repair = RailRepair {
        rail_failure: RailFailure::Reroute,
        stall_timeout: Duration::from_secs(1),
        ..RailRepair::default()
    };
    let serve_options = ServeOptions { rail_repair, ..serve_options };
    let (sent, served) = serve(interfaces, &serve_options, |server| {
        let domains = reached(server, &tcp(&["tcp:lo", "tcp:127.0.0.2"]));
        let options = CopyOptions {
            message_size: 1000,
            window: 2,
            rail_repair,
            quality: QualityOfService::default(),
            ..CopyOptions::default()
        };
        let progress = CopyProgress::default();
        let begin = Instant::now();
        let mut events = Vec::new();
        let mut watched = || {
            let has = |events: &[RailEventKind], returned| {
                events.iter().any(|kind| matches!(kind, RailEventKind::Returned) == returned)
            };
            events.extend(progress.rails.take().into_iter().map(|item| item.event.event.kind));
            // The far end's link: down until a rail has failed, and then up.
            link.set_link(has(&events, false) || progress.written.load(Ordering::Relaxed) == 0);
            assert!(begin.elapsed() < LONG);
        };
        let sent = thread::scope(|scope| {
            let sending = scope.spawn(|| send(&source, server, &domains, &options, &progress));
            while !sending.is_finished() {
                watched();
                thread::sleep(Duration::from_millis(1));
            }
            sending.join().unwrap()
        });
        watched();
        assert!(
            events.iter().any(|kind| matches!(kind, RailEventKind::Failed { .. })),
            "{events:?}"
        );
        sent
    });
    sent.unwrap();
    let Served::Copy(received) = served.unwrap() else { panic!() };
    assert!(fs::read(received.path).unwrap() == fs::read(source).unwrap());
}

/// The reports of `a_device_that_a_server_cannot_open_later_is_reported_once`.
static REPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn report(device: &str, why: &dyn Error) {
    REPORTS.lock().unwrap().push(format!("{device}: {}", Chain(why)));
}

#[test]
fn a_device_that_a_server_cannot_open_later_is_reported_once() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let options = DeviceOptions { port, ..DeviceOptions::default() };
    let lo = loopback();
    let mut found = Found::default();
    let mut present = |usable| found.present(usable, &options, report).len();
    let lines = || std::mem::take(&mut *REPORTS.lock().unwrap());
    assert_eq!((present(Ok(vec![lo.clone()])), present(Ok(vec![lo.clone()]))), (0, 0));
    let refused = lines();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].starts_with("tcp:127.0.0.1: ") && refused[0].contains("cannot listen"));
    drop(taken);
    assert_eq!(present(Ok(vec![lo.clone()])), 1);
    // A process without a free descriptor lists no addresses: what is open stays.
    let no_list = || Err(InterfaceError::List(std::io::Error::from_raw_os_error(24)));
    assert_eq!((present(no_list()), present(no_list())), (1, 1));
    let unlisted = lines();
    assert_eq!(unlisted.len(), 1, "{unlisted:?}");
    assert!(unlisted[0].starts_with("new network interfaces: cannot list"), "{unlisted:?}");
    assert_eq!((present(Ok(Vec::new())), lines().len()), (0, 0));
}

/// The reports of `devices_that_are_not_in_pairs_are_used_in_order_which_is_reported_once`.
static UNPAIRED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn report_unpaired(pairs: &str, why: &dyn Error) {
    UNPAIRED.lock().unwrap().push(format!("{pairs}: {}", Chain(why)));
}

/// RDMA devices are paired by the same function, which asks only for their addresses.
#[test]
fn devices_that_are_not_in_pairs_are_used_in_order_which_is_reported_once() {
    let open = |names: &[&str]| open_devices(names, &DeviceOptions::default()).unwrap();
    let own = open(&["::1", "127.0.0.1"]);
    let order = |theirs: &[&str]| {
        let builder = EndpointBuilder::new().rails(theirs.len());
        let peer: Endpoint<_, _> = builder.build(&open(theirs)).unwrap();
        let address = "192.0.2.1:5".parse().unwrap();
        let paired = paired(&own, (address, &peer.address().into()), report_unpaired);
        let names = paired.iter().map(|domain| domain.device().name().to_owned());
        (names.collect::<Vec<_>>(), std::mem::take(&mut *UNPAIRED.lock().unwrap()))
    };
    let (v6, v4) = ("tcp:::1".to_owned(), "tcp:127.0.0.1".to_owned());
    assert_eq!(order(&["127.0.0.2", "::1"]), (vec![v4.clone(), v6.clone()], vec![]));
    // Rail 1 would use ::1.
    let (names, reports) = order(&["127.0.0.2", "127.0.0.3", "::1"]);
    assert_eq!((names, reports.len()), (vec![v6, v4], 1), "{reports:?}");
    let words = "pairs with the devices of 192.0.2.1:5 (devices are used in their order): rails use \
                 devices in turn, but the devices here that reach the peer's are, in this order: \
                 tcp:127.0.0.1 at ::ffff:127.0.0.1, tcp:127.0.0.1";
    assert!(reports[0].starts_with(words), "{reports:?}");
}

fn unreported(device: &str, why: &dyn Error) {
    panic!("{device}: {}", Chain(why));
}

/// A device is an address, whatever interface has it, and its port is free when it is gone.
#[test]
fn a_server_keeps_the_device_of_an_address_as_long_as_it_is_there_or_a_peer_uses_it() {
    let free = TcpListener::bind("127.0.0.9:0").unwrap().local_addr().unwrap().port();
    let options = DeviceOptions { port: free, ..DeviceOptions::default() };
    let own = |interface: &str, ip: &str| LocalAddress {
        interface: interface.into(),
        net: ip.parse().unwrap(),
        rank: AddressRank::Nic,
        is_loopback: true,
    };
    let mut found = Found::default();
    let before = found.present(Ok(vec![own("lo", "127.0.0.9/8")]), &options, unreported);
    assert_eq!(before.len(), 1);
    let renamed = vec![own("bond0", "127.0.0.9/8"), own("br0", "127.0.0.9/8")];
    let after = found.present(Ok(renamed), &options, unreported);
    let names: Vec<_> = after.iter().map(|open| open.own.interface.as_str()).collect();
    assert_eq!(names, ["bond0"]);
    assert_eq!(after[0].domain.device().id(), before[0].domain.device().id());
    drop(after);

    // A peer still uses the device when its address goes.
    let mut present = |usable| found.present(Ok(usable), &options, unreported);
    assert!(present(vec![]).is_empty());
    let back = present(vec![own("lo", "127.0.0.9/8")]);
    assert_eq!(back[0].domain.device().id(), before[0].domain.device().id());
    drop((before, back));
    assert!(present(vec![]).is_empty());
    assert!(found.opened.is_empty());
    TcpListener::bind(("127.0.0.9", free)).unwrap();
}
