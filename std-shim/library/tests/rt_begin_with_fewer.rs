//! Rails that cannot be connected when an endpoint is brought up: it begins with fewer, or the
//! attempt is repeated.

mod fixture;

use fixture::pair::{BYTES, Host};
use fixture::{ALL_ACCESS, LONG, impatient};
use polyrail::endpoint::{ConnectError, EndpointBuilder, EndpointError, connect_endpoints};
use polyrail::heal::{Detected, Healing};
use polyrail::link::{Hello, Link, LinkError, Message, bring_up};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{Device, Fabric, Fault, ProtectionDomain, When};
use polyrail::p2p::{
    self, CallError, End, Failure, P2pBuilder, P2pConnectError, P2pEndpoint, RecvBuffer,
};
use polyrail::verbs::{RecvWr, WcStatus};
use polyrail::virtual_qp::{QpState, RailFailure, RailState, Scheme};
use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

/// For as long as a test runs.
const ALWAYS: u32 = u32::MAX;

const HEALING: Healing = Healing {
    first_interval: Duration::from_millis(5),
    longest_interval: Duration::from_millis(20),
    fallback_after: Duration::from_millis(20),
    home_after: Some(Duration::from_millis(20)),
    stall_timeout: Some(LONG),
    rail_timeout: Some(LONG),
    fence_timeout: Some(LONG),
};

fn builder(scheme: Scheme) -> EndpointBuilder {
    EndpointBuilder::new()
        .scheme(scheme)
        .max_msg_size(4096)
        .rail_failure(RailFailure::Reroute)
        .healing(HEALING)
        .connect_options(impatient())
}

fn hosts(builder: &EndpointBuilder) -> [Host; 2] {
    let fabric = Fabric::threaded();
    ["near", "far"].map(|name| Host::new(&fabric, name, 4, builder))
}

/// The next queue pairs of these devices are not connected.
fn refuse(devices: &[Device], transitions: u32) {
    devices.iter().for_each(|device| device.inject(When::Now, Fault::RefuseRtr { transitions }));
}

fn connect([near, far]: &mut [Host; 2]) -> Result<(), ConnectError> {
    connect_endpoints(&mut near.endpoint, &mut far.endpoint)
}

fn is_ready([near, far]: &[Host; 2]) -> bool {
    near.endpoint.state() == QpState::Ready && far.endpoint.state() == QpState::Ready
}

/// Polls until `is_there`, and returns the statuses that the near end reports.
#[track_caller]
fn poll_until(hosts: &mut [Host; 2], is_there: impl Fn(&[Host; 2], usize) -> bool) -> usize {
    let begin = Instant::now();
    let mut done = 0;
    while !is_there(hosts, done) {
        for host in &mut *hosts {
            for wc in host.endpoint.poll(16).completions {
                assert!(wc.status.is_success(), "{wc:?}: {}", host.endpoint.explain(wc.status));
                done += 1;
            }
        }
        assert!(begin.elapsed() < LONG, "{done} done: {}", report(hosts));
    }
    done
}

fn report(hosts: &[Host; 2]) -> String {
    let reports = hosts.iter().flat_map(|host| host.endpoint.rail_reports());
    reports.map(|report| format!("{report}\n")).collect()
}

/// A notification of the far end.
fn notify([near, far]: &mut [Host; 2], wr_id: u64) {
    far.endpoint.post_recv(&RecvWr::notification(wr_id)).unwrap();
    near.notify(far, wr_id, 64 << 10, 7);
}

