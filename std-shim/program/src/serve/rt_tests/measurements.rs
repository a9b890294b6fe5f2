//! Measurements between two hosts.

use super::*;
use crate::job::Back;
use crate::perf::{ATOMIC_SIZE, measure_latency_to};
use crate::session::RailRepair;
use polyrail::nic::Fault;
use polyrail::verbs::RecvWr;
use polyrail::virtual_qp::RailFailure;

/// A short measurement.
fn quick(operation: Operation, scheme: Scheme, rails: usize, message_size: u32) -> PerfConfig {
    let limit = Limit::Count(40);
    PerfConfig { operation, scheme, rails, message_size, limit, ..PerfConfig::default() }
}

fn measure_here(config: &PerfConfig, address: &str, host: &Host) -> Result<Measurement, PerfError> {
    measure_to(config, address, host.all_domains(), &PerfProgress::default())
}

#[test]
fn every_operation_is_measured_between_two_sides() {
    let mut lines = Vec::new();
    for operation in Operation::ALL {
        for scheme in [Scheme::Spray, Scheme::Dqplb] {
            for (rails, message_size) in [(1, 1), (3, 70_000), (8, 1 << 20)] {
                let message_size = if operation.is_atomic() { ATOMIC_SIZE } else { message_size };
                lines.push(quick(operation, scheme, rails, message_size));
            }
        }
    }
    // Without a destination, since measurements need none.
    let (measured, served) = served(&ServeOptions::default(), lines.len(), |address, host| {
        lines.iter().map(|line| measure_here(line, address, host).unwrap()).collect::<Vec<_>>()
    });
    for ((line, measured), served) in lines.iter().zip(measured).zip(served) {
        assert!(measured.requests == 40 && measured.all.gigabytes_per_second > 0.0, "{line:?}");
        let Ok(Served::Perf(there)) = served else { panic!("{line:?}: {served:?}") };
        let Shape { rails, devices, message_size, window, .. } = there.shape;
        assert_eq!(there.operation, line.operation);
        assert_eq!((message_size, window), (line.message_size.into(), 8));
        assert_eq!((rails, devices), (line.rails, line.rails.min(2)));
        // The measured requests, after two windows and 16 requests to warm up.
        assert_eq!(there.requests, 40 + 32, "{line:?}");
    }
}

#[test]
fn answers_are_measured_between_two_sides() {
    let mut lines = Operation::ALL.map(|operation| quick(operation, Scheme::Spray, 2, 8)).to_vec();
    let inline = |operation| PerfConfig { inline: 8, ..quick(operation, Scheme::Spray, 1, 8) };
    lines.extend([Operation::Write, Operation::WriteImm, Operation::Send].map(inline));
    let (measured, served) = served(&ServeOptions::default(), lines.len(), |address, host| {
        let progress = PerfProgress::default();
        let measure = |line: &PerfConfig| {
            measure_latency_to(line, address, host.all_domains(), &progress).unwrap()
        };
        lines.iter().map(measure).collect::<Vec<_>>()
    });
    for ((line, measured), served) in lines.iter().zip(measured).zip(served) {
        assert!(measured.round_trips == 40 && measured.min_ns > 0.0, "{line:?}");
        let Ok(Served::Perf(there)) = served else { panic!("{line:?}: {served:?}") };
        // The measured requests, after 200 requests to warm up.
        assert_eq!((there.operation, there.requests), (line.operation, 240));
    }
}

#[test]
fn both_directions_are_measured_between_two_sides() {
    for operation in Operation::ALL {
        for rails in [1, 3] {
            let message_size = if operation.is_atomic() { ATOMIC_SIZE } else { 70_000 };
            let line = quick(operation, Scheme::Dqplb, rails, message_size);
            let measure = |time| {
                let limit = Limit::Time(time);
                let line = PerfConfig { bidirectional: true, limit, ..line };
                served(&ServeOptions::default(), 1, |address, host| {
                    measure_here(&line, address, host).unwrap()
                })
            };
            // On a machine that is busy with something else, a thread may not run for a while.
            let mut tries = [50, 500, 5_000].map(Duration::from_millis).into_iter().map(measure);
            let both = |(measured, _): &(Measurement, _)| {
                [measured.there, measured.back]
                    .iter()
                    .all(|rate| rate.unwrap().requests_per_second > 0.0)
            };
            let (measured, served) = tries.find(both).unwrap();
            assert!(measured.requests > 0, "{line:?}");
            let [Ok(Served::Perf(there))] = &served[..] else { panic!("{line:?}: {served:?}") };
            assert_eq!((there.operation, there.requests), (operation, measured.requests + 32));
        }
    }
}

