//! Control channels that break while a side works, or has sent its last report.

use super::*;
use crate::hosts::software_hosts;
use crate::job::{Job, Sum};
use crate::threads::watched;
use polyrail::endpoint::{Endpoint, EndpointBuilder};
use polyrail::link::{Arrival, Arrivals, Listener, Timeouts};
use polyrail::virtual_qp::{RailFailure, RailId};
use polyrail_faults::Relay;
use std::sync::mpsc;
use std::thread;

/// Far more than anything here takes.
const LONG: Duration = Duration::from_secs(600);

const OUTCOME: JobOutcome = JobOutcome::Copy(Sum { bytes: 5, crc32: 7 });

/// Sets the flag at the end, after a panic also.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same repair message waits only once, so the other side can send it as often as it likes.
#[test]
fn repair_messages_without_end_do_not_prolong_a_wait() {
    let (host, _) = software_hosts(2).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let builder = EndpointBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let endpoint: Endpoint = builder.build(&host.domains()).unwrap();
    let reach = endpoint.address();
    let hello = Message::Hello(Hello::without_memory(reach.into(), None::<Job>, None));
    let (is_over, interrupted) = (AtomicBool::new(false), AtomicBool::new(false));
    let timeouts = Timeouts { message: Duration::from_secs(1), ..Timeouts::default() };
    thread::scope(|scope| {
        let near = scope.spawn(|| {
            let mut near = Link::connect(&address, &timeouts).unwrap();
            near.send(&hello).unwrap();
            near.expect_hello().unwrap();
            near.send(&Message::Ready {}).unwrap();
            let begin = Instant::now();
            // Written faster than they are read.
            let wanted = Message::Heal(HealingMessage::Wanted { rail: RailId::Data(0) });
            let wanted = wanted.encode().repeat(1000);
            let mut rest = &wanted[..];
            while !is_over.load(Ordering::Relaxed) && begin.elapsed() < LONG {
                match near.fd().map(|stream| rustix::io::write(stream, rest)) {
                    Some(Ok(written)) if written < rest.len() => rest = &rest[written..],
                    Some(Ok(_)) => rest = &wanted,
                    _ => thread::yield_now(),
                }
            }
            begin.elapsed()
        });
        let _over = Over(&is_over);
        let mut arrivals = Arrivals::<Job>::default();
        let Arrival { link, .. } = arrivals.accept(&listener, &timeouts).unwrap();
        let mut far = Counterpart::new(link, None, &interrupted);
        far.carry_for(&endpoint);
        far.tell(&hello).unwrap();
        far.expect_ready().unwrap();
        let error = far.expect_outcome().unwrap_err();
        is_over.store(true, Ordering::Relaxed);
        // Messages that were not read yet count as the beginning of a message.
        let is_late = |link: &LinkError| {
            matches!(link, LinkError::NoAnswer { .. } | LinkError::Stalled { .. })
        };
        assert!(matches!(&error, SessionError::Link(link) if is_late(link)), "{error}");
        assert!(near.join().unwrap() < LONG);
    });
}

#[test]
fn a_channel_that_breaks_is_resumed_during_long_work_and_carries_the_last_report() {
    let (host, _) = software_hosts(1).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let relay = Relay::to(listener.local_addr().unwrap()).unwrap();
    let endpoint: Endpoint = EndpointBuilder::new().build(&host.domains()).unwrap();
    let reach = endpoint.address();
    let hello =
        |session| Message::Hello(Hello::without_memory(reach.clone().into(), None::<Job>, session));
    let is_over = AtomicBool::new(false);
    let interrupted = AtomicBool::new(false);
    let mut arrivals = Arrivals::<Job>::default();
    let (has_resumed, resumed) = mpsc::channel();
    thread::scope(|scope| {
        let near = scope.spawn(|| {
            let address = relay.address().to_string();
            let mut near = Link::connect(&address, &Timeouts::default()).unwrap();
            let session = near.session();
            near.send(&hello(session)).unwrap();
            near.expect_hello().unwrap();
            near.send(&Message::Ready {}).unwrap();
            near.send(&Message::Done(OUTCOME)).unwrap();
            loop {
                match near.expect(LONG).unwrap() {
                    // Only the first is waited for.
                    Message::Resumed {} => _ = has_resumed.send(()),
                    Message::Done(outcome) => return outcome,
                    Message::Ready {} | Message::Alive {} => {}
                    other => panic!("{other:?}"),
                }
            }
        });
        let Arrival { link, .. } = arrivals.accept(&listener, &Timeouts::default()).unwrap();
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let arrived =
                    arrivals.step(&listener, &Timeouts::default(), |_, why| panic!("{why}"));
                assert!(arrived.unwrap().is_empty());
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut far = Counterpart::new(link, Some(PeerTimeouts::default()), &interrupted);
        far.tell(&hello(far.session())).unwrap();
        far.tell(&Message::Ready {}).unwrap();
        far.expect_ready().unwrap();
        while far.outcome().is_none() {
            far.poll_control().unwrap();
        }
        let relay = &relay;
        let work = move || {
            relay.cut();
            resumed.recv_timeout(LONG)
        };
        watched("waits for the link", work, || far.stand_by()).unwrap().unwrap();
        relay.cut();
        far.report(OUTCOME).unwrap();
        drop(far);
        assert_eq!(near.join().unwrap(), OUTCOME);
    });
}
