//! `--metrics`.

use super::output;
use polyrail::chain::Chain;
use polyrail::metrics::{Exporter, Metrics, Target};
use polyrail::printable;
use polyrail_program::session::RailNews;

/// The metrics of a command, exported until this is dropped, if that was asked for.
#[derive(Debug)]
pub(super) struct Export(Option<(Metrics, Exporter)>);

impl Export {
    /// Starts to export to a target. If that fails, prints why, and the command goes on without.
    pub(super) fn start(target: Option<&Target>, quiet: bool) -> Self {
        let Some(target) = target else { return Self(None) };
        let metrics = Metrics::new("program");
        match Exporter::start(metrics.clone(), target) {
            Ok(exporter) => {
                let address = exporter.local_addr().map(|at| format!("at http://{at}/metrics"));
                let path = exporter.path().map(|path| path.to_string_lossy().into_owned());
                let place = address.or(path.map(|path| format!("in {path}"))).unwrap_or_default();
                if !quiet {
                    let place = printable::escaped(&place);
                    output::tell(&format!("polyrail: metrics are {place}\n"));
                }
                Self(Some((metrics, exporter)))
            }
            Err(error) => {
                let why = Chain(&error).to_string();
                let why = printable::escaped(&why);
                output::tell(&format!("polyrail: {why}; the command goes on without metrics\n"));
                Self(None)
            }
        }
    }

    /// Returns a log of rail events for a job, whose metrics have this name.
    pub(super) fn news(&self, name: &'static str) -> RailNews {
        match &self.0 {
            Some((metrics, _)) => RailNews::counted(metrics.clone(), name),
            None => RailNews::default(),
        }
    }
}
