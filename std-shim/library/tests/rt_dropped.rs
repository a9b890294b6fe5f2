//! Requests over rails that drop everything, although their ports are up and new queue pairs
//! connect: each request ends.

mod fixture;

use fixture::pair::Host;
use fixture::{LONG, impatient};
use polyrail::backend::ConnectOptions;
use polyrail::endpoint::{EndpointBuilder, EndpointError, connect_endpoints};
use polyrail::heal::Healing;
use polyrail::nic::{Device, Fabric, Fault, When};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{Config, PassThroughOrder, QpState, RailFailure, RailId, Scheme};
use std::time::{Duration, Instant};

/// The limits of both ends.
const LIMIT: Duration = Duration::from_millis(500);

/// Bytes of a request: fragments for all rails.
const LENGTH: u32 = 64 << 10;

/// A request of the near end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Notify,
    Send,
    Read,
}

/// The limits of a builder, with a stall timeout that allows two failures in a limit.
const HEALING: Healing = Healing {
    first_interval: Duration::from_millis(10),
    longest_interval: Duration::from_millis(40),
    fallback_after: Duration::from_millis(100),
    home_after: None,
    stall_timeout: Some(Duration::from_millis(200)),
    rail_timeout: Some(LIMIT),
    fence_timeout: Some(LIMIT),
};

/// Ends that wait for rails however few there are. A request that gets no answer fails after a
/// third of their limits, so that rails return and fail in between.
fn builder(scheme: Scheme) -> EndpointBuilder {
    // 2 attempts of 4.096 us * 2^14.
    let options = ConnectOptions { timeout: 14, ..impatient() };
    EndpointBuilder::new()
        .scheme(scheme)
        .max_msg_size(4096)
        .rail_failure(RailFailure::Reroute)
        .min_rails(0)
        .healing(HEALING)
        .connect_options(options)
}

/// Two hosts of four devices, connected.
fn pair(builder: &EndpointBuilder) -> (Host, Host) {
    let fabric = Fabric::threaded();
    let mut near = Host::new(&fabric, "near", 4, builder);
    // The near end is the one that gives up.
    let healing = Healing { rail_timeout: Some(LONG), fence_timeout: Some(LONG), ..HEALING };
    let mut far = Host::new(&fabric, "far", 4, &builder.healing(healing));
    connect_endpoints(&mut near.endpoint, &mut far.endpoint).unwrap();
    (near, far)
}

fn inject(devices: &[Device], fault: Fault) {
    devices.iter().for_each(|device| device.inject(When::Now, fault));
}

/// Posts a request of `near`.
fn send(near: &mut Host, far: &Host, kind: Kind, wr_id: u64) {
    let keys = near.buffer.toward(&far.buffer.remote()).unwrap();
    let local = near.buffer.local(0, LENGTH).unwrap();
    let to = far.buffer.addr();
    let wr = match kind {
        Kind::Write => SendWr::write(wr_id, local, to, &keys),
        Kind::Notify => SendWr::write_with_imm(wr_id, local, to, 7, &keys),
        Kind::Send => SendWr::send(wr_id, local, &keys),
        Kind::Read => SendWr::read(wr_id, local, to, &keys),
    };
    near.endpoint.post_send(&wr).unwrap();
}

/// Posts the receive that a request takes at `far`, if it takes one.
fn receive(far: &mut Host, kind: Kind, wr_id: u64) {
    let keys = far.buffer.local_keys();
    let wr = match kind {
        Kind::Notify => RecvWr::notification(wr_id),
        Kind::Send => RecvWr::data(wr_id, far.buffer.local(0, LENGTH).unwrap(), &keys),
        Kind::Write | Kind::Read => return,
    };
    far.endpoint.post_recv(&wr).unwrap();
}

/// Posts a request of `near`, and what it takes at `far`.
fn post(near: &mut Host, far: &mut Host, kind: Kind, wr_id: u64) {
    receive(far, kind, wr_id);
    send(near, far, kind, wr_id);
}

fn report(host: &Host) -> String {
    let reports = host.endpoint.rail_reports();
    reports.iter().map(|report| format!("{report}\n")).collect()
}

