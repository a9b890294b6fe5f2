//! Metrics of the process, if its environment asks for them.

use polyrail::chain::Chain;
use polyrail::metrics::{Source, of_process};

/// The name of all connections of this library.
const NAME: &str = "peers";

/// Returns a source for the connections of an object, if metrics are exported.
pub(crate) fn source() -> Option<Source> {
    let refused = |error: &(dyn std::error::Error + 'static)| {
        let error = Chain(error);
        tracing::error!("{error}; the process goes on without metrics");
        // Many programs never set a logger, and a variable that has no effect must not be silent.
        if !tracing::event_enabled!(tracing::Level::ERROR) {
            eprintln!("polyrail: {error}; the process goes on without metrics");
        }
    };
    of_process("c", refused).map(|metrics| metrics.source(NAME))
}
