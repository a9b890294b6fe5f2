//! Measurements within one process.

use super::ping_pong::{Player as _, play};
use super::rig::Rig;
use super::*;
use crate::fault::Side;
use crate::hosts::hosts_with_rate;
use crate::session::{RailRepair, SessionError};
use polyrail::endpoint::{Endpoint, RailWeights};
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::p2p::SplitPolicy;
use polyrail::virtual_qp::{RailChoice, RailFailure, RailId, Scheme};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn here(config: &PerfConfig) -> Result<Measurement, PerfError> {
    measure(config, &PerfProgress::default())
}

#[test]
fn counts_are_what_the_scheme_costs() {
    let quick = PerfConfig { limit: Limit::Count(50), ..PerfConfig::default() };
    // Per request: four batches, one for each rail, and the notify.
    let spray = here(&quick).unwrap();
    assert_eq!((spray.requests, spray.doorbells_per_request.round()), (50, 5.0));
    let dqplb = here(&PerfConfig { scheme: Scheme::Dqplb, ..quick }).unwrap();
    assert_eq!(dqplb.doorbells_per_request.round(), 4.0);
    let send = here(&PerfConfig { operation: Operation::Send, ..quick }).unwrap();
    assert_eq!((send.doorbells_per_request, send.completions_per_request), (1.0, 1.0));
}

#[test]
fn every_operation_runs_with_one_thread_and_with_two() {
    for operation in Operation::ALL {
        for threads in [Threads::One, Threads::Two] {
            for (rails, message_size) in [(1, 1), (3, 70_000)] {
                let message_size = if operation.is_atomic() { ATOMIC_SIZE } else { message_size };
                let limit = Limit::Count(40);
                let config = PerfConfig {
                    operation,
                    threads,
                    rails,
                    message_size,
                    limit,
                    devices: rails,
                    ..PerfConfig::default()
                };
                let measured = here(&config).unwrap();
                assert_eq!(measured.requests, 40, "{config:?}");
                assert!(measured.relative_to_memcpy > 0.0);
            }
        }
    }
}

#[test]
fn answers_are_measured_with_one_thread_and_with_two() {
    for operation in Operation::ALL {
        for threads in [Threads::One, Threads::Two] {
            for (rails, message_size, inline) in [(1, 8, 0), (1, 8, 8), (3, 70_000, 0)] {
                let limit = Limit::Count(300);
                let message_size = if operation.is_atomic() { ATOMIC_SIZE } else { message_size };
                // The receiver cannot detect when a split WRITE is complete.
                let max_msg_size = 128 << 10;
                let shape = PerfConfig { rails, devices: rails, inline, ..PerfConfig::default() };
                let shape = PerfConfig { max_msg_size, message_size, ..shape };
                let config = PerfConfig { operation, threads, limit, ..shape };
                let latency = measure_latency(&config, &PerfProgress::default()).unwrap();
                let Latency { min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns, .. } = latency;
                assert_eq!(latency.round_trips, 300, "{config:?}");
                assert_eq!(latency.halved, !operation.fetches());
                let times = [min_ns, p50_ns, p90_ns, p99_ns, p999_ns, max_ns];
                assert!(min_ns > 0.0 && times.is_sorted(), "{config:?}: {latency:?}");
            }
        }
    }
}

#[test]
fn what_no_receiver_could_see_is_refused() {
    let split = PerfConfig { operation: Operation::Write, ..PerfConfig::default() };
    let error = measure_latency(&split, &PerfProgress::default()).unwrap_err();
    assert!(error.to_string().contains("over 4 rails: it is split into fragments of up to 65536"));
    for whole in [
        PerfConfig { rails: 1, ..split },
        PerfConfig { max_msg_size: split.message_size, ..split },
        PerfConfig { message_size: split.max_msg_size, ..split },
    ] {
        let quick = PerfConfig { limit: Limit::Count(10), ..whole };
        measure_latency(&quick, &PerfProgress::default()).unwrap();
    }
}