/// Polls both ends. Returns the status of the request of `near` that is reported, if one is.
fn poll(near: &mut Host, far: &mut Host) -> Option<WcStatus> {
    let [polled, _] = [near, far].map(|host| {
        let batch = host.endpoint.poll(16);
        assert_eq!(batch.error, None);
        batch.completions
    });
    polled.first().map(|wc| wc.status)
}

/// Polls both ends until the request of `near` is reported. Returns its status, and how long that
/// took.
fn ended(near: &mut Host, far: &mut Host, what: &str) -> (WcStatus, Duration) {
    let begin = Instant::now();
    loop {
        if let Some(status) = poll(near, far) {
            return (status, begin.elapsed());
        }
        assert!(begin.elapsed() < LONG, "{what}: {}{}", report(near), report(far));
    }
}

/// Checks that a request of `near` ends once its limit has passed, after rails came back in vain.
fn check_end(near: &mut Host, far: &mut Host, what: &str) {
    let (status, waited) = ended(near, far, what);
    assert!(!status.is_success() && waited >= LIMIT, "{what}: {status:?} after {waited:?}");
    assert_eq!(near.endpoint.state(), QpState::Error);
    let error = near.endpoint.explain(status);
    assert!(matches!(error, EndpointError::NotHealed { waited: LIMIT, .. }), "{what}: {error}");
    let reports = near.endpoint.rail_reports();
    assert!(reports.iter().any(|rail| rail.generation > 0), "{what}: rails returned");
}

/// Every kind of request, with either scheme.
fn kinds() -> impl Iterator<Item = (Scheme, Kind)> {
    let spray = [Kind::Write, Kind::Notify, Kind::Send, Kind::Read].map(|it| (Scheme::Spray, it));
    let dqplb = [Kind::Write, Kind::Notify, Kind::Read].map(|it| (Scheme::Dqplb, it));
    spray.into_iter().chain(dqplb)
}

#[test]
fn a_request_over_rails_that_drop_everything_ends() {
    for (scheme, kind) in kinds() {
        let (mut near, mut far) = pair(&builder(scheme));
        // All rails have carried something.
        post(&mut near, &mut far, Kind::Write, 1);
        assert_eq!(ended(&mut near, &mut far, "the first").0, WcStatus::SUCCESS);
        inject(&near.devices, Fault::DropArriving(true));
        inject(&far.devices, Fault::DropArriving(true));
        post(&mut near, &mut far, kind, 2);
        check_end(&mut near, &mut far, &format!("{scheme:?} {kind:?}"));
    }
}

/// What the peer sends arrives all the time, so receives complete.
#[test]
fn a_request_ends_although_the_other_direction_works() {
    for (scheme, kind) in kinds() {
        let what = format!("{scheme:?} {kind:?}");
        let (mut near, mut far) = pair(&builder(scheme));
        inject(&far.devices, Fault::DropArriving(true));
        post(&mut near, &mut far, kind, 2);
        let begin = Instant::now();
        let (mut posted, mut arrived) = (0, 0);
        let status = loop {
            // A fragment of DQPLB, or a SEND, needs no acknowledgement to arrive.
            let kind = if scheme == Scheme::Dqplb { Kind::Notify } else { Kind::Send };
            if posted == arrived && near.endpoint.state() != QpState::Error {
                post(&mut far, &mut near, kind, 10 + posted);
                posted += 1;
            }
            let batch = near.endpoint.poll(16);
            arrived += batch.completions.iter().filter(|wc| wc.wr_id >= 10).count() as u64;
            if let Some(wc) = batch.completions.iter().find(|wc| wc.wr_id == 2) {
                break wc.status;
            }
            _ = far.endpoint.poll(16);
            assert!(begin.elapsed() < LONG, "{what}: {}{}", report(&near), report(&far));
        };
        assert!(!status.is_success() && arrived > 0, "{what}: {status:?}, {arrived} arrived");
        let error = near.endpoint.explain(status);
        assert!(matches!(error, EndpointError::NotHealed { waited: LIMIT, .. }), "{what}: {error}");
    }
}

/// Acknowledgements alone are dropped. What the peer counts is done, since it reports what arrived.
#[test]
fn a_request_that_arrived_is_done_although_no_acknowledgement_comes() {
    let (mut near, mut far) = pair(&builder(Scheme::Spray));
    inject(&near.devices, Fault::DropArriving(true));
    post(&mut near, &mut far, Kind::Send, 1);
    assert_eq!(ended(&mut near, &mut far, "a SEND").0, WcStatus::SUCCESS);
    post(&mut near, &mut far, Kind::Write, 2);
    check_end(&mut near, &mut far, "a WRITE");
}

