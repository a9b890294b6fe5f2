//! A fork of a process with links and a progress thread: it sends nothing, joins no thread, and its
//! parent goes on.

mod fixture;
#[path = "../../process/tests/in_fork/mod.rs"]
mod in_fork;

use fixture::{ALL_ACCESS, LONG, ended, submit};
use in_fork::in_fork;
use polyrail::any::{AnyDomain, OpenOptions, open_devices};
use polyrail::backend::DeviceError;
use polyrail::chain::Chain;
use polyrail::endpoint::{EndpointBuilder, EndpointError, EndpointSet, connect_endpoints};
use polyrail::link::{
    Arrivals, Link, LinkError, Listener, Message, NoOutcome, NoPurpose, Reason, Timeouts,
};
use polyrail::memory::{OwnedBuffer, RegisteredBuffer};
use polyrail::nic::{DeviceConfig, Fabric, Fault, ProtectionDomain, When};
use polyrail::p2p::P2pBuilder;
use polyrail::progress::{ProgressThread, RequestError, ShutdownError, SubmitError};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail_process::Forked;
use std::error::Error;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const BYTES: usize = 4096;

#[test]
fn a_child_sends_nothing_and_joins_no_thread() {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
    let mut set = EndpointSet::build([(EndpointBuilder::new(), [&domain]); 2]).unwrap();
    let Some([near, far]) = set.get_disjoint_mut([0, 1]) else { panic!("two") };
    connect_endpoints(near, far).unwrap();
    let lone = EndpointBuilder::new().build(&[&domain]).unwrap();
    let buffer = RegisteredBuffer::new(BYTES, ALL_ACCESS, &[&domain]).unwrap();
    let keys = buffer.toward(&buffer.remote()).unwrap();
    let thread = ProgressThread::spawn(set).unwrap();
    let mut handles = [0, 1].map(|qp| thread.handle(qp).unwrap());
    let received = submit(|| handles[0].post_recv(&RecvWr::notification(1)));

    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let timeouts = Timeouts::default();
    let here = Link::<NoPurpose>::connect(&address, &timeouts).unwrap();
    let (there, _) = fixture::link::next_link::<NoPurpose>(&listener, &timeouts);
    // Its connection is there, and nobody has accepted it.
    let client = TcpStream::connect(&address).unwrap();

    let owner = std::process::id();
    let links = (here, there, listener);
    let mut all = Some((thread, handles, received, links, lone, buffer));
    in_fork(|| {
        let forked = Forked { owner, current: std::process::id() };
        let (thread, mut handles, mut received, links, mut lone, buffer) = all.take().unwrap();
        let (mut here, there, listener) = links;
        let refused = handles[0].post_recv(&RecvWr::notification(2)).map(drop);
        assert_eq!(refused, Err(SubmitError::Forked(forked)));
        assert_eq!(received.try_take(), Some(Err(RequestError::Forked(forked))));
        assert_eq!((thread.take_rail_event(), thread.handle(0).is_some()), (None, true));
        assert_eq!(thread.shutdown().map(drop), Err(ShutdownError::Forked(forked)));
        let sent = here.offer(&Message::Done(NoOutcome {}));
        assert!(matches!(sent, Err(LinkError::Forked(_))), "{sent:?}");
        assert!(matches!(here.try_recv(), Err(LinkError::Forked(_))));
        let accepted = listener.try_accept::<NoPurpose>(&timeouts).map(drop);
        assert!(matches!(accepted, Err(LinkError::Forked(_))), "{accepted:?}");
        let accepted = Arrivals::<NoPurpose>::default().step(&listener, &timeouts, |_, _| ());
        let accepted = accepted.map(drop);
        assert!(matches!(accepted, Err(LinkError::Forked(_))), "{accepted:?}");
        let refused = lone.post_recv(&RecvWr::notification(3)).unwrap_err();
        assert_eq!(lone.post_error(refused), EndpointError::Forked(forked));
        assert!(EndpointBuilder::new().build(&[&domain]).is_err());
        _ = lone.poll(16);
        drop((handles, received, here, there, listener, lone, buffer));
    });
    let (thread, mut handles, received, links, lone, buffer) = all.unwrap();
    let (mut here, mut there, listener) = links;
    let (_link, peer) = fixture::link::next_link::<NoPurpose>(&listener, &timeouts);
    assert_eq!(peer, client.local_addr().unwrap());
    here.send(&Message::Failed { reason: Reason::new("of the parent") }).unwrap();
    // Nothing else was sent, and the stream was not shut down.
    let heard = there.expect(Duration::from_secs(60));
    assert!(
        matches!(&heard, Err(LinkError::GaveUp { reason }) if reason.to_string() == "of the parent"),
        "{heard:?}"
    );
    let local = buffer.local(0, BYTES as u32).unwrap();
    let wr = SendWr::write_with_imm(7, local, buffer.addr(), 1, &keys);
    let sent = submit(|| handles[1].post_send(&wr));
    assert_eq!(ended(sent).unwrap().status, WcStatus::SUCCESS);
    assert_eq!(ended(received).unwrap().wr_id, 1);
    thread.shutdown().unwrap();
    drop(lone);
    a_child_does_not_wait_for_a_path_that_its_parent_searches_for(&domain);
}