#[test]
fn an_endpoint_begins_with_the_rails_that_can_be_connected() {
    for (scheme, at_near, device) in SCHEMES
        .into_iter()
        .flat_map(|scheme| [(scheme, true, 0), (scheme, false, 0), (scheme, true, 2)])
    {
        let mut hosts = hosts(&builder(scheme));
        let link = hosts[usize::from(!at_near)].devices[device].clone();
        refuse(std::slice::from_ref(&link), ALWAYS);
        connect(&mut hosts).unwrap();
        let end = &mut hosts[usize::from(!at_near)].endpoint;
        assert_eq!(end.state(), QpState::Degraded);
        let event = end.take_rail_event().unwrap();
        assert_eq!(event.detected, Some(Detected::NotConnected));
        let told = "failed: its queue pair could not be connected";
        assert!(event.to_string().ends_with(told), "{event}");
        notify(&mut hosts, 1);
        assert_eq!(poll_until(&mut hosts, |_, done| done == 2), 2);
        refuse(&[link], 0);
        poll_until(&mut hosts, |hosts, _| is_ready(hosts));
        notify(&mut hosts, 2);
        poll_until(&mut hosts, |_, done| done == 2);
    }
}

#[test]
fn an_endpoint_that_needs_no_rail_begins_with_none() {
    for scheme in SCHEMES {
        let mut hosts = hosts(&builder(scheme).min_rails(0));
        for host in &hosts {
            // Some attempts of repair fail, too.
            refuse(&host.devices, 4);
        }
        connect(&mut hosts).unwrap();
        assert!(hosts.iter().all(|host| host.endpoint.state() == QpState::Degraded));
        notify(&mut hosts, 1);
        poll_until(&mut hosts, |hosts, done| done == 2 && is_ready(hosts));
    }
}

/// Each end begins with two rails, and no rail is left.
#[test]
fn ends_that_begin_without_different_rails_fail_unless_they_need_none() {
    for scheme in SCHEMES {
        for min_rails in [0, 1, 2] {
            let mut hosts = hosts(&builder(scheme).min_rails(min_rails));
            refuse(&hosts[0].devices[..2], ALWAYS);
            refuse(&hosts[1].devices[2..], ALWAYS);
            connect(&mut hosts).unwrap();
            if min_rails == 0 {
                notify(&mut hosts, 1);
                hosts.iter().for_each(|host| refuse(&host.devices, 0));
                poll_until(&mut hosts, |hosts, done| done == 2 && is_ready(hosts));
                continue;
            }
            let has_failed = |host: &Host| host.endpoint.state() == QpState::Error;
            poll_until(&mut hosts, |hosts, _| hosts.iter().all(has_failed));
        }
    }
}

#[test]
fn requests_do_not_wait_without_end_for_rails_that_never_come_up() {
    let limit = Duration::from_millis(200);
    let healing = Healing { rail_timeout: Some(limit), ..HEALING };
    for scheme in SCHEMES {
        let mut hosts = hosts(&builder(scheme).min_rails(0).healing(healing));
        refuse(&hosts[0].devices, ALWAYS);
        connect(&mut hosts).unwrap();
        let begin = Instant::now();
        notify(&mut hosts, 1);
        let [near, far] = &mut hosts;
        while near.endpoint.poll(16).completions.is_empty() {
            _ = far.endpoint.poll(16);
            assert!(begin.elapsed() < LONG);
        }
        assert!(begin.elapsed() >= limit);
        let error = near.endpoint.explain(WcStatus::WR_FLUSH_ERR);
        assert!(matches!(error, EndpointError::NotHealed { .. }), "{error}");
    }
}

/// With too few rails, or where none can take over, the call fails. It can be repeated.
#[test]
fn a_call_that_may_succeed_later_can_be_repeated() {
    let fatal = builder(Scheme::Spray).rail_failure(RailFailure::Fatal);
    for (builder, refused, fails) in [
        (builder(Scheme::Spray), 4, 1),
        (builder(Scheme::Dqplb), 4, 1),
        // The first rail's two queue pairs are on the first device.
        (fatal, 1, 1),
        (fatal, 3, 3),
        (fatal.rails(1), 1, 1),
    ] {
        let [mut near, mut far] = hosts(&builder);
        refuse(&near.devices[..refused], 1);
        let (there, here) = (far.endpoint.address(), near.endpoint.address());
        let receives = Cell::new(0);
        let mut connect = || {
            near.endpoint.connect_after(&there, |endpoint| {
                receives.set(receives.get() + 1);
                endpoint.post_recv(&RecvWr::notification(9)).unwrap();
                Ok::<(), ConnectError>(())
            })
        };
        for _ in 0..fails {
            let error = connect().unwrap_err();
            assert!(error.may_pass(), "{error}");
            assert!(matches!(error, ConnectError::Modify { .. }), "{error}");
        }
        connect().unwrap();
        assert_eq!(receives.get(), 1);
        far.endpoint.connect(&here).unwrap();
        near.notify(&far, 1, 64 << 10, 3);
        far.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
        poll_until(&mut [near, far], |_, done| done == 2);
    }
}