/// No driver gives up, and all rails are silent, so that none completes anything.
#[test]
fn a_request_over_rails_that_are_all_silent_ends() {
    for (scheme, kind) in kinds() {
        // All fragments of these kinds may wait for the peer.
        if matches!((scheme, kind), (_, Kind::Send) | (Scheme::Dqplb, Kind::Notify)) {
            continue;
        }
        let (mut near, mut far) = pair(&builder(scheme));
        inject(&near.devices, Fault::Silent(true));
        post(&mut near, &mut far, kind, 2);
        check_end(&mut near, &mut far, &format!("{scheme:?} {kind:?}"));
    }
}

/// A rail on which a request waits for its receive looks like a silent rail, and is failed; but
/// the request goes on to wait.
#[test]
fn a_peer_may_be_later_than_the_stall_timeout() {
    for kind in [Kind::Notify, Kind::Send] {
        let (mut near, mut far) = pair(&builder(Scheme::Spray));
        send(&mut near, &far, kind, 1);
        let begin = Instant::now();
        let looked_silent =
            |near: &Host| near.endpoint.rail_reports().iter().any(|rail| rail.generation > 0);
        while begin.elapsed() < 6 * LIMIT || !looked_silent(&near) {
            assert_eq!(poll(&mut near, &mut far), None, "{kind:?}: {}", report(&near));
            assert!(begin.elapsed() < LONG, "{kind:?}: it did not look silent");
        }
        receive(&mut far, kind, 1);
        assert_eq!(ended(&mut near, &mut far, "a late peer").0, WcStatus::SUCCESS, "{kind:?}");
    }
}

/// A request waits for its receive, and a WRITE for data rails that are all silent.
#[test]
fn a_request_ends_although_another_one_waits_for_the_peer() {
    for (kind, rail) in [(Kind::Notify, RailId::Notify), (Kind::Send, RailId::Data(0))] {
        let (mut near, mut far) = pair(&builder(Scheme::Spray));
        send(&mut near, &far, kind, 1);
        wait_until_posted(&mut near, &mut far, rail, 1);
        inject(&near.devices, Fault::Silent(true));
        send(&mut near, &far, Kind::Write, 2);
        check_end(&mut near, &mut far, &format!("a WRITE and {kind:?}"));
    }
}

/// A driver gives up later than the limit, so nearly all of the wait is on rails in service.
#[test]
fn a_wait_on_rails_that_came_back_in_vain_counts() {
    let options = ConnectOptions { timeout: 16, ..impatient() };
    let healing = Healing { stall_timeout: Some(LONG), ..HEALING };
    for (scheme, kind) in kinds() {
        let what = format!("{scheme:?} {kind:?}");
        let (mut near, mut far) = pair(&builder(scheme).connect_options(options).healing(healing));
        inject(&near.devices, Fault::DropArriving(true));
        inject(&far.devices, Fault::DropArriving(true));
        post(&mut near, &mut far, kind, 1);
        check_end(&mut near, &mut far, &what);
        let returns = near.endpoint.rail_reports().iter().map(|rail| rail.generation).max();
        assert!(returns <= Some(3), "{what}: {returns:?} returns");
    }
}

/// Only one rail is in service, and there must be one: it is not failed for a peer that is late.
/// What else waits for that rail has its own limit.
#[test]
fn a_rail_that_none_can_replace_waits_for_a_late_peer() {
    let patient = Healing { rail_timeout: Some(LONG), ..HEALING };
    for (kinds, healing) in [(&[Kind::Send][..], HEALING), (&[Kind::Send, Kind::Write], patient)] {
        let (mut near, mut far) = pair(&builder(Scheme::Spray).min_rails(1).healing(healing));
        inject(&near.devices[1..], Fault::LinkDown);
        for (wr_id, kind) in (1..).zip(kinds) {
            send(&mut near, &far, *kind, wr_id);
        }
        wait(&mut near, &mut far);
        assert_eq!(near.endpoint.state(), QpState::Degraded, "{}", report(&near));
        receive(&mut far, Kind::Send, 1);
        all_succeed(&mut near, &mut far, kinds.len());
    }
}

