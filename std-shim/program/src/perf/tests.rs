//! Measurements within one process.

use super::*;
use crate::session::SessionError;
use polyrail::virtual_qp::Scheme;
use std::time::Duration;

#[test]
fn counts_are_what_the_scheme_costs() {
    let quick = PerfConfig { limit: Limit::Count(50), ..PerfConfig::default() };
    // Per request: four batches, one for each rail, and the notify.
    let spray = measure(&quick).unwrap();
    assert_eq!((spray.requests, spray.doorbells_per_request.round()), (50, 5.0));
    let dqplb = measure(&PerfConfig { scheme: Scheme::Dqplb, ..quick }).unwrap();
    assert_eq!(dqplb.doorbells_per_request.round(), 4.0);
    let send = measure(&PerfConfig { operation: Operation::Send, ..quick }).unwrap();
    assert_eq!((send.doorbells_per_request, send.completions_per_request), (1.0, 1.0));
}

#[test]
fn every_operation_runs_with_one_thread_and_with_two() {
    for operation in Operation::ALL {
        for threads in [Threads::One, Threads::Two] {
            for (rails, message_size) in [(1, 1), (3, 70_000)] {
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
                let measured = measure(&config).unwrap();
                assert_eq!(measured.requests, 40, "{config:?}");
                assert!(measured.relative_to_memcpy > 0.0);
            }
        }
    }
}

#[test]
fn time_limits_end() {
    let limit = Limit::Time(Duration::from_millis(10));
    let config = PerfConfig { message_size: 4096, limit, ..PerfConfig::default() };
    assert!(measure(&config).unwrap().requests > 0);
}

#[test]
fn impossible_configurations_are_refused() {
    let config = PerfConfig { rails: 9, ..PerfConfig::default() };
    assert!(matches!(measure(&config), Err(PerfError::Session(SessionError::Build(_)))));
    let config = PerfConfig { window: 0, ..PerfConfig::default() };
    assert!(matches!(measure(&config), Err(PerfError::Workload(WorkloadError::Window(0)))));
}