/// A far end that does not report what it has posted, or reports more than arrived.
#[test]
fn a_far_end_that_miscounts_its_own_requests_is_contradicted() {
    let line = quick(Operation::WriteImm, Scheme::Spray, 4, 64);
    let config = PerfConfig { bidirectional: true, ..line };
    let end = |back: Option<Back>| {
        far_end(&config, |mut control, endpoint| {
            let mut arrived = 0;
            let mut sent = None;
            while sent != Some(arrived) {
                while endpoint.post_recv(&RecvWr::notification(0)).is_ok() {}
                arrived += endpoint.poll(64).completions.len() as u64;
                if let Ok(Some(Message::Done(outcome))) = control.try_recv() {
                    sent = outcome.requests();
                }
            }
            control.send(&Message::Done(JobOutcome::Perf { requests: arrived, back })).unwrap();
            while !matches!(control.try_recv(), Err(LinkError::HungUp { .. })) {}
        })
    };
    let error = end(None);
    assert!(Chain(&error).to_string().contains("for another kind of job"), "{error}");
    let error = end(Some(Back { posted: 3, completed: 3, nanoseconds: 1 }));
    assert!(matches!(error, PerfError::Lost { sent: 3, received: 0 }), "{error}");
}

/// The operation determines the kind of endpoint.
#[test]
fn a_near_end_with_the_wrong_endpoint_is_sent_away() {
    let messages = Job::Perf(Workload::new(Operation::P2p, 4096, 4).unwrap());
    let (text, served) = served(&ServeOptions::default(), 1, |address, host| {
        let mut control = Link::connect(address, &Timeouts::default()).unwrap();
        let builder = CopyOptions::default().builder();
        let endpoint: Endpoint = builder.build(&host.domains()).unwrap();
        let ring = RegisteredBuffer::new(16 << 20, ALL_ACCESS, &host.domains()).unwrap();
        let reach = endpoint.address().into();
        let buffer = ring.remote();
        let hello = Hello { reach, buffer, purpose: Some(messages.clone()), session: None };
        control.send(&Message::Hello(hello)).unwrap();
        reported(&mut control)
    });
    let expected = "the peer has an endpoint for requests, and this side one for messages";
    assert!(text.contains(expected), "{text}");
    assert!(matches!(served[0], Err(ServeError::Perf(PerfError::Session(_)))));
}

#[test]
fn a_measurement_over_time_goes_to_another_side_too() {
    let config = quick(Operation::WriteImm, Scheme::Dqplb, 3, 70_000);
    let (timeline, served) = served(&ServeOptions::default(), 1, |address, host| {
        let progress = PerfProgress::default();
        measure_over_time_to(&config, None, address, host.all_domains(), &progress, || ()).unwrap()
    });
    assert_eq!(timeline.rails, ["rail 0 (tx0)", "rail 1 (tx1)", "rail 2 (tx0)"]);
    assert_eq!(timeline.samples.last().unwrap().completed, 40 * 70_000);
    let [Ok(Served::Perf(there))] = &served[..] else { panic!("{served:?}") };
    assert_eq!(there.requests, 40 + 32);
}

#[test]
fn files_and_measurements_come_in_any_order() {
    let (_directory, source, copies) = place_with_source();
    let (_, served) = served(&ServeOptions::new(&copies), 3, |address, host| {
        let perf = quick(Operation::WriteImm, Scheme::Spray, 4, 4096);
        measure_here(&perf, address, host).unwrap();
        send(&source, None, address, host, &CopyOptions::default()).unwrap();
        measure_here(&perf, address, host).unwrap();
    });
    assert!(matches!(served[..], [Ok(Served::Perf(_)), Ok(Served::Copy(_)), Ok(Served::Perf(_))]));
    assert_eq!(names(&copies), ["source"]);
}

#[test]
fn a_server_without_a_destination_takes_no_files() {
    let (_directory, source, _) = place_with_source();
    let (sent, served) = served(&ServeOptions::default(), 1, |address, host| {
        let sent = send(&source, None, address, host, &CopyOptions::default());
        Chain(&sent.unwrap_err()).to_string()
    });
    assert!(matches!(served[0], Err(ServeError::Copy(CopyError::NoDestination))));
    assert!(sent.contains("accepts no files"), "{sent}");
}

