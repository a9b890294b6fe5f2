//! Endpoints that fail, and posts that are refused: what is reported.

mod fixture;

use fixture::pair::{BYTES, Host, pair, poll_both};
use fixture::{LONG, holds_with};
use polyrail::endpoint::{EndpointBuilder, EndpointError, StallWatch};
use polyrail::nic::{self, Fabric, Fault, When};
use polyrail::verbs::{RecvWr, SendWr, WcStatus};
use polyrail::virtual_qp::{PostSendError, QpState, RailFailure, RailId, Scheme};
use std::time::{Duration, Instant};

#[test]
fn a_link_that_fails_is_named() {
    let (mut a, mut b) = pair(4, &EndpointBuilder::new());
    a.devices[2].inject(When::Now, Fault::LinkDown);
    let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    a.write_to(&b, 1, BYTES as u32);
    let (sent, _) = poll_both(&mut a, &mut b, (1, 0));
    assert_eq!(sent[0].status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(a.endpoint.state(), QpState::Error);
    let EndpointError::Rail(error) = a.endpoint.explain(sent[0].status) else { panic!() };
    assert_eq!((error.error.rail, error.device.as_str()), (RailId::Data(2), "a2"));
    let text = error.to_string();
    assert!(text.starts_with("rail 2 (device a2, queue pair 17) failed: RETRY_EXC_ERR"), "{text}");
    let local = a.buffer.local(0, BYTES as u32).unwrap();
    let again = a.endpoint.post_send(&SendWr::write(2, local, b.buffer.addr(), &keys));
    assert_eq!(again, Err(PostSendError::InErrorState));
    assert_eq!(a.endpoint.rail_reports()[2].errors, 4);
    drop(b.domains);
}

/// The codes of other devices are their drivers'.
#[test]
fn vendor_codes_of_devices_in_software_are_explained() {
    let (mut a, b) = pair(1, &EndpointBuilder::new().rails(1));
    drop(b.endpoint);
    let to = b.buffer.remote();
    let keys = a.buffer.toward(&to).unwrap();
    let local = a.buffer.local(0, 8).unwrap();
    a.endpoint.post_send(&SendWr::write(1, local, b.buffer.addr(), &keys)).unwrap();
    let done = loop {
        if let Some(done) = a.endpoint.poll(1).completions.pop() {
            break done;
        }
    };
    let EndpointError::Rail(mut error) = a.endpoint.explain(done.status) else { panic!() };
    let code = "vendor code 0x41 (the peer ended, or its device is gone)";
    assert!(error.to_string().ends_with(code), "{error}");
    error.error.device = polyrail::verbs::DeviceId(1 << 31);
    assert!(error.to_string().ends_with("vendor code 0x41"), "{error}");
}

/// Polls and watches until a rail is found silent; returns the time that took.
fn fall_silent(
    a: &mut Host,
    b: &mut Host,
    posted: u64,
    silence: Duration,
) -> (EndpointError, Duration) {
    let mut watch = StallWatch::new(silence);
    let begin = Instant::now();
    let mut reported = 0;
    loop {
        reported += a.endpoint.poll(16).completions.len() as u64;
        _ = b.endpoint.poll(16);
        if let Err(error) = watch.check(&mut a.endpoint, posted, reported) {
            return (error, begin.elapsed());
        }
        assert!(begin.elapsed() < LONG);
    }
}

const SILENCE: Duration = Duration::from_millis(100);

#[test]
fn a_rail_that_falls_silent_is_named_and_moved_to_err() {
    for (scheme, rails, device) in
        [(Scheme::Spray, 4, 2), (Scheme::Spray, 4, 0), (Scheme::Dqplb, 4, 3), (Scheme::Spray, 1, 0)]
    {
        let builder = EndpointBuilder::new().scheme(scheme).rails(rails);
        let is_soon = holds_with(SILENCE, |silence| {
            let (mut a, mut b) = pair(rails, &builder);
            b.endpoint.post_recv(&RecvWr::notification(1)).unwrap();
            a.devices[device].inject(When::Now, Fault::Silent(true));
            a.notify(&b, 1, BYTES as u32, 1);
            let (error, took) = fall_silent(&mut a, &mut b, 1, silence);
            let silent = RailId::Data(device as u8);
            let device = format!("a{device}");
            let expected = EndpointError::Silent { rail: silent, device, waited: silence };
            assert_eq!(error, expected);
            assert!(took >= silence, "{took:?}");
            let state = a.endpoint.virtual_qp().physical(silent).unwrap().state();
            assert_eq!(state, nic::QpState::Err);
            // Its requests come back, and so does the caller's.
            let (sent, _) = poll_both(&mut a, &mut b, (1, 0));
            assert_eq!((sent[0].wr_id, sent[0].status), (1, WcStatus::WR_FLUSH_ERR));
            assert_eq!(a.endpoint.unreported(), 0);
            took < 10 * silence
        });
        assert!(is_soon, "{scheme:?}, {rails} rails");
    }
}

#[test]
fn rails_that_are_slow_or_idle_are_not_silent() {
    for rails in [1, 4] {
        let are_heard = holds_with(SILENCE, |silence| {
            let (mut a, mut b) = pair(rails, &EndpointBuilder::new().rails(rails));
            // Each request takes most of the patience, and all of them several times as much.
            a.devices[rails - 1].inject(When::Now, Fault::DelayCompletions(silence / 2));
            let keys = a.buffer.toward(&b.buffer.remote()).unwrap();
            let local = a.buffer.local(0, BYTES as u32).unwrap();
            let mut watch = StallWatch::new(silence);
            let begin = Instant::now();
            let mut posted = 0;
            let mut reported = 0;
            let mut done = None;
            while done.is_none_or(|done: Instant| done.elapsed() < 2 * silence) {
                if posted == reported && posted < 4 {
                    let wr = SendWr::write(posted, local, b.buffer.addr(), &keys);
                    a.endpoint.post_send(&wr).unwrap();
                    posted += 1;
                }
                reported += a.endpoint.poll(16).completions.len() as u64;
                _ = b.endpoint.poll(16);
                if watch.check(&mut a.endpoint, posted, reported).is_err() {
                    return false;
                }
                done = done.or_else(|| (reported == 4).then(Instant::now));
                assert!(begin.elapsed() < LONG);
            }
            true
        });
        assert!(are_heard, "{rails} rails");
    }
}

#[test]
fn failing_all_rails_flushes_everything() {
    for rails in [1, 4] {
        let (mut a, mut b) = pair(1, &EndpointBuilder::new().rails(rails));
        for wr_id in 0..10 {
            b.endpoint.post_recv(&RecvWr::notification(wr_id)).unwrap();
        }
        b.endpoint.fail();
        let (_, flushed) = poll_both(&mut a, &mut b, (0, 10));
        assert!((0..).zip(&flushed).all(|(i, wc)| wc.wr_id == i));
        assert!(flushed.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR), "{flushed:?}");
        assert_eq!(b.endpoint.unreported(), 0);
        assert_eq!(b.endpoint.failure(), Some(EndpointError::GivenUp), "{rails} rails");
    }
}

