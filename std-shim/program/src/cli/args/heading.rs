//! What options stand under in `--help`.

/// With whom, and over what.
pub(super) const PLACE: &str = "Hosts and devices";
/// What is measured.
pub(super) const MEASURED: &str = "What to measure";
/// How requests are sent.
pub(super) const REQUESTS: &str = "Requests";
/// Rails that fail.
pub(super) const FAULTS: &str = "Faults";
/// How long to wait for what.
pub(super) const WAITING: &str = "Waiting";
/// What becomes of files.
pub(super) const FILES: &str = "Files";
/// How it is reported.
pub(super) const OUTPUT: &str = "Output";
