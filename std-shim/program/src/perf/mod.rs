//! Measures the speed of requests through a virtual queue pair, compared with plain memcpy of the
//! same bytes.
//!
//! [`measure`] has both ends in this process, on the software NIC. [`measure_to`] has the far end
//! in another process, a [server](crate::serve), over any [backend](polyrail::backend). Compare the
//! figures only with each other and with memcpy in the same run, because absolute times depend on
//! the machine. Requests and copies are measured alternately, in [`ROUNDS`] rounds, and the medians
//! are reported.
//!
//! [`measure_over_time`] and [`measure_over_time_to`] instead sample one run at short intervals,
//! which shows the effect of faults.
//!
//! [`measure_latency`] and [`measure_latency_to`] have one request in flight at a time, which the
//! other end answers. The other end detects a WRITE by polling its last byte in memory, as
//! perftest's `ib_write_lat` does. READs and atomics are round trips by themselves and are not
//! answered.
//!
//! [`PerfProgress::interrupted`] ends a measurement early. What was measured until then is the
//! result, and two hosts still compare their counts.
//!
//! # Between two hosts
//!
//! Each connection serves one measurement. The near end requests a [`Workload`] and states the
//! shape of its endpoint. The far end makes an endpoint of the same shape, posts receives if the
//! operation consumes any, and receives the requests. The near end counts acknowledged requests, so
//! a round ends with the last acknowledgement. When it is done, it reports how many requests
//! completed. If the operation is [received](Operation::is_received), the far end waits until the
//! same number has arrived, and a difference is an error on both sides. The far end does not notice
//! a WRITE, a READ or an atomic, so these are not compared.
//!
//! With [`bidirectional`](PerfConfig::bidirectional) both ends post requests at the same time. The
//! far end starts when the two are connected and stops when the near end is done, and reports how
//! many requests completed in what time.
//!
//! # Files
//!
//! `config` describes a measurement. `measure` runs it in rounds (`round`), `latency` in round
//! trips (`ping_pong`). `drive` has the loops that keep a window of requests in flight, for two
//! kinds of ends: `requests` over a virtual queue pair (`ends` is an endpoint with its ring), and
//! `messages` over an endpoint for messages. `rig` has both ends in one process (`both_ways` if
//! both send); `near` and `far` are the ends in two processes. `memcpy` is the comparison.
//! `over_time` samples one run with a `sampler` while faults happen; `timeline` is its result.
//! `progress` is what the caller sees meanwhile, and ends early; `cpu_time` reads a clock.

mod both_ways;
mod config;
mod cpu_time;
mod drive;
mod ends;
mod error;
mod far;
mod latency;
mod measure;
mod memcpy;
mod messages;
mod near;
mod over_time;
mod ping_pong;
mod progress;
mod requests;
mod rig;
mod round;
#[cfg(test)]
mod rt_tests;
mod sampler;
mod timeline;

pub use crate::job::{
    ATOMIC_SIZE, MAX_IN_FLIGHT, MAX_IN_FLIGHT_OVER_RAILS, MAX_INLINE, MAX_MESSAGE_SIZE, Operation,
    Workload, WorkloadError,
};
pub use config::{Limit, PerfConfig, Threads};
pub use error::PerfError;
pub use far::Measured;
pub(crate) use far::answer;
pub use latency::{measure_latency, measure_latency_to};
pub use measure::{Measurement, ROUNDS, Rate, measure, measure_to};
pub use over_time::{measure_over_time, measure_over_time_to};
pub use ping_pong::{Latency, LatencyCount};
pub use progress::{PerfProgress, SampleLog};
pub use timeline::{Cause, Goodput, Mark, Sample, Timeline};