#[test]
fn memory_of_a_measurement_has_the_same_limit() {
    let limited = ServeOptions { max_memory: 1 << 20, ..ServeOptions::default() };
    let (error, served) = served(&limited, 2, |address, host| {
        let large = quick(Operation::Read, Scheme::Spray, 2, 1 << 20);
        let error = Chain(&measure_here(&large, address, host).unwrap_err()).to_string();
        measure_here(&PerfConfig { window: 1, ..large }, address, host).unwrap();
        error
    });
    let text = "the other side reports: the peer requires 8388608 bytes of memory on this host";
    assert!(error.starts_with(text), "{error}");
    assert!(matches!(
        served[0],
        Err(ServeError::Perf(PerfError::Session(SessionError::TooMuchMemory { .. })))
    ));
    assert!(served[1].is_ok());
}

#[test]
fn a_near_end_that_goes_away_does_not_affect_the_next_one() {
    let operations = [Operation::Write, Operation::Send];
    let (_, served) = served(&ServeOptions::default(), 3, |address, host| {
        for operation in operations {
            let perf = Job::Perf(Workload::new(operation, 4096, 4).unwrap());
            ask(address, host, Some(perf), |_| ());
        }
        let next = quick(Operation::Send, Scheme::Spray, 2, 4096);
        measure_here(&next, address, host).unwrap();
    });
    for served in &served[..2] {
        assert!(
            Chain(served.as_ref().unwrap_err()).to_string().contains("closed the link"),
            "{served:?}"
        );
    }
    assert!(served[2].is_ok());
}

#[test]
fn a_near_end_that_counts_wrong_is_contradicted() {
    let done = |requests| Message::Done(JobOutcome::Perf { requests, back: None });
    let lie = |message: Message| {
        move |control: &mut Link| {
            control.send(&message).unwrap();
            reported(control)
        }
    };
    let (texts, served) = served(&ServeOptions::default(), 2, |address, host| {
        let perf = |operation| Job::Perf(Workload::new(operation, 4096, 4).unwrap());
        let sum = Message::Done(JobOutcome::Copy(crate::job::Sum::default()));
        [
            ask(address, host, Some(perf(Operation::Send)), lie(done(5))),
            ask(address, host, Some(perf(Operation::Write)), lie(sum)),
        ]
    });
    assert!(texts[0].contains("5 requests were sent, but 0 arrived"), "{}", texts[0]);
    assert!(matches!(served[0], Err(ServeError::Perf(PerfError::Lost { sent: 5, received: 0 }))));
    assert!(texts[1].contains("for another kind of job than requested"), "{}", texts[1]);
}

/// Runs a far end that serves one measurement with `then`, and returns the near end's error.
fn far_end(config: &PerfConfig, then: impl FnOnce(Link, &mut Endpoint) + Send) -> PerfError {
    let (here, there) = software_hosts(2).unwrap();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::scope(|scope| {
        scope.spawn(|| {
            let Arrival { link: mut control, hello, .. } = arrival(&listener);
            let domains = there.domains();
            let polyrail::endpoint::Address { scheme, card, .. } = hello.reach.requests().unwrap();
            let options = CopyOptions { rails: card.qp_nums.len(), ..CopyOptions::default() };
            let builder = options.builder().scheme(*scheme).rail_failure(card.rail_failure);
            let mut endpoint: Endpoint = builder.build(&domains).unwrap();
            let ring = RegisteredBuffer::new(16 << 20, ALL_ACCESS, &domains).unwrap();
            let address = endpoint.address();
            let buffer = ring.remote();
            let answer = Hello { reach: address.into(), buffer, purpose: None, session: None };
            // A near end that has given up says why.
            if control.send(&Message::Hello(answer)).is_ok()
                && bring_up(&mut endpoint, &mut control, &hello, |_| Ok::<(), SessionError>(()))
                    .is_ok()
            {
                then(control, &mut endpoint);
            }
        });
        measure_here(config, &address, &here).unwrap_err()
    })
}