/// Each operation over one rail and over several, with one thread and with two.
#[test]
fn both_directions_are_measured_at_once() {
    for operation in Operation::ALL {
        for (threads, rails) in [(Threads::One, 1), (Threads::One, 3), (Threads::Two, 3)] {
            let message_size = if operation.is_atomic() { ATOMIC_SIZE } else { 70_000 };
            let config = PerfConfig {
                operation,
                threads,
                rails,
                message_size,
                bidirectional: true,
                devices: rails,
                ..PerfConfig::default()
            };
            let measure = |millis| {
                let limit = Limit::Time(Duration::from_millis(millis));
                let measured = here(&PerfConfig { limit, ..config }).unwrap();
                let (there, back) = (measured.there.unwrap(), measured.back.unwrap());
                (measured, there, back)
            };
            // One thread serves both ends in turn, so neither may be much slower.
            let is_even = |there: &Rate, back: &Rate| {
                let ratio = back.requests_per_second / there.requests_per_second;
                threads == Threads::Two || (0.5..2.0).contains(&ratio)
            };
            // On a machine that is busy with something else, a thread may not run for a while.
            let mut measured = [50, 500, 5000].into_iter().map(measure);
            let both = |(_, there, back): &(_, Rate, Rate)| {
                there.gigabytes_per_second > 0.0
                    && back.gigabytes_per_second > 0.0
                    && is_even(there, back)
            };
            let (measured, there, back) = measured.find(both).unwrap();
            let Measurement { requests, all, .. } = measured;
            assert!(requests > 0, "{config:?}");
            let sum = there.requests_per_second + back.requests_per_second;
            assert!((all.requests_per_second / sum - 1.0).abs() < 1e-9, "{all:?}");
        }
    }
    let one_way = here(&PerfConfig { limit: Limit::Count(10), ..PerfConfig::default() }).unwrap();
    assert_eq!((one_way.there, one_way.back), (None, None));
}

#[test]
fn both_directions_are_throughput_in_rounds_only() {
    let both = PerfConfig { bidirectional: true, message_size: 8, ..PerfConfig::default() };
    let progress = PerfProgress::default();
    let latency = measure_latency(&both, &progress).unwrap_err();
    let over_time = measure_over_time(&both, None, &[], &progress, || ()).unwrap_err();
    for error in [latency, over_time] {
        assert!(matches!(error, PerfError::Workload(WorkloadError::OneDirection)), "{error}");
    }
}

#[test]
fn inline_bytes_are_refused_where_they_cannot_be() {
    let quick = PerfConfig { limit: Limit::Count(20), message_size: 64, ..PerfConfig::default() };
    let inline = PerfConfig { inline: 64, ..quick };
    let error = here(&inline).unwrap_err();
    assert!(matches!(error, PerfError::Workload(WorkloadError::InlineReroutes { rails: 4 })));
    let rail_repair = RailRepair { rail_failure: RailFailure::Fatal, ..RailRepair::default() };
    // Over several rails that are not re-routed; over one; of requests that are too long; of READs.
    here(&PerfConfig { rail_repair, ..inline }).unwrap();
    here(&PerfConfig { rails: 1, ..inline }).unwrap();
    here(&PerfConfig { message_size: 65, ..inline }).unwrap();
    here(&PerfConfig { operation: Operation::Read, ..inline }).unwrap();
    here(&PerfConfig { operation: Operation::P2p, ..inline }).unwrap();
    let error = here(&PerfConfig { rails: 1, inline: 1024, ..quick }).unwrap_err();
    let said = polyrail::chain::Chain(&error).to_string();
    assert!(
        said.starts_with("device tx0: 1024 bytes of inline data exceed what the device supports: "),
        "{said}"
    );
    let error = here(&PerfConfig { inline: MAX_INLINE + 1, ..quick }).unwrap_err();
    assert!(matches!(error, PerfError::Workload(WorkloadError::Inline(4097))), "{error}");
}

