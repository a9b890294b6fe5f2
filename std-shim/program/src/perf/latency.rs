//! Measuring half round trips, within one process and between two hosts.

use super::config::{PerfConfig, Threads};
use super::drive::Eager;
use super::error::PerfError;
use super::messages::MessageEnd;
use super::near::Near;
use super::ping_pong::{Latency, Pinger, Player, Ponger, play};
use super::progress::PerfProgress;
use super::requests::RequestPlayer;
use super::rig::Rig;
use crate::hosts::hosts_with_rate;
use crate::job::Operation;
use crate::session::ServerAddress;
use crate::threads::{join, start};
use polyrail::backend::Domain;
use std::sync::atomic::{AtomicBool, Ordering};

/// Measures the latency of a request and its answer, or of a request that is a [round trip by
/// itself](Operation::fetches), with both ends in this process, on the software NIC. One request is
/// in flight; [`PerfConfig::window`] is the number of requests for which each end has room.
///
/// # Errors
///
/// The configuration is not valid, or a rail failed. For example, a WRITE that is split over rails
/// has no latency that the receiver could notice.
pub fn measure_latency(config: &PerfConfig, progress: &PerfProgress) -> Result<Latency, PerfError> {
    config.workload_of_round_trips()?;
    let (here, there) = hosts_with_rate(config.devices, config.line_rate)?;
    let (here, there) = (here.domains(), there.domains());
    match config.operation {
        Operation::P2p => Rig::players_of_messages(config, &here, &there, &progress.rails)?
            .measure(config, progress),
        _ => Rig::players_of_requests(config, &here, &there, &progress.rails)?
            .measure(config, progress),
    }
}

/// Like [`measure_latency`], with this process as the near end and a [server](crate::serve) as the
/// far end; see [`measure_to`](super::measure_to).
///
/// # Errors
///
/// As [`measure_latency`] and [`measure_to`](super::measure_to).
pub fn measure_latency_to<D: Domain>(
    config: &PerfConfig,
    server: impl Into<ServerAddress>,
    domains: &[D],
    progress: &PerfProgress,
) -> Result<Latency, PerfError> {
    let workload = config.workload_of_round_trips()?;
    let server = server.into();
    match config.operation {
        Operation::P2p => {
            let near = Near::<MessageEnd<D>>::reach;
            near(config, workload, &server, domains, progress)?.play(config, progress)
        }
        _ => {
            let near = Near::<RequestPlayer<D>>::reach;
            near(config, workload, &server, domains, progress)?.play(config, progress)
        }
    }
}

impl<P: Player + Send> Rig<Pinger<P>, Ponger<P>> {
    fn measure(
        &mut self,
        config: &PerfConfig,
        progress: &PerfProgress,
    ) -> Result<Latency, PerfError> {
        let Self { sender: near, receiver: far, .. } = self;
        far.player.make_room()?;
        if self.threads == Threads::One {
            return Ok(play(near, config, progress, || far.answer().map(|_| ()))?.measured);
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = start(scope, "answers", || {
                let answered = answer_until(far, &stop);
                // The near end is done, or has failed: stop answering.
                stop.store(true, Ordering::Release);
                answered
            })?;
            let measured = play(near, config, progress, || match stop.load(Ordering::Acquire) {
                true => Err(PerfError::Lost { sent: 1, received: 0 }),
                false => Ok(()),
            });
            stop.store(true, Ordering::Release);
            join(other).and(measured).map(|ended| ended.measured)
        })
    }
}

/// Answers until `stop` is set.
fn answer_until<P: Player>(far: &mut Ponger<P>, stop: &AtomicBool) -> Result<(), PerfError> {
    let mut idle = Eager::default();
    while !stop.load(Ordering::Acquire) {
        idle.note(far.answer()?);
    }
    Ok(())
}
