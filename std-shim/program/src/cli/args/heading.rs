//! Headings of the options in `--help`.

/// The other host, and the devices to use.
pub(super) const PLACE: &str = "Hosts and devices";
/// What a measurement covers.
pub(super) const MEASURED: &str = "What to measure";
/// How requests are sent.
pub(super) const REQUESTS: &str = "Requests";
/// Rails that fail.
pub(super) const FAULTS: &str = "Faults";
/// Timeouts.
pub(super) const WAITING: &str = "Waiting";
/// How files are replaced and stored.
pub(super) const FILES: &str = "Files";
/// How results are reported.
pub(super) const OUTPUT: &str = "Output";
