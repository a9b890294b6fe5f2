//! Control channels that break while data moves.

use super::*;
use polyrail::nic::Fault;
use polyrail_faults::Relay;
use std::time::Instant;

/// Number of cuts, and the time for which a channel is there before it is cut.
const CUTS: u64 = 4;
const THERE_FOR: Duration = Duration::from_millis(20);

/// Calls a function with a relay that cuts the control channel a few times once the host's first
/// device has carried more than `after` bytes: a channel cannot be resumed before both sides are
/// connected. Each channel is cut only when it is there, and `then` is called when there is one
/// after the last cut, however long that takes: the function has to go on until then. Returns its
/// result and the number of channels.
fn through_cuts<T>(
    address: &str,
    host: &Host,
    after: u64,
    work: impl FnOnce(&Relay) -> T,
    then: impl FnOnce() + Send,
) -> (T, u64) {
    let relay = Relay::to(address.parse().unwrap()).unwrap();
    let is_over = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            let wait_until = |is_so: &dyn Fn() -> bool| {
                while !is_so() && !is_over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(1));
                }
            };
            let device = host.all_domains()[0].device();
            wait_until(&|| device.carried_bytes() > after);
            for cuts in 1..=CUTS {
                relay.cut();
                wait_until(&|| relay.relayed() > cuts);
                thread::sleep(THERE_FOR);
            }
            then();
        });
        let _over = SetAtEnd(&is_over);
        work(&relay)
    });
    (result, relay.relayed())
}

/// Makes a measurement over a control channel that is cut, until there is one after the last cut.
/// Returns its result and the number of channels.
fn measure_through_cuts(
    config: &PerfConfig,
    address: &str,
    host: &Host,
    meanwhile: impl FnOnce(&Relay, &AtomicBool) + Send,
) -> (Result<Measurement, PerfError>, u64) {
    /// More than the requests that warm up.
    const MEASURED: u64 = 64 << 20;
    let config = PerfConfig { limit: Limit::Time(AGES), ..*config };
    let progress = PerfProgress::default();
    let work = |relay: &Relay| {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| meanwhile(relay, &is_over));
            let _over = SetAtEnd(&is_over);
            measure_to(&config, relay.address().to_string(), host.all_domains(), &progress)
        })
    };
    let then = || progress.interrupted.store(true, Ordering::Relaxed);
    through_cuts(address, host, MEASURED, work, then)
}

#[test]
fn a_measurement_outlives_its_control_channels() {
    let ends = [(Operation::WriteImm, Scheme::Spray), (Operation::Write, Scheme::Dqplb)];
    for (operation, scheme) in ends {
        let config = PerfConfig { operation, scheme, ..PerfConfig::default() };
        let ((measured, links), served) = served(&ServeOptions::default(), 1, |address, host| {
            measure_through_cuts(&config, address, host, |_, _| ())
        });
        let measured = measured.unwrap();
        let [Ok(Served::Perf(there))] = &served[..] else { panic!("{served:?}") };
        assert!(there.requests >= measured.requests && links > CUTS, "{links} links");
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
            assert!(begin.elapsed() < AGES, "served after {cuts} cuts");
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
    let config = PerfConfig { rails: 2, devices: 2, ..PerfConfig::default() };
    let ((measured, links), served) = served(&ServeOptions::default(), 1, |address, host| {
        measure_through_cuts(&config, address, host, |relay, is_over| {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(THERE_FOR);
                // The second half of the channels is for repair.
                if relay.relayed() <= CUTS.div_ceil(2) {
                    host.inject(1, Fault::LinkDown);
                    thread::sleep(THERE_FOR);
                }
                host.inject(1, Fault::LinkUp);
            }
        })
    });
    let measured = measured.unwrap();
    let [Ok(Served::Perf(there))] = &served[..] else { panic!("{served:?}") };
    assert!(there.requests >= measured.requests && links > CUTS, "{links} links");
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
    const BYTES: usize = 8 << 20;
    // While the channels are cut, each short request takes so long that the copy lasts for minutes.
    const LATE: Duration = Duration::from_millis(20);
    let (directory, _, copies) = place_with_source();
    let source = directory.path().join("long");
    let pattern: Vec<u8> =
        (0..BYTES).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&source, &pattern).unwrap();
    let options = CopyOptions { message_size: 1024, window: 1, ..CopyOptions::default() };
    let ((sent, links), received) = served(&ServeOptions::new(&copies), 1, |address, host| {
        let slow_down =
            |late| (0..2).for_each(|rail| host.inject(rail, Fault::DelayCompletions(late)));
        slow_down(LATE);
        let work =
            |relay: &Relay| send(&source, None, &relay.address().to_string(), host, &options);
        through_cuts(address, host, 0, work, || slow_down(Duration::ZERO))
    });
    sent.unwrap();
    assert!(fs::read(&copied(&received[0]).path).unwrap() == pattern);
    assert!(links > CUTS, "{links} links");
}
