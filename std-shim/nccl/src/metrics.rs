//! Metrics of the process, if its environment asks for them.

use crate::log;
use polyrail::chain::Chain;
use polyrail::metrics::{Source, of_process};

/// The name of all connections of this plugin.
const NAME: &str = "connections";

/// Returns a source for a connection, if metrics are exported.
pub(crate) fn source() -> Option<Source> {
    let refused = |error: &(dyn std::error::Error + 'static)| {
        log::warn(&format!("{}; the process goes on without metrics", Chain(error)));
    };
    of_process("nccl", refused).map(|metrics| metrics.source(NAME))
}
