//! Both ends in one process.

use super::both_ways::BothWays;
use super::config::{Limit, PerfConfig, Threads};
use super::drive::{Receiver, Sender, rail_names, receive_until, send};
use super::ends::{End, Half};
use super::error::PerfError;
use super::messages::MessageEnd;
use super::ping_pong::{Pinger, Ponger};
use super::progress::PerfProgress;
use super::requests::{RequestPlayer, RequestReceiver, RequestSender};
use super::round::{Ends, Round};
use super::sampler::Sampler;
use crate::fault::Side;
use crate::job::{Operation, Workload};
use crate::session::{RailNews, Reporter};
use crate::threads::{join, start};
use polyrail::backend::Domain;
use polyrail::endpoint::connect_endpoints;
use polyrail::p2p;
use polyrail::virtual_qp::RailCounters;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two ends that are connected.
pub(super) struct Rig<S, R> {
    pub(super) sender: S,
    pub(super) receiver: R,
    pub(super) threads: Threads,
}

/// Makes two ends on these devices, for the requests or messages of `config`.
pub(super) fn ends_between<'a, D>(
    config: &PerfConfig,
    here: &[&D],
    there: &[&D],
    news: &RailNews,
) -> Result<Box<dyn Ends + Send + 'a>, PerfError>
where
    D: Domain<Qp: Send, Cq: Send, Srq: Send, Region: Send> + 'a,
{
    let workload = config.workload()?;
    let noticed = workload.is_noticed();
    let threads = config.threads;
    Ok(match (config.operation, config.bidirectional) {
        (Operation::P2p, false) => Box::new(Rig::messages(config, here, there, news)?),
        (_, false) => Box::new(Rig::between(config, here, there, news)?),
        (Operation::P2p, true) => {
            let [mut near, mut far] = connected_for_messages(config, workload, here, there, news)?;
            near.offer()?;
            far.offer()?;
            Box::new(BothWays { near, far, threads, noticed })
        }
        (_, true) => {
            let ends = connected(config, workload, here, there, news)?;
            let [mut near, mut far] = ends.map(RequestSender::new);
            near.make_room()?;
            far.make_room()?;
            Box::new(BothWays { near, far, threads, noticed })
        }
    })
}

