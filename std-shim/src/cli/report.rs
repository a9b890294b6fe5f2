//! What a copy did, for people and for programs.

use super::args::CopyArguments;
use super::table::Table;
use polyrail::endpoint::RailReport;
use polyrail::size::human_size;
use polyrail::transfer::{CopyOptions, CopyReport};
use polyrail::virtual_qp::Scheme;
use serde::Serialize;
use std::path::Path;

/// The report of a copy as JSON.
#[derive(Debug, Serialize)]
pub(super) struct CopyJson<'a> {
    source: &'a Path,
    destination: &'a Path,
    scheme: &'static str,
    rails: usize,
    devices: usize,
    max_msg_size: u32,
    message_size: u64,
    window: u64,
    #[serde(flatten)]
    report: &'a CopyReport,
}

impl<'a> CopyJson<'a> {
    pub(super) fn new(
        arguments: &'a CopyArguments,
        options: &CopyOptions,
        report: &'a CopyReport,
    ) -> Self {
        Self {
            source: &arguments.source,
            destination: &arguments.destination,
            scheme: scheme_name(options.scheme),
            rails: options.rails,
            devices: devices(options),
            max_msg_size: options.max_msg_size,
            message_size: options.message_size,
            window: options.window,
            report,
        }
    }
}

/// The report of a copy as text.
pub(super) fn copy_text(options: &CopyOptions, report: &CopyReport) -> String {
    let mut table = Table::new(&[
        "side",
        "rail",
        "device",
        "qp_num",
        "bytes",
        "fragments",
        "doorbells",
        "completions",
        "errors",
    ]);
    for (side, rails) in [("sender", &report.sender.rails), ("receiver", &report.receiver.rails)] {
        for rail in rails {
            table.row(rail_cells(side, rail));
        }
    }
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let CopyOptions { rails, .. } = options;
    let devices = devices(options);
    format!(
        "{} in {:.3} s, {:.2} GB/s: {} request{} of up to {}, {} over {rails} rail{} on {devices} \
         device{}\nCRC-32 {}, the same at both ends\n\n{}",
        human_size(report.bytes),
        report.seconds,
        report.gigabytes_per_second,
        report.requests,
        plural(report.requests as usize),
        human_size(options.message_size),
        scheme_name(options.scheme),
        plural(*rails),
        plural(devices),
        report.crc32,
        table.text(),
    )
}

fn rail_cells(side: &str, report: &RailReport) -> Vec<String> {
    let RailReport { rail, device, qp_num, bytes, fragments, doorbells, completions, errors } =
        report;
    let numbers = [*bytes, *fragments, *doorbells, *completions, *errors];
    let names = [side.to_owned(), rail.clone(), device.clone(), qp_num.to_string()];
    names.into_iter().chain(numbers.map(|number| number.to_string())).collect()
}

/// Devices that rails are on, on either side.
fn devices(options: &CopyOptions) -> usize {
    options.devices.unwrap_or(options.rails).min(options.rails)
}

pub(super) fn scheme_name(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Spray => "spray",
        Scheme::Dqplb => "dqplb",
    }
}