#[test]
fn a_far_end_that_goes_away_or_gives_up_is_noticed_though_the_rails_work() {
    let endless = PerfConfig {
        limit: Limit::Time(Duration::from_secs(600)),
        ..quick(Operation::Write, Scheme::Spray, 4, 4096)
    };
    let error = far_end(&endless, |control, endpoint| {
        drop(control);
        // Its queue pairs outlive the control channel.
        thread::sleep(Duration::from_millis(300));
        endpoint.give_up(Duration::ZERO);
    });
    assert_eq!(Chain(&error).to_string(), "the peer closed the link");
    let error = far_end(&endless, |mut control, _| {
        control.send(&Message::Failed { reason: Reason::new("no time") }).unwrap();
    });
    assert_eq!(Chain(&error).to_string(), "the other side reports: no time");
}

#[test]
fn a_near_end_does_not_wait_forever_for_a_quiet_far_end() {
    let no_answer = "the peer did not answer within TIMEOUT: it should have sent \"done\"";
    let silent = "fell silent: no progress for TIMEOUT";
    for (operation, text) in [
        (Operation::Write, no_answer),
        (Operation::Read, no_answer),
        (Operation::WriteImm, silent),
        (Operation::Send, silent),
    ] {
        let mut told = Vec::new();
        // On a busy machine the peer may take longer for its part of the set-up.
        let is_told = [300, 3_000, 30_000].map(Duration::from_millis).into_iter().any(|timeout| {
            let config = PerfConfig {
                rail_repair: RailRepair {
                    rail_failure: RailFailure::Fatal,
                    stall_timeout: timeout,
                    ..RailRepair::default()
                },
                answer_timeout: timeout,
                ..quick(operation, Scheme::Spray, 4, 64)
            };
            let error = far_end(&config, |mut control, _| {
                // It has no receives, and ignores all messages.
                while !matches!(control.try_recv(), Err(LinkError::HungUp { .. })) {
                    thread::sleep(Duration::from_millis(10));
                }
            });
            told.push(Chain(&error).to_string());
            told.last().is_some_and(|said| {
                said.contains(&text.replace("TIMEOUT", &format!("{timeout:?}")))
            })
        });
        assert!(is_told, "{operation:?}: {told:?}");
    }
}

#[test]
fn a_side_that_waits_for_an_answer_sees_an_interrupt() {
    let (here, _there) = software_hosts(2).unwrap();
    let (_directory, source, _) = place_with_source();
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let timeouts = PeerTimeouts { answer: Duration::from_secs(600), ..PeerTimeouts::default() };
    let options = CopyOptions { timeouts, ..CopyOptions::default() };
    let progress = CopyProgress::default();
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            let mut control = arrival(&listener).link;
            progress.interrupted.store(true, Ordering::Relaxed);
            let reported = reported(&mut control);
            assert!(reported.contains("gave up: interrupted"), "{reported}");
        });
        let domains = here.all_domains();
        send_to(&source, None, &address, domains, &options, &progress, || ()).unwrap_err()
    });
    assert_eq!(Chain(&error).to_string(), "sender: interrupted by a signal");
}

#[test]
fn a_far_end_that_counts_wrong_is_contradicted() {
    let config = quick(Operation::Write, Scheme::Spray, 4, 4096);
    let error = far_end(&config, |mut control, _| {
        // It cannot have seen a WRITE.
        while !matches!(control.try_recv(), Ok(Some(Message::Done(_)))) {}
        control.send(&Message::Done(JobOutcome::Perf { requests: 1, back: None })).unwrap();
        while !matches!(control.try_recv(), Err(LinkError::HungUp { .. })) {}
    });
    assert!(matches!(error, PerfError::Lost { sent: 0, received: 1 }), "{error}");
}

#[test]
fn a_busy_near_end_is_not_mistaken_for_an_idle_one() {
    // Rounds and memcpy together take twice the limit; between them no side is silent for long.
    let timeouts = PeerTimeouts { idle: Duration::from_millis(4500), ..PeerTimeouts::default() };
    let options = ServeOptions { timeouts, ..ServeOptions::default() };
    let (_, served) = served(&options, 1, |address, host| {
        let limit = Limit::Time(Duration::from_secs(3));
        let config = PerfConfig { limit, ..quick(Operation::Write, Scheme::Spray, 4, 4096) };
        measure_here(&config, address, host).unwrap();
    });
    assert!(served[0].is_ok(), "{served:?}");
}