/// If one refusal may pass and another does not, the call fails with the one that does not.
#[test]
fn a_device_that_is_gone_is_not_waited_for() {
    for down in [0..0, 0..1, 2..4] {
        let [mut near, far] = hosts(&builder(Scheme::Spray).min_rails(0));
        refuse(&near.devices[down.clone()], ALWAYS);
        near.devices[1].inject(When::Now, Fault::DeviceGone);
        let error = near.endpoint.connect(&far.endpoint.address()).unwrap_err();
        assert!(!error.may_pass(), "{down:?}: {error}");
        let mut pair = Messages::new(&messages().min_rails(0));
        refuse(&pair.devices[0][..down.len().min(1)], ALWAYS);
        pair.devices[0][1].inject(When::Now, Fault::DeviceGone);
        let error = pair.connect().unwrap_err();
        assert!(!error.may_pass(), "{down:?}: {error}");
    }
}

/// It has no keys for the rails of the device, and needs none.
#[test]
fn memory_that_is_registered_after_a_device_is_gone_serves_the_rails_that_are_left() {
    for (scheme, host, device) in
        SCHEMES.into_iter().flat_map(|scheme| [(scheme, 0, 1), (scheme, 1, 2), (scheme, 1, 0)])
    {
        let mut hosts = hosts(&builder(scheme));
        connect(&mut hosts).unwrap();
        notify(&mut hosts, 1);
        assert_eq!(poll_until(&mut hosts, |_, done| done == 2), 2);
        hosts[host].devices[device].inject(When::Now, Fault::DeviceGone);
        for host in &mut hosts {
            let domains: Vec<&ProtectionDomain> = host.domains.iter().collect();
            host.buffer = RegisteredBuffer::new(BYTES, ALL_ACCESS, &domains).unwrap();
        }
        let is_noticed = |host: &Host| host.endpoint.state() == QpState::Degraded;
        poll_until(&mut hosts, |hosts, _| hosts.iter().all(is_noticed));
        for (wr_id, byte) in [(2, 0x5a), (3, 0xa5)] {
            hosts[0].buffer.fill(0, BYTES, byte).unwrap();
            notify(&mut hosts, wr_id);
            assert_eq!(poll_until(&mut hosts, |_, done| done == 2), 2);
            let [near, far] = hosts.each_ref().map(|host| host.bytes()[..64 << 10].to_vec());
            assert!(near == far, "{scheme:?}: device {device} of host {host}");
            // Rail 0 moves to another device; other rails stay out.
            match device {
                0 => _ = poll_until(&mut hosts, |hosts, _| is_ready(hosts)),
                _ => assert!(hosts.iter().all(is_noticed)),
            }
        }
    }
}

/// The notify queue pair of DQPLB, which is never used, is on the device that is refused.
#[test]
fn a_queue_pair_that_is_never_used_is_not_waited_for() {
    let mut hosts = hosts(&builder(Scheme::Dqplb).always_notify_qp(true));
    for device in [0, 2] {
        refuse(&hosts[0].devices[device..=device], ALWAYS);
    }
    connect(&mut hosts).unwrap();
    assert_eq!(hosts[0].endpoint.state(), QpState::Degraded);
    notify(&mut hosts, 1);
    assert_eq!(poll_until(&mut hosts, |_, done| done == 2), 2);
    refuse(&hosts[0].devices, 0);
    poll_until(&mut hosts, |hosts, _| is_ready(hosts));
}

