//! Measures the goodput over four devices of the NIC in software, of which one has a quarter of the
//! rate of the others, with each way to share data among rails. A device reports no rate that
//! helps: all rates are given as equal, except in the line `rates`. In the middle of each run, the
//! slow device changes places with another one.
//!
//! `cargo run --release --example unequal_rails` prints, for each number of requests in flight, the
//! goodput in parts of what all devices can carry together: 100 requests, then 100 more, and the same
//! after the change. The machine must be idle: devices of the NIC in software send in polls.

use polyrail::endpoint::{Endpoint, EndpointBuilder, RailWeights, connect_endpoints};
use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::verbs::{AccessFlags, SendWr, WcStatus};
use polyrail::virtual_qp::RailFailure;
use std::error::Error;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// Rates of a fast and of the slow device in bytes per second: low, so that no processor limits them.
const FAST: u64 = 40_000_000;
const SLOW: u64 = FAST / 4;
const LENGTH: u32 = 1 << 20;
const REQUESTS: u64 = 100;

fn rate(bytes_per_second: u64) -> NonZeroU64 {
    NonZeroU64::new(bytes_per_second).unwrap_or(NonZeroU64::MIN)
}

/// Writes this many requests, and returns the time that it took.
fn write(
    ends: &mut [Endpoint; 2],
    (source, target): (&RegisteredBuffer, &RegisteredBuffer),
    window: u64,
) -> Result<Duration, Box<dyn Error>> {
    let keys = source.toward(&target.remote())?;
    let begin = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < REQUESTS {
        while posted < REQUESTS && posted < done + window {
            let wr = SendWr::write(posted, source.local(0, LENGTH)?, target.addr(), &keys);
            ends[0].post_send(&wr)?;
            posted += 1;
        }
        for report in ends[0].poll(16).completions {
            if report.status != WcStatus::SUCCESS {
                return Err(ends[0].explain(report.status).into());
            }
            done += 1;
        }
        _ = ends[1].poll(16);
    }
    Ok(begin.elapsed())
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("in flight  weights   first  then  after the change  then");
    for window in [1, 2, 4, 8] {
        for (name, weights) in RailWeights::NAMES.into_iter().filter(|(name, _)| *name != "auto") {
            let fabric = Fabric::threaded();
            let device = |name: &str, at: usize| {
                let bytes_per_second = Some(rate(if at == 3 { SLOW } else { FAST }));
                let named = DeviceConfig::named(format!("{name}{at}"));
                fabric.create_device(DeviceConfig { bytes_per_second, ..named }).alloc_pd()
            };
            let all = |name| (0..4).map(|at| device(name, at)).collect::<Result<Vec<_>, _>>();
            let (here, there) = (all("here")?, all("there")?);
            let mut builder = EndpointBuilder::new()
                .rails(4)
                .rail_failure(RailFailure::Reroute)
                .rail_weights(weights);
            if weights != RailWeights::Rates {
                builder =
                    here.iter().fold(builder, |builder, device| builder.device_mbps(device, 1));
            }
            let mut ends = [builder.build(&here)?, builder.build(&there)?];
            let [near, far] = &mut ends;
            connect_endpoints(near, far)?;
            let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
            let source = RegisteredBuffer::new(LENGTH as usize, AccessFlags::empty(), &here)?;
            let target = RegisteredBuffer::new(LENGTH as usize, writable, &there)?;
            let mut figures = Vec::new();
            for run in 0..4 {
                if run == 2 {
                    here[3].device().set_bytes_per_second(rate(FAST));
                    here[0].device().set_bytes_per_second(rate(SLOW));
                }
                let time = write(&mut ends, (&source, &target), window)?;
                let bytes = (REQUESTS * u64::from(LENGTH)) as f64;
                figures.push(bytes / time.as_secs_f64() / (3 * FAST + SLOW) as f64);
            }
            let [first, then, changed, last] = figures[..] else { continue };
            println!("{window:9}  {name:8} {first:6.2} {then:5.2} {changed:17.2} {last:5.2}");
        }
    }
    Ok(())
}