impl<D: Domain> Rig<RequestSender<D>, RequestReceiver<D>> {
    /// Makes two ends on these devices.
    pub(super) fn between(
        config: &PerfConfig,
        here: &[&D],
        there: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError> {
        let [near, far] = connected(config, config.workload()?, here, there, news)?;
        let mut receiver = RequestReceiver::new(far);
        receiver.post_receives()?;
        Ok(Self { sender: RequestSender::new(near), receiver, threads: config.threads })
    }
}

impl<D: Domain> Rig<MessageEnd<D>, MessageEnd<D>> {
    /// Makes two ends for messages on these devices.
    fn messages(
        config: &PerfConfig,
        here: &[&D],
        there: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError> {
        let workload = config.workload()?;
        let [sender, mut receiver] = connected_for_messages(config, workload, here, there, news)?;
        receiver.offer()?;
        Ok(Self { sender, receiver, threads: config.threads })
    }
}

impl<D: Domain> Rig<Pinger<RequestPlayer<D>>, Ponger<RequestPlayer<D>>> {
    /// Makes two ends on these devices that answer each other.
    pub(super) fn players_of_requests(
        config: &PerfConfig,
        here: &[&D],
        there: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError> {
        let workload = config.workload_of_round_trips()?;
        let ends = connected(config, workload, here, there, news)?;
        let [near, far] = ends.map(RequestPlayer::new);
        let threads = config.threads;
        Ok(Self { sender: Pinger::new(near), receiver: Ponger::new(far), threads })
    }
}

impl<D: Domain> Rig<Pinger<MessageEnd<D>>, Ponger<MessageEnd<D>>> {
    /// Makes two ends for messages on these devices that answer each other.
    pub(super) fn players_of_messages(
        config: &PerfConfig,
        here: &[&D],
        there: &[&D],
        news: &RailNews,
    ) -> Result<Self, PerfError> {
        let workload = config.workload_of_round_trips()?;
        let [near, far] = connected_for_messages(config, workload, here, there, news)?;
        let threads = config.threads;
        Ok(Self { sender: Pinger::new(near), receiver: Ponger::new(far), threads })
    }
}

fn connected<D: Domain>(
    config: &PerfConfig,
    workload: Workload,
    here: &[&D],
    there: &[&D],
    news: &RailNews,
) -> Result<[End<D>; 2], PerfError> {
    let builder = config.builder(&workload);
    let mut near = Half::new(workload, &builder, here, 1)?;
    let mut far = Half::new(workload, &builder, there, 2)?;
    connect_endpoints(&mut near.endpoint, &mut far.endpoint)?;
    let here = near.ring.remote();
    let there = far.ring.remote();
    let reporter = |side| Reporter { side, news: news.clone() };
    let stall_timeout = config.rail_repair.stall_timeout;
    let far = far.toward(here, stall_timeout, reporter(Side::Far))?;
    let near = near.toward(there, stall_timeout, reporter(Side::Near))?;
    Ok([near, far])
}

fn connected_for_messages<D: Domain>(
    config: &PerfConfig,
    workload: Workload,
    here: &[&D],
    there: &[&D],
    news: &RailNews,
) -> Result<[MessageEnd<D>; 2], PerfError> {
    let builder = config.p2p_builder(&workload);
    let stall_timeout = config.rail_repair.stall_timeout;
    let mut near = MessageEnd::new(workload, &builder, here, 1, stall_timeout)?;
    let mut far = MessageEnd::new(workload, &builder, there, 2, stall_timeout)?;
    p2p::connect_endpoints(&mut near.endpoint, &mut far.endpoint)?;
    near.count(news);
    far.count(news);
    Ok([near, far])
}

impl<S, R> Ends for Rig<S, R>
where
    S: Sender + Send,
    R: Receiver + Send,
{
    fn counters(&self) -> RailCounters {
        self.sender.counters()
    }

    fn rail_names(&self) -> Vec<String> {
        rail_names(&self.sender)
    }

    fn sampler(&mut self) -> &mut Sampler {
        self.sender.sampler()
    }

    /// Runs until all requests are complete at both ends.
    fn run(&mut self, limit: Limit, progress: &PerfProgress) -> Result<Round, PerfError> {
        let Self { sender, receiver, threads } = self;
        if *threads == Threads::One {
            return send(sender, limit, progress, |sent| {
                receiver.poll()?;
                Ok(receiver.has_all(sent))
            });
        }
        let stop = AtomicBool::new(false);
        let round = std::thread::scope(|scope| {
            let other = start(scope, "receives", || -> Result<(), PerfError> {
                let result = receive_until(receiver, &stop);
                stop.store(true, Ordering::Release);
                result
            })?;
            let round = send(sender, limit, progress, |_| Ok(true));
            stop.store(true, Ordering::Release);
            join(other).and(round)
        })?;
        while !receiver.has_all(sender.posted()) {
            receiver.poll()?;
        }
        Ok(round)
    }
}

#[cfg(test)]
mod rt_tests {
    use super::super::drive::fill;
    use super::*;
    use crate::hosts::software_hosts;
    use crate::recorded::{Asked, Log, Recorded};
    use crate::session::{QualityOfService, RailRepair, SessionError};
    use polyrail::backend::Mtu;
    use polyrail::endpoint::EndpointError;
    use polyrail::hardware::Refusal;
    use polyrail::nic::Fault;
    use polyrail::verbs::WcStatus;
    use polyrail::virtual_qp::{RailFailure, RailId};
    use polyrail_faults::{DriverFault, Faults, WorkQueue};
    use std::time::{Duration, Instant};