#[test]
fn rail_weights_reach_both_kinds_of_endpoints() {
    let fabric = Fabric::threaded();
    let devices = [3, 1].map(|rate| {
        let bytes_per_second = NonZeroU64::new(rate * 1_000_000_000);
        let name = format!("rate{rate}");
        let config = DeviceConfig { bytes_per_second, ..DeviceConfig::named(name) };
        fabric.create_device(config).alloc_pd().unwrap()
    });
    for (rail_weights, follows) in [(RailWeights::Auto, true), (RailWeights::Equal, false)] {
        let config = PerfConfig { rails: 2, devices: 2, rail_weights, ..PerfConfig::default() };
        let requests: Endpoint =
            config.builder(&config.workload().unwrap()).build(&devices).unwrap();
        let choice = requests.virtual_qp().config().rail_choice;
        assert_eq!(choice != RailChoice::RoundRobin, follows, "{rail_weights:?}: {choice:?}");
        let config = PerfConfig { operation: Operation::P2p, ..config };
        let messages = config.p2p_builder(&config.workload().unwrap()).build(&devices).unwrap();
        let split = messages.sender().unwrap().config().split;
        assert_eq!(split != SplitPolicy::Even, follows, "{rail_weights:?}: {split:?}");
    }
}

#[test]
fn measured_weights_need_rails_that_are_rerouted() {
    let limit = Limit::Count(20);
    let quick = PerfConfig { limit, rail_weights: RailWeights::Measured, ..PerfConfig::default() };
    let rail_repair = RailRepair { rail_failure: RailFailure::Fatal, ..RailRepair::default() };
    for config in
        [PerfConfig { rail_repair, ..quick }, PerfConfig { operation: Operation::P2p, ..quick }]
    {
        let error = here(&config).unwrap_err();
        assert!(matches!(error, PerfError::Workload(WorkloadError::MeasuredWeights)), "{error}");
        here(&PerfConfig { rail_weights: RailWeights::Rates, ..config }).unwrap();
        // One rail has no weight.
        here(&PerfConfig { rails: 1, devices: 1, ..config }).unwrap();
    }
    here(&quick).unwrap();
}

/// A message is one request: a doorbell and a completion at most.
#[test]
fn short_messages_are_one_request_each() {
    let limit = Limit::Count(500);
    let config = PerfConfig {
        operation: Operation::P2p,
        limit,
        message_size: 8,
        rails: 1,
        devices: 1,
        ..PerfConfig::default()
    };
    let measured = here(&config).unwrap();
    assert_eq!((measured.requests, measured.doorbells_per_request), (500, 1.0));
    assert!(measured.completions_per_request <= 1.0, "{measured:?}");
}

#[test]
fn a_rail_that_fails_ends_a_measurement_of_messages() {
    let limit = Limit::Time(Duration::from_secs(60));
    let config =
        PerfConfig { operation: Operation::P2p, qp_timeout: 10, limit, ..PerfConfig::default() };
    let faults = ["2:1M:cut".parse().unwrap()];
    let error =
        measure_over_time(&config, None, &faults, &PerfProgress::default(), || ()).unwrap_err();
    assert!(matches!(error, PerfError::Session(SessionError::Messages(_))), "{error}");
}

#[test]
fn messages_that_make_no_progress_end_a_measurement() {
    let stall_timeout = Duration::from_millis(200);
    let rail_repair = RailRepair { stall_timeout, ..RailRepair::default() };
    let limit = Limit::Time(Duration::from_secs(60));
    let config =
        PerfConfig { operation: Operation::P2p, rail_repair, limit, ..PerfConfig::default() };
    let faults = ["2:1M:silent".parse().unwrap()];
    let measured = measure_over_time(&config, None, &faults, &PerfProgress::default(), || ());
    let error = measured.unwrap_err();
    assert!(matches!(error, PerfError::Session(SessionError::MessagesStalled { .. })), "{error}");
}