fn config(scheme: Scheme, min_rails: u8) -> Config {
    let rail_failure = RailFailure::Reroute;
    Config { scheme, min_rails, max_msg_size: 4096, rail_failure, ..Config::default() }
}

/// Polls for so long that a rail on which a request waits for the peer would be failed many times.
fn wait(near: &mut Host, far: &mut Host) {
    let begin = Instant::now();
    while begin.elapsed() < 6 * LIMIT {
        assert_eq!(poll(near, far), None, "{}", report(near));
    }
}

/// Polls both ends until this many requests of `near` are reported, as successful.
fn all_succeed(near: &mut Host, far: &mut Host, requests: usize) {
    let begin = Instant::now();
    let mut reported = 0;
    while reported < requests {
        for wc in near.endpoint.poll(16).completions {
            assert_eq!(wc.status, WcStatus::SUCCESS, "{}", near.endpoint.explain(wc.status));
            reported += 1;
        }
        assert_eq!(far.endpoint.poll(16).error, None);
        assert!(begin.elapsed() < LONG, "{}{}", report(near), report(far));
    }
}

/// Polls until this many requests were posted to a rail of `near`.
fn wait_until_posted(near: &mut Host, far: &mut Host, rail: RailId, requests: u64) {
    let begin = Instant::now();
    let posted = |near: &Host| near.endpoint.virtual_qp().counters(rail).unwrap().send_requests;
    while posted(near) < requests {
        assert_eq!(poll(near, far), None);
        assert!(begin.elapsed() < LONG, "{}", report(near));
    }
}

/// The notify queue pair is not replaced again and again: no other one can be proved to be well.
#[test]
fn what_waits_for_a_late_peer_on_all_that_is_left_is_left_alone() {
    // A SEND waits for no notification before it.
    let config = Config { pass_through: PassThroughOrder::Unordered, ..config(Scheme::Spray, 1) };
    let (mut near, mut far) = pair(&builder(Scheme::Spray).config(config));
    inject(&near.devices[1..], Fault::LinkDown);
    send(&mut near, &far, Kind::Notify, 1);
    wait_until_posted(&mut near, &mut far, RailId::Notify, 1);
    send(&mut near, &far, Kind::Send, 2);
    wait(&mut near, &mut far);
    // Once at most: rail 0 was well until the SEND was posted.
    let notify = near.endpoint.virtual_qp().rail_generation(RailId::Notify).unwrap();
    assert!(notify <= 1, "{}", report(&near));
    receive(&mut far, Kind::Notify, 1);
    receive(&mut far, Kind::Send, 2);
    all_succeed(&mut near, &mut far, 2);
}

/// Receives that the far end of [`numbered`] has posted on each rail.
const RECEIVES: u32 = 8;

/// Two hosts with DQPLB, of which the far one does not poll, and has used up its receives.
fn numbered(min_rails: u8) -> (Host, Host) {
    let config = Config { max_msgs_per_qp: RECEIVES, ..config(Scheme::Dqplb, min_rails) };
    let healing = Healing { fence_timeout: Some(LONG), ..HEALING };
    let (mut near, far) = pair(&builder(Scheme::Dqplb).config(config).healing(healing));
    let begin = Instant::now();
    for wr_id in 0..RECEIVES.into() {
        near.notify(&far, wr_id, 4 * 4096, 7);
        while near.endpoint.poll(16).completions.is_empty() {
            assert!(begin.elapsed() < LONG, "{}", report(&near));
        }
    }
    (near, far)
}

/// Two rails of four wait for the peer, and three have to be in service.
#[test]
fn of_rails_that_wait_for_a_late_peer_enough_stay_in_service() {
    let (mut near, mut far) = numbered(3);
    near.notify(&far, 100, 2 * 4096, 7);
    let in_service = |near: &Host| near.endpoint.virtual_qp().rails_in_service().count();
    let begin = Instant::now();
    // One of them is failed, and then there is time for the other one.
    let mut failed_at = None;
    while failed_at.is_none_or(|at: Instant| at.elapsed() < 3 * LIMIT) {
        let completed = near.endpoint.poll(16).completions;
        assert!(completed.is_empty(), "{completed:?}: {}", report(&near));
        if in_service(&near) < 4 {
            failed_at.get_or_insert_with(Instant::now);
        }
        assert!(begin.elapsed() < LONG, "{}", report(&near));
    }
    assert_eq!(in_service(&near), 3, "{}", report(&near));
    assert_eq!(ended(&mut near, &mut far, "a late peer").0, WcStatus::SUCCESS);
}

