//! Measures how fast requests move through a virtual queue pair, beside plain memcpy of the same bytes.
//!
//! [`measure`] has both ends in this process, on the software NIC; [`measure_to`] has its far end in
//! another one, a [server](crate::serve), over any [backend](polyrail::backend). Compare the
//! figures only with each other and with memcpy in the same run: a machine's time means little by itself.
//! Requests and copies are measured in turn, in [`ROUNDS`] rounds, and the medians are
//! reported.
//!
//! [`measure_over_time`] and [`measure_over_time_to`] measure one run from moment to moment instead, to show
//! what faults do to it.
//!
//! [`measure_latency`] and [`measure_latency_to`] have one request on the way at a time, which the other end answers.
//! It notices a WRITE by its last byte in memory, which it looks at again and again, as perftest's `ib_write_lat` does.
//! READs and atomics are round trips by themselves, and nobody answers them.
//!
//! # Between two hosts
//!
//! One connection is one measurement. The near end asks for a [`Workload`] and states the shape of its
//! endpoint; the far end makes the same, posts receives if the operation consumes any, and takes what
//! comes. The near end counts what is acknowledged, so a round ends with the last acknowledgement. When
//! done, it reports how many requests it saw complete. If the operation is
//! [received](Operation::is_received), the far end waits until as many have arrived, and a difference is
//! an error on both sides. It does not notice a WRITE, a READ or an atomic, so there is nothing to compare.
//!
//! With [`bidirectional`](PerfConfig::bidirectional) both ends do the same at once: the far end posts requests from
//! when the two are connected until the near end is done, and reports how many were complete in which time.
//!
//! # Files
//!
//! `config` is what to measure, `measure` does it in rounds (`round`), `latency` in round trips (`ping_pong`); `drive` has the loops
//! that keep a window of requests in flight, for ends of two kinds: `requests` over a virtual queue pair (`ends` is an
//! endpoint with its ring), `messages` over an endpoint for messages. There are two arrangements:
//! `rig` has two ends in one process (`both_ways` if both send), `near` and `far` one each. `memcpy` is the comparison. `over_time`
//! measures in one run that is watched by a `sampler`, while faults happen; `timeline` is what comes of it.

mod both_ways;
mod config;
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
mod requests;
mod rig;
mod round;
mod sampler;
#[cfg(test)]
mod tests;
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
pub use ping_pong::Latency;
pub use timeline::{Cause, Goodput, Mark, Sample, Timeline};
