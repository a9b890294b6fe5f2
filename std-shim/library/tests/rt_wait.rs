//! Waiting for completions instead of polling for them, on the software NIC.

mod fixture;

use fixture::pair::BYTES;
use fixture::{Host, LONG};
use polyrail::endpoint::{Endpoint, EndpointBuilder, EndpointSet, WaitError, connect_endpoints};
use polyrail::nic::{DeviceConfig, Fabric, Fault, When};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{RailFailure, RailId, RailState, Scheme};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};

fn pair(builder: EndpointBuilder, devices: usize) -> [fixture::pair::Host; 2] {
    let fabric = Fabric::threaded();
    let host = |name| fixture::pair::Host::new(&fabric, name, devices, &builder);
    let [mut a, mut b] = ["a", "b"].map(host);
    connect_endpoints(&mut a.endpoint, &mut b.endpoint).unwrap();
    [a, b]
}

/// Waits until this many requests are reported.
fn wait_for(endpoint: &mut Endpoint, count: usize) -> Vec<WcStatus> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let polled = endpoint.wait(Some(LONG), |event| seen.extend(event.completion())).unwrap();
        assert!(polled.events > 0 && polled.error.is_none(), "{seen:?}");
    }
    seen.into_iter().map(|wc| wc.status).collect()
}

#[test]
fn two_threads_that_wait_see_every_completion() {
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for rails in [1, 4] {
            const ROUNDS: usize = 2000;
            let builder = EndpointBuilder::new().rails(rails).scheme(scheme).completion_channel(0);
            let [mut a, mut b] = pair(builder, 2);
            let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
            let addr = b.buffer.addr();
            b.endpoint.post_recv(&RecvWr::notification(0)).unwrap();
            let receiver = std::thread::spawn(move || {
                let mut arrived = 0;
                while arrived < ROUNDS {
                    // One, or two that came close together.
                    let statuses = wait_for(&mut b.endpoint, 1);
                    assert!(statuses.iter().all(|status| status.is_success()));
                    for round in arrived..arrived + statuses.len() {
                        b.endpoint.post_recv(&RecvWr::notification(round as u64)).unwrap();
                    }
                    arrived += statuses.len();
                }
                b
            });
            let local = a.buffer.local(0, 256).unwrap();
            for round in 0..ROUNDS {
                let wr = SendWr::write_with_imm(round as u64, local, addr, 3, &keys);
                a.endpoint.post_send(&wr).unwrap();
                assert_eq!(wait_for(&mut a.endpoint, 1), [WcStatus::SUCCESS]);
            }
            receiver.join().unwrap();
        }
    }
}

#[test]
fn a_wait_without_news_ends_in_time_and_costs_no_processor() {
    let [mut a, _b] = pair(EndpointBuilder::new().completion_channel(0), 2);
    a.endpoint.post_recv(&RecvWr::notification(0)).unwrap();
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        let begin = Instant::now();
        let polled = a.endpoint.wait(Some(timeout), |_| ()).unwrap();
        assert_eq!(polled.events, 0);
        assert!(begin.elapsed() >= timeout);
    }
}

#[test]
fn what_was_made_to_be_polled_cannot_be_waited_for() {
    let [mut a, _b] = pair(EndpointBuilder::new(), 1);
    assert!(a.endpoint.completion_fd().is_none());
    assert_eq!(a.endpoint.wait(None, |_| ()).unwrap_err(), WaitError::NoChannel);
    assert_eq!(a.endpoint.poll_armed(|_| ()).unwrap_err(), WaitError::NoChannel);
    // A set to which a member without a channel was added, on another device.
    let host = Host::new(&Fabric::threaded(), "host", 2, 64);
    let builder = EndpointBuilder::new().rails(1);
    let mut set =
        EndpointSet::build([(builder.completion_channel(1), [&host.domains[0]])]).unwrap();
    assert_eq!(set.wait(Some(Duration::ZERO), |_| ()).unwrap().events, 0);
    set.add(builder, &[&host.domains[1]]).unwrap();
    assert_eq!(set.wait(None, |_| ()).unwrap_err(), WaitError::NoChannel);
}

#[test]
fn the_file_descriptor_is_readable_when_there_is_something() {
    let [mut a, mut b] = pair(EndpointBuilder::new().rails(1).completion_channel(0), 1);
    /// Whatever made it readable before.
    fn falls_silent(endpoint: &mut Endpoint) {
        let begin = Instant::now();
        while is_readable(endpoint) {
            assert!(begin.elapsed() < LONG);
            assert_eq!(endpoint.poll_armed(|_| ()).unwrap().events, 0);
        }
    }
    fn is_readable(endpoint: &Endpoint) -> bool {
        let fd = endpoint.completion_fd().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)).unwrap() > 0
    }
    b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
    assert_eq!(b.endpoint.poll_armed(|_| ()).unwrap().events, 0);
    falls_silent(&mut b.endpoint);
    a.notify(&b, 2, 64, 3);
    assert!(!is_readable(&b.endpoint), "nobody has carried it out yet");
    assert_eq!(wait_for(&mut a.endpoint, 1), [WcStatus::SUCCESS]);
    assert!(is_readable(&b.endpoint));
    assert_eq!(b.endpoint.poll_armed(|_| ()).unwrap().events, 1);
    falls_silent(&mut b.endpoint);
}

#[test]
fn completions_that_come_late_are_waited_for() {
    let [mut a, b] = pair(EndpointBuilder::new().completion_channel(0), 2);
    for device in &a.devices {
        device.inject(When::Now, Fault::DelayCompletions(Duration::from_millis(20)));
    }
    a.write_to(&b, 2, BYTES as u32);
    assert_eq!(wait_for(&mut a.endpoint, 1), [WcStatus::SUCCESS]);
}

/// Only the peer's message about a rail that failed wakes the endpoint that waits.
#[test]
fn one_that_waits_heals() {
    let builder = EndpointBuilder::new().rail_failure(RailFailure::Reroute).completion_channel(0);
    let builder = builder.connect_options(fixture::impatient());
    let [mut a, mut b] = pair(builder, 2);
    a.endpoint.fail_rail(RailId::Data(1));
    let is_back = |host: &fixture::pair::Host| {
        host.endpoint.virtual_qp().rail_state(RailId::Data(1)) == Some(RailState::InService)
    };
    let begin = Instant::now();
    while !(is_back(&a) && is_back(&b)) {
        assert!(begin.elapsed() < LONG);
        for host in [&mut a, &mut b] {
            let polled = host.endpoint.wait(Some(Duration::from_millis(15)), |_| ()).unwrap();
            assert_eq!(polled.events, 0);
        }
    }
}

/// A poll looks at a few virtual queue pairs only for what they have to report without a
/// completion.
#[test]
fn a_set_with_many_members_waits_for_all_of_them() {
    let fabric = Fabric::threaded();
    let domain = fabric.create_device(DeviceConfig::named("nic")).alloc_pd().unwrap();
    let builder = EndpointBuilder::new().rails(2).completion_channel(0);
    let mut set = EndpointSet::build((0..100).map(|_| (builder, [&domain]))).unwrap();
    for number in [99, 50, 0, 77] {
        let member = set.get_mut(number).unwrap();
        member.post_recv(&RecvWr::notification(number as u64)).unwrap();
        member.fail();
        let mut seen = Vec::new();
        let polled = set.wait(Some(LONG), |event| seen.extend(event.completion())).unwrap();
        assert_eq!(polled.error, None);
        assert_eq!(seen.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [number as u64]);
    }
}