#[test]
fn time_limits_end() {
    let limit = Limit::Time(Duration::from_millis(10));
    let config = PerfConfig { message_size: 4096, limit, ..PerfConfig::default() };
    assert!(here(&config).unwrap().requests > 0);
}

#[test]
fn impossible_configurations_are_refused() {
    let config = PerfConfig { rails: 9, ..PerfConfig::default() };
    assert!(matches!(here(&config), Err(PerfError::Session(SessionError::Build(_)))));
    let config = PerfConfig { window: 0, ..PerfConfig::default() };
    assert!(matches!(here(&config), Err(PerfError::Workload(WorkloadError::Window(0)))));
    let config = PerfConfig { window: 257, ..PerfConfig::default() };
    assert!(matches!(here(&config), Err(PerfError::Workload(WorkloadError::Window(257)))));
    let config = PerfConfig { operation: Operation::FetchAdd, ..PerfConfig::default() };
    let error = here(&config).unwrap_err().to_string();
    assert_eq!(error, "the request size is 1048576 bytes, but fetch-add always has 8");
}

#[test]
fn a_measurement_over_time_has_samples_of_each_rail() {
    for threads in [Threads::One, Threads::Two] {
        let measure = |millis| {
            let limit = Limit::Time(Duration::from_millis(millis));
            let shape = PerfConfig { rails: 3, devices: 3, ..PerfConfig::default() };
            let config = PerfConfig { threads, limit, ..shape };
            measure_over_time(&config, None, &[], &PerfProgress::default(), || ()).unwrap()
        };
        // On a machine that is busy with something else, a device may carry nothing for a while.
        let has_all = |timeline: &Timeline| {
            let samples = &timeline.samples;
            samples.len() > 2
                && samples.last().is_some_and(|last| last.rails.iter().all(|&bytes| bytes > 0))
        };
        let timeline = [100, 1_000, 10_000].into_iter().map(measure).find(has_all);
        let timeline = timeline.expect("some samples, and something of each rail");
        assert_eq!(timeline.rails, ["rail 0 (tx0)", "rail 1 (tx1)", "rail 2 (tx2)"]);
        assert!(timeline.marks.is_empty());
        let Timeline { samples, requests, .. } = &timeline;
        assert!(samples.is_sorted_by(|a, b| a.at < b.at && a.completed <= b.completed));
        assert_eq!(samples[0], Sample { at: samples[0].at, completed: 0, rails: vec![0; 3] });
        let last = samples.last().unwrap();
        assert_eq!(last.completed, requests * (1 << 20));
        assert_eq!(last.rails.iter().sum::<u64>(), last.completed);
        assert!(timeline.goodput() > 0.0);
    }
}

#[test]
fn faults_are_marked_where_they_begin_and_end() {
    let faults = ["1:300ms:slow:20ms", "far.2:64K:slow"].map(|fault| fault.parse().unwrap());
    let measure = |seconds| {
        let limit = Limit::Time(Duration::from_secs(seconds));
        let config = PerfConfig { limit, ..PerfConfig::default() };
        let progress = PerfProgress::default();
        let timeline = measure_over_time(&config, None, &faults, &progress, || ()).unwrap();
        (timeline, progress)
    };
    // On a machine that is busy with something else, a fault may come late.
    let all = |(timeline, _): &(Timeline, _)| timeline.marks.len() == 3;
    let (timeline, progress) = [1, 10, 60].into_iter().map(measure).find(all).unwrap();
    let marked = timeline.marks.iter().map(|mark| (mark.cause, mark.begins, mark.text.as_str()));
    let mut marked = marked.collect::<Vec<_>>();
    // The faults have no order: a device may carry its first bytes late.
    marked.sort_by_key(|(cause, ..)| *cause == Cause::Fault(0));
    assert_eq!(
        marked,
        [
            (Cause::Fault(1), true, "rail 2 (device rx2): completions 20 ms late"),
            (Cause::Fault(0), true, "rail 1 (device tx1): completions 20 ms late"),
            (Cause::Fault(0), false, "rail 1 (device tx1): completions in time again"),
        ]
    );
    assert_eq!(progress.faults.take().len(), 3);
    assert_eq!(progress.marks().len(), 3);
    let last = timeline.end();
    assert!(timeline.marks.iter().all(|mark| mark.at < last), "{:?}", timeline.marks);
}

