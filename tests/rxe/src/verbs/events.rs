//! Events instead of polling.

use crate::fixture::{PORT, Rails};
use polyrail::backend::{DeviceError, DeviceEvent, Domain, EventCursor, Gid, Port};
use polyrail::rdma::{OpenOptions, VerbsDomain, open_devices};
use polyrail_core::hardware::CompletionQueue as _;
use polyrail_core::verbs::{Opcode, SendFlags, SendRequest, Sge};
use polyrail_ffi::{AsyncEvent, CompletionChannel, CompletionQueue, Context, CqInit};
use polyrail_tests::behaviours::pair::{Side, poll, recv};
use polyrail_tests::behaviours::{ALL_ACCESS, End, Fixture, LIMIT, Pair, Retries};
use std::fmt::Debug;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const SOON: Option<Duration> = Some(Duration::from_millis(20));

/// A connected pair whose receiver completes into a queue with a channel.
fn with_channel(rails: &Rails) -> (Pair<Rails>, CompletionChannel) {
    let channel = rails.context(End::Far, 0).create_channel().unwrap();
    let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
    let cq = rails.context(End::Far, 0).create_cq(&init).unwrap();
    let qp = rails.create_qp(End::Far, 0, &cq, None, 16);
    let memory = rails.memory(End::Far, 4096, ALL_ACCESS);
    let far = Side { rail: 0, cq, qp, memory };
    let near = Side::new(rails, End::Near, 0, None);
    rails.connect(0, &near.qp, &far.qp, Retries::MANY);
    (Pair { near, far }, channel)
}

fn notify(pair: &mut Pair<Rails>, flags: SendFlags) {
    pair.far.recv(11, Sge::EMPTY).unwrap();
    let request = pair.request(7, Opcode::RdmaWriteWithImm, 0, 0);
    let flags = flags | SendFlags::SIGNALED;
    pair.near.post(&[SendRequest { flags, ..request }]).unwrap();
    pair.near.completions(1);
}

pub(super) fn a_channel_wakes_for_a_queue_that_was_armed(rails: &Rails) {
    let (mut pair, channel) = with_channel(rails);
    assert!(channel.as_raw_fd() >= 0);
    notify(&mut pair, SendFlags::empty());
    assert_eq!(channel.wait(SOON), Ok(None), "the channel was not armed");
    // Arm, then poll: what came before arming is found by polling, and what comes later wakes.
    pair.far.cq.handle().arm(false).unwrap();
    assert_eq!(poll(&mut pair.far.cq).len(), 1);
    notify(&mut pair, SendFlags::empty());
    assert_eq!(channel.wait(Some(LIMIT)), Ok(Some(pair.far.cq.id())));
    assert_eq!(pair.far.completions(1)[0].wr_id, 11);
    notify(&mut pair, SendFlags::empty());
    assert_eq!(channel.wait(SOON), Ok(None), "one event for each arming");
}

pub(super) fn a_channel_can_wait_for_solicited_completions_only(rails: &Rails) {
    let (mut pair, channel) = with_channel(rails);
    pair.far.cq.handle().arm(true).unwrap();
    notify(&mut pair, SendFlags::empty());
    assert_eq!(channel.wait(SOON), Ok(None));
    notify(&mut pair, SendFlags::SOLICITED);
    assert_eq!(channel.wait(Some(LIMIT)), Ok(Some(pair.far.cq.id())));
    assert_eq!(pair.far.completions(2).len(), 2);
}

/// Reads events until the wanted one.
fn expect(context: &Context, wanted: AsyncEvent) {
    wait_for(wanted, || context.next_event().unwrap());
}

fn wait_for<E: Debug + PartialEq>(wanted: E, mut next: impl FnMut() -> Option<E>) {
    let mut others = Vec::new();
    let start = Instant::now();
    loop {
        match next() {
            Some(event) if event == wanted => return,
            Some(event) => others.push(event),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < LIMIT, "no {wanted:?}, but {others:?}");
    }
}

fn forget_events(context: &Context) {
    while context.next_event().unwrap().is_some() {}
}

pub(super) fn a_link_that_goes_down_and_up_raises_events(rails: &Rails) {
    for end in [End::Near, End::Far] {
        let context = rails.context(end, 1);
        forget_events(context);
        rails.set_link(1, false);
        expect(context, AsyncEvent::PortError { port: PORT });
        rails.set_link(1, true);
        expect(context, AsyncEvent::PortActive { port: PORT });
    }
}

