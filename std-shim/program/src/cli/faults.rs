//! Reports injected faults on standard error: when they began and ended, what happened to rails,
//! and which faults did not occur.

use super::exit::Failure;
use super::rails;
use polyrail_program::fault::{Begin, RailFault};
use polyrail_program::fault_schedule::FaultLog;
use polyrail_program::session::RailNews;
use polyrail_program::size::human_size;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Refuses faults of a command to another host: real NICs cannot inject them.
pub(super) fn refuse_with(host: Option<&str>, faults: &[RailFault]) -> Result<(), Failure> {
    if host.is_some() && !faults.is_empty() {
        return Err(Failure::usage(
            "--fault cannot be combined with --to: only the software NIC can inject faults",
        ));
    }
    Ok(())
}

/// Formats faults and rail events of a job as lines for standard error; no lines if it is quiet.
pub(super) struct Announcer<'a> {
    log: &'a FaultLog,
    rails: &'a RailNews,
    quiet: bool,
    /// Indices of the faults that have begun.
    happened: RefCell<BTreeSet<usize>>,
}

impl<'a> Announcer<'a> {
    pub(super) fn new(log: &'a FaultLog, rails: &'a RailNews, quiet: bool) -> Self {
        Self { log, rails, quiet, happened: RefCell::default() }
    }

    /// Returns the faults and rail events since the last call as lines, or `None` if there are
    /// none.
    pub(super) fn news(&self) -> Option<String> {
        let mut text = String::new();
        for event in self.log.take() {
            // Writing to a string cannot fail.
            _ = writeln!(text, "polyrail: fault at {:.3} s: {event}", event.at.as_secs_f64());
            self.happened.borrow_mut().insert(event.fault);
        }
        text.extend(rails::news(self.rails, ""));
        (!self.quiet && !text.is_empty()).then_some(text)
    }

    /// Returns a line for each fault that did not occur before `job` ended.
    pub(super) fn absent(&self, faults: &[RailFault], job: &str) -> String {
        let mut text = String::new();
        let happened = self.happened.borrow();
        let absent = |(index, _): &(usize, _)| !self.quiet && !happened.contains(index);
        for (_, fault) in faults.iter().enumerate().filter(absent) {
            let before = match fault.begin {
                Begin::Bytes(bytes) => format!("its device had carried {}", human_size(bytes)),
                Begin::Time(time) => format!("{time:?} had passed"),
            };
            let rail = fault.rail;
            // Writing to a string cannot fail.
            _ = writeln!(
                text,
                "polyrail: the fault on rail {rail} did not happen: the {job} ended before {before}"
            );
        }
        text
    }
}