    /// Silences the device of a sender's rail, and runs until that is detected.
    fn fall_silent(config: &PerfConfig, rail: usize) -> PerfError {
        let (here, there) = software_hosts(config.devices).unwrap();
        let mut rig =
            Rig::between(config, &here.domains(), &there.domains(), &RailNews::default()).unwrap();
        rig.run(Limit::Count(20), &PerfProgress::default()).unwrap();
        here.inject(rail, Fault::Silent(true));
        rig.run(Limit::Count(1000), &PerfProgress::default()).unwrap_err()
    }

    #[test]
    fn any_backend_can_be_measured() {
        let (here, there) = software_hosts(1).unwrap();
        let log = Log::default();
        let [here, there] =
            [here, there].map(|host| Recorded::new(host.domains()[0].clone(), &log));
        let rails = 2;
        let qp_timeout = 9;
        let quality = QualityOfService { traffic_class: 106, service_level: 3 };
        let message_size = 70_000;
        let config =
            PerfConfig { rails, message_size, qp_timeout, quality, ..PerfConfig::default() };
        let config = PerfConfig { mtu: Some(Mtu::Mtu1024), ..config };
        let mut rig = Rig::between(&config, &[&here], &[&there], &RailNews::default()).unwrap();
        assert_eq!(rig.run(Limit::Count(20), &PerfProgress::default()).unwrap().requests, 20);
        let given = log
            .lock()
            .unwrap()
            .iter()
            .filter_map(|(.., asked)| match asked {
                Asked::Rts { options, .. } => {
                    let mtu = options.path_mtu.bytes();
                    Some((options.timeout, options.traffic_class, options.service_level, mtu))
                }
                _ => None,
            })
            .collect::<Vec<_>>();
        // Two rails and the notify queue pair at each end.
        assert_eq!(given, [(qp_timeout, 106, 3, 1024); 6]);
    }

    /// The device reads inline bytes without a key.
    #[test]
    fn requests_carry_their_bytes_inline_if_they_are_short_enough() {
        for operation in [Operation::Write, Operation::WriteImm, Operation::Send] {
            for (rails, inline) in [(1, 64), (1, 63), (3, 64), (3, 63)] {
                let rail_repair =
                    RailRepair { rail_failure: RailFailure::Fatal, ..RailRepair::default() };
                let shape = PerfConfig { operation, rails, inline, ..PerfConfig::default() };
                let config = PerfConfig { message_size: 64, devices: 1, rail_repair, ..shape };
                let (here, there) = software_hosts(1).unwrap();
                let news = RailNews::default();
                let mut rig =
                    Rig::between(&config, &here.domains(), &there.domains(), &news).unwrap();
                rig.sender.end.slots.keys[0].lkey ^= 1;
                let ran = rig.run(Limit::Count(20), &PerfProgress::default());
                assert_eq!(ran.is_ok(), inline == 64, "{config:?}: {ran:?}");
            }
        }
    }

    #[test]
    fn as_many_requests_are_in_flight_as_the_window_has() {
        for operation in [Operation::Write, Operation::WriteImm, Operation::Send] {
            for (rails, window) in [(1, 1), (1, 128), (1, 1000), (4, 200), (4, 256)] {
                let shape = PerfConfig { operation, rails, window, ..PerfConfig::default() };
                let config = PerfConfig { message_size: 64, devices: 1, ..shape };
                let (here, there) = software_hosts(1).unwrap();
                let news = RailNews::default();
                let mut rig =
                    Rig::between(&config, &here.domains(), &there.domains(), &news).unwrap();
                fill(&mut rig.sender, u64::MAX).unwrap();
                let posted = rig.sender.posted();
                assert_eq!(posted, u64::from(window), "{config:?}");
                rig.run(Limit::Count(2000), &PerfProgress::default()).unwrap();
            }
        }
    }

