//! Rows of a measurement over time, printed while it runs: one for each interval between samples.

use super::args::PerfArguments;
use super::exit::Failure;
use super::print::print_while_open;
use super::table::StreamedTable;
use polyrail_program::perf::{Mark, PerfProgress, Sample};
use std::sync::atomic::Ordering;

/// How rows are printed, if they are.
enum Form {
    Table(StreamedTable),
    Csv,
    Not,
}

/// Prints the intervals that have passed.
pub(super) struct Rows<'a> {
    progress: &'a PerfProgress,
    form: Form,
    /// What stands before the first row; empty once it is printed.
    head: String,
    last: Option<Sample>,
    /// Marks that stand in rows already.
    printed: Vec<Mark>,
    /// Whether a picture needs the measurement, too.
    is_plotted: bool,
    /// The reader of stdout is gone, or stdout cannot be written.
    ended: Option<Result<(), Failure>>,
}

impl<'a> Rows<'a> {
    /// Makes a printer of CSV, or of a table below `about` if an interval was chosen.
    pub(super) fn new(
        arguments: &PerfArguments,
        about: &str,
        progress: &'a PerfProgress,
        rails: usize,
    ) -> Self {
        let (form, head) = if arguments.csv {
            (Form::Csv, csv_head(rails))
        } else if arguments.interval.is_some() && !arguments.json {
            let table = StreamedTable::default().numbers("seconds", 9).numbers("GB/s", 7);
            let names = (0..rails).map(|rail| format!("rail {rail}"));
            let table = names.fold(table, |table, name| table.numbers(&name, 7));
            let head = format!("{about}\n\n{}", table.head());
            (Form::Table(table), head)
        } else {
            (Form::Not, String::new())
        };
        let is_plotted = arguments.plot.is_some();
        Self { progress, form, head, last: None, printed: Vec::new(), is_plotted, ended: None }
    }

    /// Returns whether a table of intervals has begun.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.form, Form::Table(_)) && self.head.is_empty()
    }

    /// Returns how stdout ended, if it did: its reader is gone, or it cannot be written.
    pub(super) fn ended(self) -> Option<Result<(), Failure>> {
        self.ended
    }

    /// Prints the intervals that have passed since the last call. Interrupts the measurement if
    /// stdout cannot be written, or if its reader is gone and no picture is drawn.
    pub(super) fn print(&mut self) {
        let samples = self.progress.samples.take();
        // After the samples, so that events before these are there.
        let marks = self.progress.marks();
        let mut text = String::new();
        for sample in samples {
            if let Some(last) = self.last.replace(sample.clone()) {
                text += &self.row(&last, &sample, &marks);
            }
        }
        if text.is_empty() || self.ended.is_some() {
            return;
        }
        let text = std::mem::take(&mut self.head) + &text;
        self.ended = match print_while_open(text.as_bytes()) {
            Ok(true) => return,
            Ok(false) => Some(Ok(())),
            Err(failure) => Some(Err(failure)),
        };
        let is_over = !self.is_plotted || matches!(self.ended, Some(Err(_)));
        self.progress.interrupted.fetch_or(is_over, Ordering::Relaxed);
    }

    fn row(&mut self, from: &Sample, to: &Sample, marks: &[Mark]) -> String {
        match &self.form {
            Form::Not => String::new(),
            Form::Csv => {
                let is_new = |mark: &&Mark| mark.at <= to.at && !self.printed.contains(mark);
                let new: Vec<Mark> = marks.iter().filter(is_new).cloned().collect();
                let row = csv_row(from, to, &new);
                self.printed.extend(new);
                row
            }
            Form::Table(table) => {
                let (all, rails) = to.rates_since(from);
                let rates = [all].into_iter().chain(rails).map(|rate| format!("{rate:.2}"));
                let seconds = format!("{:.3}", to.at.as_secs_f64());
                table.row(&[seconds].into_iter().chain(rates).collect::<Vec<_>>())
            }
        }
    }
}

fn csv_head(rails: usize) -> String {
    let rails: String = (0..rails).map(|rail| format!(",rail_{rail}")).collect();
    format!("seconds,gigabytes_per_second{rails},marks\n")
}

/// Returns the row of an interval between two samples: its end in seconds, GB/s acknowledged, GB/s
/// posted to each rail, and the marks.
fn csv_row(from: &Sample, to: &Sample, marks: &[Mark]) -> String {
    let (all, rails) = to.rates_since(from);
    let rails: String = rails.iter().map(|rate| format!(",{rate:.4}")).collect();
    let marks = marks.iter().map(|mark| mark.text.as_str()).collect::<Vec<_>>().join("; ");
    format!("{:.6},{all:.4}{rails},{}\n", to.at.as_secs_f64(), csv_quoted(&marks))
}

/// Quotes a value that may contain commas or quotes (RFC 4180).
fn csv_quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_program::perf::Cause;
    use std::time::Duration;

    #[test]
    fn a_row_has_the_rates_and_marks_of_its_interval() {
        let sample = |at, completed| Sample {
            at: Duration::from_millis(at),
            completed,
            rails: vec![completed, 2 * completed],
        };
        let mark = |at, text: &str| Mark {
            at: Duration::from_millis(at),
            cause: Cause::Fault(0),
            begins: true,
            text: text.to_owned(),
        };
        let (a, b, c) = (sample(0, 0), sample(10, 10_000_000), sample(20, 15_000_000));
        assert_eq!(csv_head(2), "seconds,gigabytes_per_second,rail_0,rail_1,marks\n");
        assert_eq!(csv_row(&a, &b, &[]), "0.010000,1.0000,1.0000,2.0000,\n");
        let marks = [mark(12, "say \"a, b\""), mark(20, "c")];
        assert_eq!(
            csv_row(&b, &c, &marks),
            "0.020000,0.5000,0.5000,1.0000,\"say \"\"a, b\"\"; c\"\n"
        );
    }
}
