#![doc = include_str!("../../docs/metrics.md")]

// Files:
//
// `snapshot` is what an endpoint has counted so far. With the feature `metrics`, `registry` adds
// snapshots up (`totals`), `families` is the table of metrics, `render` writes them as text,
// `exporter` serves the text over HTTP (`http`) or writes it to a folder (`folder`), and `process`
// starts an exporter if the environment asks for it.

#[cfg(feature = "metrics")]
mod exporter;
#[cfg(feature = "metrics")]
mod families;
#[cfg(feature = "metrics")]
mod folder;
#[cfg(feature = "metrics")]
mod http;
#[cfg(feature = "metrics")]
mod process;
#[cfg(feature = "metrics")]
mod registry;
#[cfg(feature = "metrics")]
mod render;
mod snapshot;
#[cfg(feature = "metrics")]
mod target;
#[cfg(feature = "metrics")]
mod totals;

pub use crate::heal::{FailureCounts, FailureReason, RailTimes};
#[cfg(feature = "metrics")]
pub use exporter::{ExportError, Exporter};
#[cfg(feature = "metrics")]
pub use families::{FAMILIES, Family, Kind};
#[cfg(feature = "metrics")]
pub use process::{VARIABLE, of_process};
#[cfg(feature = "metrics")]
pub use registry::{Metrics, Source};
#[cfg(feature = "metrics")]
pub use render::Format;
pub use snapshot::{ConnectionMetrics, RailMetrics, Traffic};
#[cfg(feature = "metrics")]
pub use target::{Target, TargetError};