/// A port goes down and comes up, and the repair step runs after each, before the peer is known or
/// afterwards.
#[test]
fn a_port_that_goes_down_before_the_peer_is_known_is_repaired() {
    for before in [1, 2] {
        for scheme in SCHEMES {
            let mut hosts = hosts(&builder(scheme));
            let device = hosts[0].devices[1].clone();
            change_link(&device, before, || _ = hosts[0].endpoint.poll(1));
            connect(&mut hosts).unwrap();
            device.inject(When::Now, Fault::LinkUp);
            poll_until(&mut hosts, |hosts, _| is_ready(hosts));
            notify(&mut hosts, 1);
            poll_until(&mut hosts, |_, done| done == 2);
        }
        let mut pair = Messages::new(&messages());
        let device = pair.devices[0][1].clone();
        change_link(&device, before, || pair.poll());
        pair.connect().unwrap();
        device.inject(When::Now, Fault::LinkUp);
        pair.poll_until_whole();
        pair.exchange().unwrap();
    }
}

/// Takes a link down, and if there are two changes up again. Polls after each for so long that
/// events of devices are read.
fn change_link(device: &Device, changes: usize, mut poll: impl FnMut()) {
    for fault in [Fault::LinkDown, Fault::LinkUp].into_iter().take(changes) {
        device.inject(When::Now, fault);
        let begin = Instant::now();
        for polls in 0.. {
            poll();
            if polls > 100 && begin.elapsed() > Duration::from_millis(20) {
                break;
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum MeetError {
    #[error(transparent)]
    Control(#[from] LinkError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// Brings up an endpoint over a link.
fn meet(host: &mut Host, mut control: Link) -> Result<(), MeetError> {
    let reach = host.endpoint.address().into();
    let buffer = host.buffer.remote();
    control.send(&Message::Hello(Hello { reach, buffer, purpose: None, session: None }))?;
    let peer = control.expect_hello()?;
    bring_up(&mut host.endpoint, &mut control, &peer, |_| Ok(()))
}

#[test]
fn two_sides_come_up_although_a_path_is_found_late() {
    for builder in [
        EndpointBuilder::new().rails(1),
        EndpointBuilder::new().rails(4),
        builder(Scheme::Spray),
        builder(Scheme::Dqplb).min_rails(4),
    ] {
        let mut hosts = hosts(&builder);
        refuse(&hosts[0].devices, 3);
        refuse(&hosts[1].devices, 2);
        let (here, there) = Link::pair().unwrap();
        let [near, far] = &mut hosts;
        thread::scope(|scope| {
            let met = scope.spawn(|| meet(far, there));
            meet(near, here).unwrap();
            met.join().unwrap().unwrap();
        });
        assert!(is_ready(&hosts));
        notify(&mut hosts, 1);
        poll_until(&mut hosts, |_, done| done == 2);
    }
}

/// Two ends of messages, of two rails on two devices.
struct Messages {
    devices: [Vec<Device>; 2],
    buffers: [RegisteredBuffer; 2],
    ends: [P2pEndpoint; 2],
}

impl Messages {
    fn new(builder: &P2pBuilder) -> Self {
        let fabric = Fabric::threaded();
        let hosts = ["near", "far"].map(|name| fixture::Host::new(&fabric, name, 2, 1 << 16));
        let ends = hosts.each_ref().map(|host| builder.build(&host.all()).unwrap());
        let all = |host: &fixture::Host| {
            let domains: Vec<&ProtectionDomain> = host.all();
            RegisteredBuffer::new(1 << 16, ALL_ACCESS, &domains).unwrap()
        };
        let buffers = hosts.each_ref().map(all);
        Self { devices: hosts.map(|host| host.devices), buffers, ends }
    }

    fn connect(&mut self) -> Result<(), P2pConnectError> {
        let [near, far] = &mut self.ends;
        p2p::connect_endpoints(near, far)
    }

    fn poll(&mut self) {
        for end in &mut self.ends {
            end.poll(16).check().unwrap();
        }
    }

    fn states(&self) -> Vec<RailState> {
        let places = [End::Sender, End::Receiver].map(|end| [0, 1, 2, 3].map(|place| (end, place)));
        let state = |(end, place)| move |at: &P2pEndpoint| at.queue_pair_state(end, place);
        let of = |at| places.iter().flatten().filter_map(move |place| state(*place)(at));
        self.ends.iter().flat_map(of).map(|(state, _)| state).collect()
    }

    fn poll_until_whole(&mut self) {
        let begin = Instant::now();
        while self.states().iter().any(|state| *state != RailState::InService) {
            self.poll();
            assert!(begin.elapsed() < LONG, "{:?}", self.states());
        }
    }

    /// A message from the near end to the far end; or the failure of the near end.
    fn exchange(&mut self) -> Result<(), Failure> {
        let keys = self.buffers.each_ref().map(|buffer| buffer.own_keys());
        let locals = self.buffers.each_ref().map(|buffer| buffer.local(0, 1 << 16).unwrap());
        let offer = [RecvBuffer { local: locals[1], tag: 5, keys: &keys[1] }];
        let begin = Instant::now();
        let receive = loop {
            match self.ends[1].irecv(&offer) {
                Err(error) if error.is_not_now() => self.poll(),
                offered => break offered.unwrap(),
            }
            assert!(begin.elapsed() < LONG, "{:?}", self.states());
        };
        let mut send = None;
        loop {
            self.poll();
            assert!(begin.elapsed() < LONG, "{:?}", self.states());
            if let Some(failure) = self.ends[1].receiver().and_then(|receiver| receiver.failure()) {
                return Err(*failure);
            }
            match send {
                None => match self.ends[0].isend(locals[0], 5, &keys[0]) {
                    Err(error) if error.is_not_now() => {}
                    Err(CallError::Failed(failure)) => return Err(failure),
                    sent => send = Some(sent.unwrap()),
                },
                Some(handle) if self.ends[0].test_send(handle).unwrap() => break,
                Some(_) => {}
            }
        }
        while self.ends[1].test_recv(receive).unwrap().is_none() {
            self.poll();
            assert!(begin.elapsed() < LONG, "{:?}", self.states());
        }
        Ok(())
    }
}

fn messages() -> P2pBuilder {
    P2pBuilder::new()
        .rails(2)
        .split_threshold(1024)
        .rail_failure(RailFailure::Reroute)
        .healing(HEALING)
        .connect_options(impatient())
}

#[test]
fn messages_begin_with_the_rails_that_can_be_connected() {
    for at in [0, 1] {
        let mut pair = Messages::new(&messages());
        refuse(&pair.devices[at][1..], ALWAYS);
        pair.connect().unwrap();
        (0..3).for_each(|_| pair.exchange().unwrap());
        refuse(&pair.devices[at][1..], 0);
        pair.poll_until_whole();
        pair.exchange().unwrap();
    }
}

#[test]
fn messages_that_need_no_rail_begin_with_none() {
    let mut pair = Messages::new(&messages().min_rails(0));
    pair.devices.iter().for_each(|devices| refuse(devices, 4));
    pair.connect().unwrap();
    pair.exchange().unwrap();
    pair.poll_until_whole();
}

#[test]
fn messages_that_need_a_rail_can_be_connected_again() {
    let fatal = messages().rail_failure(RailFailure::Fatal);
    for (builder, fails) in [(messages(), 1), (fatal, 2)] {
        let mut pair = Messages::new(&builder);
        refuse(&pair.devices[0], 1);
        for _ in 0..fails {
            let error = pair.connect().unwrap_err();
            assert!(error.may_pass(), "{error}");
        }
        pair.connect().unwrap();
        pair.exchange().unwrap();
    }
}

/// A rail counts once, however many queue pairs it has.
#[test]
fn messages_that_need_two_rails_do_not_begin_with_two_queue_pairs_of_one() {
    let mut pair = Messages::new(&messages().queue_pairs_per_rail(2).min_rails(2));
    refuse(&pair.devices[0][1..], 1);
    let error = pair.connect().unwrap_err();
    assert!(error.may_pass(), "{error}");
    pair.connect().unwrap();
    pair.exchange().unwrap();
}