/// The other rails are well, but their owner has taken them out of service.
#[test]
fn a_rail_whose_owner_took_all_others_out_waits_for_a_late_peer() {
    let (mut near, mut far) = pair(&builder(Scheme::Spray).min_rails(1));
    for rail in 1..4 {
        assert!(near.endpoint.virtual_qp_mut().set_rail_in_service(rail, false));
    }
    send(&mut near, &far, Kind::Send, 1);
    wait(&mut near, &mut far);
    assert_eq!(near.endpoint.state(), QpState::Degraded, "{}", report(&near));
    receive(&mut far, Kind::Send, 1);
    assert_eq!(ended(&mut near, &mut far, "a late peer").0, WcStatus::SUCCESS);
}

/// A request waits behind a SEND that waits for its receive, on the only rail that is left.
#[test]
fn a_rail_that_none_can_replace_is_failed_for_requests_without_receive() {
    for kind in [Kind::Write, Kind::Read] {
        let (mut near, mut far) = pair(&builder(Scheme::Spray).min_rails(1));
        inject(&near.devices[1..], Fault::LinkDown);
        send(&mut near, &far, Kind::Send, 1);
        wait(&mut near, &mut far);
        inject(&near.devices[..1], Fault::Silent(true));
        send(&mut near, &far, kind, 2);
        let (status, waited) = ended(&mut near, &mut far, "a request behind a SEND");
        check_too_few(&mut near, status, waited);
    }
}

/// No other queue pair is there that could be well.
#[test]
fn a_rail_that_is_alone_is_failed_for_requests_without_receive() {
    let (mut near, far) = numbered(1);
    inject(&near.devices[1..], Fault::LinkDown);
    let begin = Instant::now();
    while near.endpoint.virtual_qp().rails_in_service().count() > 1 {
        assert_eq!(near.endpoint.poll(16).completions, []);
        assert!(begin.elapsed() < LONG, "{}", report(&near));
    }
    near.notify(&far, 100, 4096, 7);
    near.write_to(&far, 101, 4096);
    let begin = Instant::now();
    let status = loop {
        if let Some(wc) = near.endpoint.poll(16).completions.first() {
            break wc.status;
        }
        assert!(begin.elapsed() < LONG, "{}", report(&near));
    };
    check_too_few(&mut near, status, begin.elapsed());
}

/// Checks that a request of `near` ended because the last rail was failed.
fn check_too_few(near: &mut Host, status: WcStatus, waited: Duration) {
    assert!(!status.is_success() && waited >= LIMIT, "{status:?} after {waited:?}");
    let error = near.endpoint.explain(status);
    assert!(matches!(error, EndpointError::TooFewRails { in_service: 0, .. }), "{error}");
}

/// A rail that came back and had nothing to do since is as good as any other.
#[test]
fn a_peer_may_be_late_after_rails_came_back() {
    for kind in [Kind::Notify, Kind::Send] {
        let healing = Healing { stall_timeout: Some(LONG), ..HEALING };
        let (mut near, mut far) = pair(&builder(Scheme::Spray).healing(healing));
        for fault in [Fault::LinkDown, Fault::LinkUp] {
            inject(&near.devices, fault);
            let begin = Instant::now();
            let is_there = |near: &Host, far: &Host| {
                let is_ready = [near, far].map(|end| end.endpoint.state() == QpState::Ready);
                is_ready == [fault == Fault::LinkUp; 2]
            };
            while !is_there(&near, &far) {
                poll(&mut near, &mut far);
                assert!(begin.elapsed() < LONG, "{}{}", report(&near), report(&far));
            }
        }
        send(&mut near, &far, kind, 1);
        let begin = Instant::now();
        while begin.elapsed() < 3 * LIMIT {
            assert_eq!(poll(&mut near, &mut far), None);
        }
        receive(&mut far, kind, 1);
        assert_eq!(ended(&mut near, &mut far, "a late peer").0, WcStatus::SUCCESS);
    }
}