#[test]
fn an_idle_endpoint_that_is_given_up_says_so() {
    for rails in [1, 4] {
        let (mut a, _b) = pair(1, &EndpointBuilder::new().rails(rails));
        a.endpoint.give_up(Duration::from_secs(1));
        assert_eq!(a.endpoint.state(), QpState::Error, "{rails} rails");
        assert_eq!(a.endpoint.failure(), Some(EndpointError::GivenUp), "{rails} rails");
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
fn a_post_before_the_connection_names_what_is_missing() {
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

/// Rails that are re-routed fail one after another when their drivers refuse the request.
#[test]
fn an_endpoint_that_failed_for_lack_of_a_connection_says_so() {
    let builder = EndpointBuilder::new().rails(2).rail_failure(RailFailure::Reroute);
    let mut host = Host::new(&Fabric::threaded(), "mlx5_", 2, &builder);
    let keys = host.buffer.toward(&host.buffer.remote()).unwrap();
    let local = host.buffer.local(0, 4096).unwrap();
    host.endpoint.post_send(&SendWr::write(1, local, host.buffer.addr(), &keys)).unwrap();
    let done = loop {
        if let Some(done) = host.endpoint.poll(1).completions.pop() {
            break done;
        }
    };
    let error = host.endpoint.explain(done.status).to_string();
    let expected = "rail 0 (device mlx5_0) takes no requests before it is connected: connect first";
    assert_eq!(error, expected);
}

#[test]
fn a_refused_post_names_the_device() {
    let (mut a, b) = pair(2, &EndpointBuilder::new().rails(2));
    let mut keys = a.buffer.toward(&b.buffer.remote()).unwrap();
    keys.pop();
    let local = a.buffer.local(0, 4096).unwrap();
    let error = a.endpoint.post_send(&SendWr::write(1, local, b.buffer.addr(), &keys)).unwrap_err();
    assert!(
        error.to_string().contains("register its buffer with the device of every rail"),
        "{error}"
    );
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