    #[test]
    fn a_time_limit_ends_a_measurement_however_slow_its_rounds_are() {
        const LIMIT: Duration = Duration::from_millis(1);
        let config = PerfConfig { message_size: 4096, window: 3, ..PerfConfig::default() };
        let (here, there) = software_hosts(config.devices).unwrap();
        let mut rig =
            Rig::between(&config, &here.domains(), &there.domains(), &RailNews::default()).unwrap();
        let Rig { sender, receiver, .. } = &mut rig;
        let slow = |sent| {
            std::thread::sleep(LIMIT);
            receiver.poll()?;
            Ok(receiver.has_all(sent))
        };
        // The first round of the loop uses up the time, so only what it posted counts.
        assert_eq!(
            send(sender, Limit::Time(LIMIT), &PerfProgress::default(), slow).unwrap().requests,
            3
        );
    }

    #[test]
    fn a_failure_is_looked_for_when_a_driver_refuses_a_receive() {
        const DELAY: Duration = Duration::from_millis(100);
        let config = PerfConfig {
            rails: 1,
            operation: Operation::Send,
            message_size: 64,
            ..PerfConfig::default()
        };
        let (here, there) = software_hosts(1).unwrap();
        let faults = Faults::new();
        let faulty = faults.domain(there.domains()[0].clone());
        let sound = Faults::new().domain(here.domains()[0].clone());
        let mut rig = Rig::between(&config, &[&sound], &[&faulty], &RailNews::default()).unwrap();
        there.inject(0, Fault::DelayCompletions(DELAY));
        send(&mut rig.sender, Limit::Count(1), &PerfProgress::default(), |_| Ok(true)).unwrap();
        std::thread::sleep(DELAY / 2);
        rig.receiver.end.traffic.endpoint.fail_rail(RailId::Data(0));
        let refusal = Refusal::Driver(libc::EINVAL);
        let queue = WorkQueue::Recv;
        faults.inject(DriverFault::AcceptOnly { queue, nth_batch: 0, requests: 0, refusal });
        let begin = Instant::now();
        let error = loop {
            match rig.receiver.poll() {
                Ok(_) => assert!(begin.elapsed() < Duration::from_secs(60)),
                Err(error) => break error,
            }
        };
        let PerfError::Session(SessionError::Endpoint(EndpointError::Rail(failure))) = &error
        else {
            panic!("{error}")
        };
        assert_eq!(failure.error.status, WcStatus::WR_FLUSH_ERR, "{error}");
    }

    #[test]
    fn a_silent_rail_ends_a_measurement() {
        const TIMEOUT: Duration = Duration::from_millis(200);
        for (rails, operation, threads) in [
            (4, Operation::Write, Threads::One),
            (4, Operation::WriteImm, Threads::Two),
            (4, Operation::Read, Threads::One),
            (1, Operation::Write, Threads::One),
            (1, Operation::Send, Threads::Two),
        ] {
            let rail_failure = RailFailure::Fatal;
            let config = PerfConfig {
                rails,
                devices: rails,
                operation,
                threads,
                message_size: 1 << 20,
                rail_repair: RailRepair {
                    rail_failure,
                    stall_timeout: TIMEOUT,
                    ..RailRepair::default()
                },
                ..PerfConfig::default()
            };
            let begin = Instant::now();
            let device = rails - 1;
            let error = fall_silent(&config, device);
            let PerfError::Session(SessionError::Endpoint(EndpointError::Silent {
                rail,
                device: name,
                waited,
            })) = error
            else {
                panic!("{error}")
            };
            assert_eq!((rail, name), (RailId::Data(device as u8), format!("tx{device}")));
            assert!(waited == TIMEOUT && begin.elapsed() >= TIMEOUT);
            assert!(begin.elapsed() < 20 * TIMEOUT, "{:?}", begin.elapsed());
        }
    }
}