/// Each scheme with one thread and with two, and a rail that is cut and comes back.
#[test]
fn a_rail_that_fails_and_returns_does_not_end_a_measurement() {
    let rail = Cause::Rail(RailId::Data(2));
    for (scheme, threads) in [(Scheme::Spray, Threads::One), (Scheme::Dqplb, Threads::Two)] {
        let measure = |cut: u32| {
            let limit = Limit::Time(Duration::from_millis(8 * u64::from(cut)));
            let config = PerfConfig { scheme, threads, limit, ..PerfConfig::default() };
            let progress = PerfProgress::default();
            let fault = format!("2:{cut}ms:cut:{cut}ms").parse().unwrap();
            let timeline = measure_over_time(&config, None, &[fault], &progress, || ()).unwrap();
            let marks = timeline.marks.iter().filter(|mark| mark.cause == rail);
            let begins: Vec<bool> = marks.map(|mark| mark.begins).collect();
            let goodput = timeline.goodput_around_marks();
            let is_measured = goodput.is_some_and(|goodput| {
                goodput.during > 0.0 && goodput.after.is_some_and(|after| after > 0.0)
            });
            (begins.starts_with(&[true, false]) && is_measured, timeline, progress.rails)
        };
        // A machine that is busy with something else may send nothing while the link is cut, if
        // that is short.
        let mut measured = [50, 250, 1250, 6250].into_iter().map(measure);
        let (_, timeline, news) = measured.find(|(is_whole, ..)| *is_whole).unwrap();
        let [(down, failures), healthy] =
            [2, 1].map(|rail| timeline.failures_of(RailId::Data(rail)));
        assert!(down.is_none() && failures > 0 && healthy == (None, 0));
        let sides: Vec<Side> = news.take().iter().map(|item| item.side).collect();
        assert!(sides.contains(&Side::Near) && sides.contains(&Side::Far), "{sides:?}");
    }
}

#[test]
fn a_fault_that_ends_a_measurement_is_told() {
    let progress = PerfProgress::default();
    let rail_repair = RailRepair { rail_failure: RailFailure::Fatal, ..RailRepair::default() };
    let config = PerfConfig { qp_timeout: 10, rail_repair, ..PerfConfig::default() };
    let measure = |fault: &str| {
        measure_over_time(&config, None, &[fault.parse().unwrap()], &progress, || ()).unwrap_err()
    };
    let error = measure("2:1M:cut");
    assert!(matches!(error, PerfError::Session(SessionError::Endpoint(_))), "{error}");
    assert_eq!(progress.faults.take()[0].device, "tx2");
    assert!(matches!(measure("4:1M:cut"), PerfError::Fault(_)));
    assert_eq!(progress.faults.take(), []);
}

/// Ends measurements that would take 600 s, at a time when something was measured.
#[test]
fn an_interrupt_ends_a_measurement_with_what_was_measured() {
    let limit = Limit::Time(Duration::from_secs(600));
    for (threads, bidirectional) in
        [(Threads::One, false), (Threads::Two, false), (Threads::Two, true)]
    {
        let config = PerfConfig { limit, threads, message_size: 8, ..PerfConfig::default() };
        let both = PerfConfig { bidirectional, ..config };
        let measured = interrupted(|progress| measure(&both, progress));
        assert!(measured.requests > 0 && measured.all.requests_per_second > 0.0);
        assert!(measured.cpu_percent > 0.0, "{measured:?}");
        let latency = interrupted(|progress| measure_latency(&config, progress));
        assert!(latency.round_trips > 0);
    }
}