/// Both ends count the requests until then, and agree.
#[test]
fn a_measurement_that_is_interrupted_ends_in_order_at_both_ends() {
    for operation in [Operation::WriteImm, Operation::Read, Operation::P2p] {
        let limit = Limit::Time(Duration::from_secs(600));
        let config = PerfConfig { limit, ..quick(operation, Scheme::Spray, 4, 4096) };
        let (timeline, served) = served(&ServeOptions::default(), 1, |address, host| {
            let progress = PerfProgress::default();
            let domains = host.all_domains();
            let interval = Some(Duration::from_millis(10));
            let mut samples = 0;
            let watch = || {
                samples += progress.samples.take().len();
                progress.interrupted.fetch_or(samples > 1, Ordering::Relaxed);
            };
            measure_over_time_to(&config, interval, address, domains, &progress, watch).unwrap()
        });
        let [Ok(Served::Perf(there))] = &served[..] else { panic!("{served:?}") };
        assert!(there.requests > timeline.requests && timeline.requests > 0);
    }
}

/// A rail falls silent, so requests stay in flight, and the counts of the two ends cannot agree.
#[test]
fn an_interrupt_keeps_what_was_measured_before_a_rail_fell_silent() {
    let stall_timeout = Duration::from_secs(600);
    let rail_repair = RailRepair { stall_timeout, ..RailRepair::default() };
    let options = ServeOptions { rail_repair, ..ServeOptions::default() };
    let limit = Limit::Time(Duration::from_secs(600));
    let quick = quick(Operation::WriteImm, Scheme::Spray, 4, 4096);
    let config = PerfConfig { limit, rail_repair, ..quick };
    let (timeline, served) = served(&options, 1, |address, host| {
        let progress = PerfProgress::default();
        let interval = Some(Duration::from_millis(10));
        let mut completed = Vec::new();
        let watch = || {
            completed.extend(progress.samples.take().iter().map(|sample| sample.completed));
            if completed.len() > 1 {
                host.inject(1, Fault::Silent(true));
            }
            let last = completed.rchunks(200).next().unwrap_or_default();
            let is_still = last.len() == 200 && last[0] > 0 && last[0] == last[199];
            progress.interrupted.fetch_or(is_still, Ordering::Relaxed);
        };
        let domains = host.all_domains();
        measure_over_time_to(&config, interval, address, domains, &progress, watch).unwrap()
    });
    assert!(timeline.requests > 0, "{timeline:?}");
    let there = Chain(served[0].as_ref().unwrap_err()).to_string();
    assert_eq!(there, "the other side reports: interrupted by a signal");
}

/// All rails fall silent, so a round trip never ends. Those before it count.
#[test]
fn an_interrupt_keeps_the_latencies_before_the_rails_fell_silent() {
    let stall_timeout = Duration::from_secs(600);
    let rail_repair = RailRepair { stall_timeout, ..RailRepair::default() };
    let options = ServeOptions { rail_repair, ..ServeOptions::default() };
    let limit = Limit::Time(Duration::from_secs(600));
    let config =
        PerfConfig { limit, rail_repair, ..quick(Operation::WriteImm, Scheme::Spray, 2, 8) };
    let measure = |wait: Duration| {
        let (measured, served) = served(&options, 1, |address, host| {
            let progress = PerfProgress::default();
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(wait);
                    (0..2).for_each(|rail| host.inject(rail, Fault::Silent(true)));
                    thread::sleep(wait);
                    progress.interrupted.store(true, Ordering::Relaxed);
                });
                measure_latency_to(&config, address, host.all_domains(), &progress)
            })
        });
        let there = Chain(served[0].as_ref().err()?).to_string();
        assert_eq!(there, "the other side reports: interrupted by a signal");
        Some(measured)
    };
    // A machine that is busy with something else may have measured nothing by then.
    let waits = [300, 3000, 30_000].map(Duration::from_millis);
    let measured = waits.into_iter().filter_map(measure).find_map(Result::ok).unwrap();
    assert!(measured.round_trips > 0 && measured.min_ns > 0.0, "{measured:?}");
}

#[test]
fn an_interrupt_during_the_set_up_ends_a_measurement() {
    let config = quick(Operation::Read, Scheme::Spray, 4, 4096);
    let (error, ..) = run_server(&ServeOptions::default(), 1, |address, host| {
        let progress = PerfProgress::default();
        progress.interrupted.store(true, Ordering::Relaxed);
        measure_to(&config, address, host.all_domains(), &progress).unwrap_err()
    });
    assert!(matches!(error, PerfError::Session(SessionError::Interrupted)), "{error}");
}
