//! The report of a copy, as text and as JSON.

use super::table::Table;
use polyrail::endpoint::RailReport;
use polyrail::printable;
use polyrail_program::job::Shape;
use polyrail_program::size::human_size;
use polyrail_program::transfer::{CopyReport, SideReport, TreeReport};
use serde::Serialize;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The report of a copy as JSON.
#[derive(Debug, Serialize)]
pub(super) struct CopyJson<'a> {
    /// `None` if the source is on another host.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Cow<'a, str>>,
    destination: Cow<'a, str>,
    #[serde(flatten)]
    shape: Shape,
    #[serde(flatten)]
    report: &'a CopyReport,
}

impl<'a> CopyJson<'a> {
    pub(super) fn new(
        source: Option<&'a Path>,
        destination: &'a Path,
        shape: Shape,
        report: &'a CopyReport,
    ) -> Self {
        // A path may contain bytes that are not UTF-8; JSON cannot.
        Self {
            source: source.map(Path::to_string_lossy),
            destination: destination.to_string_lossy(),
            shape,
            report,
        }
    }
}

/// The report of a copy of directories as JSON.
#[derive(Debug, Serialize)]
pub(super) struct TreeJson<'a> {
    /// Empty at a server that receives them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<Cow<'a, str>>,
    /// `None` at a server that sends them.
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<Cow<'a, str>>,
    #[serde(flatten)]
    pub(super) shape: Shape,
    #[serde(flatten)]
    pub(super) report: &'a TreeReport,
}

impl<'a> TreeJson<'a> {
    pub(super) fn new(
        sources: &'a [PathBuf],
        destination: Option<&'a Path>,
        shape: Shape,
        report: &'a TreeReport,
    ) -> Self {
        Self {
            sources: sources.iter().map(|source| source.to_string_lossy()).collect(),
            destination: destination.map(Path::to_string_lossy),
            shape,
            report,
        }
    }
}

/// The files that a copy of directories skipped, a line for each.
pub(super) fn skipped_text(report: &TreeReport) -> String {
    let line = |(path, what): &(PathBuf, &str)| {
        let path = path.to_string_lossy();
        format!("polyrail: skipped {}: it is {what}\n", printable::escaped(&path))
    };
    report.skipped_files.iter().map(line).collect()
}

/// The report of a copy of directories as text.
pub(super) fn tree_text(shape: Shape, report: &TreeReport) -> String {
    let Shape { rails, devices, .. } = shape;
    let count = |count: u64, what: &str| match count {
        0 => String::new(),
        count => format!(", {count} {what}"),
    };
    format!(
        "{} file{}, {} in {:.3} s, {:.2} GB/s{}{}: {} request{} of up to {}, {} over {rails} rail{} on \
         {devices} device{}\n\n{}",
        report.files,
        plural(report.files as usize),
        human_size(report.bytes),
        report.seconds,
        report.gigabytes_per_second,
        count(report.unchanged, "unchanged"),
        count(report.skipped, "skipped"),
        report.requests,
        plural(report.requests as usize),
        human_size(shape.message_size),
        shape.scheme_name(),
        plural(rails),
        plural(devices),
        rails_text(&report.sender, &report.receiver),
    )
}

/// The report of a copy as text.
pub(super) fn copy_text(shape: Shape, report: &CopyReport) -> String {
    let Shape { rails, devices, .. } = shape;
    format!(
        "{} in {:.3} s, {:.2} GB/s: {} request{} of up to {}, {} over {rails} rail{} on {devices} \
         device{}\nCRC-32 {}, the same at both ends\n\n{}",
        human_size(report.bytes),
        report.seconds,
        report.gigabytes_per_second,
        report.requests,
        plural(report.requests as usize),
        human_size(shape.message_size),
        shape.scheme_name(),
        plural(rails),
        plural(devices),
        report.crc32,
        rails_text(&report.sender, &report.receiver),
    )
}

/// The counts of the rails of each side, as a table.
fn rails_text(sender: &Option<SideReport>, receiver: &Option<SideReport>) -> String {
    let mut table = Table::new(&[
        "side",
        "rail",
        "device",
        "qp_num",
        "bytes",
        "requests",
        "doorbells",
        "completions",
        "errors",
        "failures",
        "state at the end",
    ]);
    for (side, rails) in [("sender", sender), ("receiver", receiver)] {
        for rail in rails.iter().flat_map(|side| &side.rails) {
            table.row(rail_cells(side, rail));
        }
    }
    table.text()
}

/// Returns the plural ending of a noun after `count`.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn rail_cells(side: &str, report: &RailReport) -> Vec<String> {
    // The generation is left out: events of rails are printed as they happen.
    let RailReport {
        rail,
        device,
        qp_num,
        bytes,
        send_requests,
        doorbells,
        completions,
        errors,
        failures,
        ..
    } = report;
    let numbers = [*bytes, *send_requests, *doorbells, *completions, *errors, *failures];
    let names = [side.to_owned(), rail.clone(), device.clone(), qp_num.to_string()];
    let numbers = numbers.map(|number| number.to_string());
    names.into_iter().chain(numbers).chain([report.state_name().to_owned()]).collect()
}