/// Two domains of a device, opened separately, each with a reader that takes all kinds of events
/// and with two that take the events of endpoints; one of them reads by a clone.
struct Readers {
    domains: [VerbsDomain; 2],
    cursors: [[EventCursor; 3]; 2],
}

impl Readers {
    fn of(device: &str) -> Self {
        let names = [device.parse().unwrap()];
        let open = |()| open_devices(&names, &OpenOptions::default()).unwrap().remove(0);
        let domains = [(); 2].map(open);
        let cursors = [0, 1].map(|at: usize| [(); 3].map(|()| domains[at].event_cursor()));
        Self { domains, cursors }
    }

    fn expect(&mut self, told: DeviceEvent, raw: AsyncEvent) {
        for (domain, [first, second, all]) in self.domains.iter().zip(&mut self.cursors) {
            wait_for(told, || domain.next_event(first));
            wait_for(told, || domain.clone().next_event(second));
            wait_for((raw, 0), || domain.next_async_event(all));
        }
    }

    fn ports(&self) -> [Result<Port, DeviceError>; 2] {
        [0, 1].map(|at: usize| self.domains[at].port(PORT))
    }

    fn have_address(&self, address: Gid) -> bool {
        self.ports().iter().all(|port| port.as_ref().is_ok_and(|port| port.gid == address))
    }
}

pub(super) fn a_port_that_goes_down_and_up_is_known_to_all_domains_of_its_device(rails: &Rails) {
    for device in ["rxeA1:1", "rxeB1:1"] {
        let mut readers = Readers::of(device);
        let address = readers.domains[0].port(PORT).unwrap().gid;
        rails.set_link(1, false);
        let down = DeviceEvent::PortDown { port: PORT };
        readers.expect(down, AsyncEvent::PortError { port: PORT });
        let is_down = DeviceError::PortDown { port: PORT };
        assert_eq!(readers.ports(), [Err(is_down.clone()), Err(is_down)]);
        rails.set_link(1, true);
        let up = DeviceEvent::PortUp { port: PORT };
        readers.expect(up, AsyncEvent::PortActive { port: PORT });
        let start = Instant::now();
        while !readers.have_address(address) {
            assert!(start.elapsed() < LIMIT, "{address}: {:?}", readers.ports());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(super) fn a_shared_receive_queue_raises_its_limit_event(rails: &Rails) {
    let context = rails.context(End::Far, 0);
    forget_events(context);
    let mut srq = rails.create_srq(End::Far, 0, 8);
    let near = Side::new(rails, End::Near, 0, None);
    let far = Side::new(rails, End::Far, 0, Some(&srq));
    rails.connect(0, &near.qp, &far.qp, Retries::MANY);
    let mut pair = Pair { near, far };
    (0..3).for_each(|wr_id| recv(&mut srq, wr_id, Sge::EMPTY).unwrap());
    srq.set_limit(3).unwrap();
    assert_eq!(context.next_event(), Ok(None), "no event is pending");
    pair.near.post(&[pair.request(7, Opcode::RdmaWriteWithImm, 0, 0)]).unwrap();
    pair.near.completions(1);
    expect(context, AsyncEvent::SrqLimitReached(srq.id()));
    assert_eq!(srq.query().unwrap().limit, 0, "the limit is disarmed");
}

pub(super) fn an_overrun_raises_an_event(rails: &Rails) {
    let context = rails.context(End::Near, 0);
    forget_events(context);
    let cq: CompletionQueue = rails.create_cq(End::Near, 0, 1);
    let qp = rails.create_qp(End::Near, 0, &cq, None, 16);
    let memory = rails.memory(End::Near, 4096, ALL_ACCESS);
    let near = Side { rail: 0, cq, qp, memory };
    let far = Side::new(rails, End::Far, 0, None);
    rails.connect(0, &near.qp, &far.qp, Retries::MANY);
    let mut pair = Pair { near, far };
    let capacity = u64::from(pair.near.cq.capacity());
    let writes: Vec<_> = (0..capacity + 2).map(|wr_id| pair.write(wr_id, 0, 8)).collect();
    pair.near.post(&writes).unwrap();
    expect(context, AsyncEvent::CqError(pair.near.cq.id()));
}
