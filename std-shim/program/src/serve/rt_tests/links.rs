//! Control channels that break while data moves.

use super::*;
use polyrail::nic::Fault;
use polyrail_faults::Relay;
use std::time::Instant;

/// Time between two cuts, and the number of cuts.
const CUT_EVERY: Duration = Duration::from_millis(60);
const CUTS: u64 = 4;

/// Longer than all cuts take.
const LONG: Duration = Duration::from_millis(700);

/// Calls a function with a relay that cuts the control channel a few times once data moves, since a
/// channel cannot be resumed before both sides are connected. Returns the result and the number of
/// channels.
fn through_cuts<T>(address: &str, host: &Host, work: impl FnOnce(&str) -> T) -> (T, u64) {
    let relay = Relay::to(address.parse().unwrap()).unwrap();
    let is_over = AtomicBool::new(false);
    let goes_on = || !is_over.load(Ordering::Relaxed);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let device = host.all_domains()[0].device();
            while goes_on() && device.carried_bytes() == 0 {
                thread::yield_now();
            }
            for _ in 0..CUTS {
                relay.cut();
                thread::sleep(CUT_EVERY);
            }
        });
        let _over = SetAtEnd(&is_over);
        work(&relay.address().to_string())
    });
    (result, relay.relayed())
}

#[test]
fn a_measurement_outlives_its_control_channels() {
    let ends = [(Operation::WriteImm, Scheme::Spray), (Operation::Write, Scheme::Dqplb)];
    for (operation, scheme) in ends {
        let limit = Limit::Time(LONG);
        let config = PerfConfig { operation, scheme, limit, ..PerfConfig::default() };
        let ((measured, links), served) = served(&ServeOptions::default(), 1, |address, host| {
            through_cuts(address, host, |address| {
                measure_to(&config, address, host.all_domains(), &PerfProgress::default())
            })
        });
        let measured = measured.unwrap();
        let [Ok(Served::Perf(there))] = &served[..] else { panic!("{served:?}") };
        assert!(there.requests >= measured.requests && links > CUTS / 2, "{links} links");
    }
}

/// A peer that has sent its hello, and is never ready.
#[test]
fn a_peer_that_breaks_its_link_again_and_again_is_sent_away() {
    const ANSWER: Duration = Duration::from_secs(1);
    let idle = Duration::from_secs(3);
    let timeouts = PeerTimeouts { answer: ANSWER, idle, ..PeerTimeouts::default() };
    let options = ServeOptions { timeouts, ..ServeOptions::default() };
    let (cuts, served) = served(&options, 1, |address, host| {
        let relay = Relay::to(address.parse().unwrap()).unwrap();
        let address = relay.address().to_string();
        let control = Link::connect(&address, &Timeouts::default()).unwrap();
        let perf = Job::Perf(Workload::new(Operation::Write, 4096, 4).unwrap());
        let session = control.session();
        let (mut control, ..) = say_hello_in(session, control, host, Some(perf));
        control.expect_hello().unwrap();
        let begin = Instant::now();
        let mut cuts = 0;
        loop {
            relay.cut();
            match control.expect(Duration::from_secs(20)) {
                Ok(Message::Resumed {}) => cuts += 1,
                Ok(Message::Ready {}) => {}
                Ok(message) => panic!("{message:?}"),
                Err(_) => break,
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "served after {cuts} cuts");
            thread::sleep(ANSWER / 5);
        }
        assert!(begin.elapsed() >= ANSWER, "{:?}", begin.elapsed());
        cuts
    });
    let error = Chain(served[0].as_ref().unwrap_err()).to_string();
    assert!(error.contains("should have sent \"ready\"") && cuts > 1, "{cuts} cuts: {error}");
}

/// Messages between the two ends about their rails are lost with the channel, and sent again over
/// the next channel.
#[test]
fn rails_fail_and_return_though_the_control_channel_breaks() {
    let limit = Limit::Time(LONG);
    let config = PerfConfig { rails: 2, devices: 2, limit, ..PerfConfig::default() };
    let progress = PerfProgress::default();
    let ((measured, links), served) = served(&ServeOptions::default(), 1, |address, host| {
        through_cuts(address, host, |address| {
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let begin = Instant::now();
                    while !is_over.load(Ordering::Relaxed) {
                        thread::sleep(CUT_EVERY / 3);
                        // The second half of the time is for repair.
                        if begin.elapsed() < LONG / 2 {
                            host.inject(1, Fault::LinkDown);
                            thread::sleep(CUT_EVERY / 3);
                        }
                        host.inject(1, Fault::LinkUp);
                    }
                });
                let _over = SetAtEnd(&is_over);
                measure_to(&config, address, host.all_domains(), &progress)
            })
        })
    });
    let measured = measured.unwrap();
    let [Ok(Served::Perf(there))] = &served[..] else { panic!("{served:?}") };
    assert!(there.requests >= measured.requests && links > CUTS / 2, "{links} links");
}

/// No path is found while the two sides are brought up: neither with rails that take over, nor with
/// a single one.
#[test]
fn a_file_arrives_though_paths_are_found_late() {
    let (_directory, source, copies) = place_with_source();
    for rails in [4, 1] {
        let options = CopyOptions { rails, ..CopyOptions::default() };
        let (sent, received) = served(&ServeOptions::new(&copies), 1, |address, host| {
            (0..2).for_each(|device| host.inject(device, Fault::RefuseRtr { transitions: 3 }));
            send(&source, None, address, host, &options)
        });
        sent.unwrap();
        assert_eq!(fs::read(&copied(&received[0]).path).unwrap(), fs::read(&source).unwrap());
    }
}

#[test]
fn a_file_arrives_whole_though_control_channels_break() {
    let (directory, _, copies) = place_with_source();
    let source = directory.path().join("long");
    // With requests this short, the copy usually takes longer than the cuts. If not, a longer one
    // does.
    let options = CopyOptions { message_size: 1024, window: 1, ..CopyOptions::default() };
    let copy = |bytes: usize| {
        let pattern: Vec<u8> =
            (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(&source, &pattern).unwrap();
        let ((sent, links), received) = served(&ServeOptions::new(&copies), 1, |address, host| {
            through_cuts(address, host, |address| send(&source, None, address, host, &options))
        });
        sent.unwrap();
        assert!(fs::read(&copied(&received[0]).path).unwrap() == pattern);
        links
    };
    let links = (24..28).map(|bits| copy(1 << bits)).find(|links| *links > CUTS / 2);
    assert!(links.is_some(), "fewer than {} links", CUTS / 2);
}