/// Does `work`, and interrupts it after a while; after a longer while if nothing was measured by
/// then.
fn interrupted<T: Send>(work: impl Fn(&PerfProgress) -> Result<T, PerfError> + Sync) -> T {
    for wait in [50, 500, 5000, 50_000] {
        let progress = PerfProgress::default();
        let result = std::thread::scope(|scope| {
            let measuring = scope.spawn(|| work(&progress));
            std::thread::sleep(Duration::from_millis(wait));
            progress.interrupted.store(true, Ordering::Relaxed);
            measuring.join().unwrap()
        });
        match result {
            Ok(measured) => return measured,
            Err(PerfError::Session(SessionError::Interrupted)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("nothing is measured")
}

#[test]
fn a_measurement_over_time_shows_its_samples_while_it_runs() {
    let limit = Limit::Time(Duration::from_secs(600));
    let config = PerfConfig { limit, message_size: 4096, ..PerfConfig::default() };
    let progress = PerfProgress::default();
    let mut samples = Vec::new();
    let watch = || {
        samples.extend(progress.samples.take());
        if samples.len() > 3 {
            progress.interrupted.store(true, Ordering::Relaxed);
        }
    };
    let interval = Some(Duration::from_millis(20));
    let timeline = measure_over_time(&config, interval, &[], &progress, watch).unwrap();
    assert!(samples.len() > 3 && samples[0].completed == 0, "{samples:?}");
    // The end may have replaced the last one.
    assert_eq!(timeline.samples[..3], samples[..3]);
    assert!(timeline.cpu_percent() > 0.0);
}

/// Requests of a silent rail never complete. What completed before counts.
#[test]
fn requests_that_never_complete_do_not_outlast_an_interrupt() {
    let limit = Limit::Time(Duration::from_secs(600));
    let stall_timeout = Duration::from_secs(600);
    let rail_repair = RailRepair { stall_timeout, ..RailRepair::default() };
    let config = PerfConfig { limit, rail_repair, ..PerfConfig::default() };
    let faults = ["2:64M:silent".parse().unwrap()];
    // The second one is longer than the measurement, whose end then has the only sample.
    for interval in [Duration::from_millis(1), Duration::from_secs(600)] {
        let progress = PerfProgress::default();
        let watch = || {
            let is_silent = !progress.faults.all().is_empty();
            progress.interrupted.fetch_or(is_silent, Ordering::Relaxed);
        };
        let begin = Instant::now();
        let timeline =
            measure_over_time(&config, Some(interval), &faults, &progress, watch).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(300));
        let last = timeline.samples.last().unwrap();
        assert_eq!((timeline.requests, last.completed % (1 << 20)), (last.completed >> 20, 0));
        assert!(timeline.requests > 0 && timeline.marks.len() == 1, "{timeline:?}");
        // The time after the interrupt counts, as its processor time does.
        assert!(timeline.end() >= drive::LATE, "{timeline:?}");
        assert_eq!(progress.samples.take().last(), Some(last));
    }
}

/// Each end offers buffers while it plays, with one request for many.
#[test]
fn offers_are_a_small_part_of_the_requests_of_messages() {
    let limit = Limit::Count(640);
    let config = PerfConfig {
        operation: Operation::P2p,
        rails: 1,
        devices: 1,
        message_size: 8,
        limit,
        ..PerfConfig::default()
    };
    let (here, there) = hosts_with_rate(config.devices, config.line_rate).unwrap();
    let (here, there) = (here.domains(), there.domains());
    let Rig { sender: mut near, receiver: mut far, .. } =
        Rig::players_of_messages(&config, &here, &there, &PerfProgress::default().rails).unwrap();
    far.player.make_room().unwrap();
    let answer = || far.answer().map(|_| ());
    play(&mut near, &config, &PerfProgress::default(), answer).unwrap();
    for end in [&near.player, &far.player] {
        let counters = end.endpoint.receiver().unwrap().counters(0).unwrap();
        let offers = counters.send_requests;
        assert!(offers <= near.round_trips / 8, "{offers} for {} messages", near.round_trips);
    }
}