fn a_child_does_not_wait_for_a_path_that_its_parent_searches_for(domain: &ProtectionDomain) {
    const SEARCH: Duration = Duration::from_secs(1);
    domain.device().inject(When::Now, Fault::SearchPaths(SEARCH));
    let mut ends = [(); 2].map(|()| EndpointBuilder::new().build(&[domain]).unwrap());
    let mut others = [(); 2].map(|()| P2pBuilder::new().build(&[domain]).unwrap());
    let (address, other_address) = (ends[1].address(), others[1].address());
    assert_eq!(ends[0].try_connect(&address), Ok(false));
    assert_eq!(others[0].try_connect(&other_address).map_err(drop), Ok(false));
    let mut all = Some((ends, others));
    in_fork(|| {
        let (mut ends, mut others) = all.take().unwrap();
        let forked = |error: &dyn Error| {
            let words = Chain(error).to_string();
            assert!(words.contains("is a fork of process"), "{words}");
        };
        forked(&ends[0].try_connect(&address).unwrap_err());
        forked(&ends[0].connect(&address).unwrap_err());
        forked(&others[0].try_connect(&other_address).unwrap_err());
        forked(&others[0].connect(&other_address).unwrap_err());
    });
    let ([mut near, far], others) = all.unwrap();
    near.connect(&address).unwrap();
    drop((far, others));
}

/// The fabric that devices of the software NIC share, if none is named, is one of the process.
#[test]
fn a_child_opens_devices_of_the_software_nic_by_their_names() {
    let names = ["software:near", "software:far"];
    let open = || open_devices(&names, &OpenOptions::default()).unwrap();
    let exchange = |opened: &[AnyDomain]| {
        let [near, far] = opened else { panic!("two") };
        let builder = EndpointBuilder::new();
        let mut sender = builder.build(&[near]).unwrap();
        let mut receiver = builder.build(&[far]).unwrap();
        connect_endpoints(&mut sender, &mut receiver).unwrap();
        let from = RegisteredBuffer::new(BYTES, ALL_ACCESS, &[near]).unwrap();
        let to = RegisteredBuffer::new(BYTES, ALL_ACCESS, &[far]).unwrap();
        from.write_at(0, b"a child's").unwrap();
        let keys = from.toward(&to.remote()).unwrap();
        let local = from.local(0, BYTES as u32).unwrap();
        receiver.post_recv(&RecvWr::notification(1)).unwrap();
        sender.post_send(&SendWr::write_with_imm(2, local, to.addr(), 3, &keys)).unwrap();
        let begin = Instant::now();
        while receiver.poll(16).completions.is_empty() {
            sender.poll(16).check().unwrap();
            assert!(begin.elapsed() < LONG);
        }
        let mut arrived = [0; 9];
        to.read_at(0, &mut arrived).unwrap();
        assert_eq!(&arrived, b"a child's");
    };
    exchange(&open());
    in_fork(|| exchange(&open()));
    exchange(&open());
}

#[test]
fn a_child_does_not_take_back_memory_of_its_parent() {
    let domains = open_devices(["software", "tcp:127.0.0.1"], &OpenOptions::default()).unwrap();
    for domain in &domains {
        let owned = || OwnedBuffer::new(vec![7; BYTES], ALL_ACCESS, &[domain]).unwrap();
        let mut both = Some((owned(), owned()));
        let owner = std::process::id();
        in_fork(|| {
            let (taken, dropped) = both.take().unwrap();
            let forked = Forked { owner, current: std::process::id() };
            assert_eq!(taken.into_inner(), Err(DeviceError::Forked(forked)));
            drop(dropped);
        });
        let (one, other) = both.unwrap();
        assert_eq!(one.into_inner().unwrap(), [7; BYTES]);
        assert_eq!(other.into_inner().unwrap(), [7; BYTES]);
    }
}
