//! Measures the lines of a table, and prints each as soon as it is measured: as a row, as CSV or as
//! JSON.

use super::args::PerfArguments;
use super::exit::Failure;
use super::line::Line;
use super::metrics::Export;
use super::setting::Setting;
use super::table::StreamedTable;
use super::{output, print, rails};
use polyrail_program::perf::{PerfConfig, PerfError, PerfProgress};
use polyrail_program::session::SessionError;
use polyrail_program::size::human_size;
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A function that measures requests to a place.
pub(super) type Measure<T> = dyn Fn(&PerfConfig, &PerfProgress) -> Result<T, PerfError>;

/// The forms of a line other than JSON.
pub(super) trait Cells {
    /// Returns the cells of the line's row.
    fn cells(&self) -> Vec<String>;

    /// Returns the line as comma-separated values, with a line end.
    fn csv(&self) -> String;
}

/// How lines are printed.
enum Form {
    Table(StreamedTable),
    Csv,
    Json,
}

/// Prints lines one by one.
pub(super) struct Printer {
    form: Form,
    /// What stands before the first line; empty once it is printed.
    head: String,
    lines: usize,
    /// Whether the reader of stdout is still there.
    is_open: bool,
}

impl Printer {
    /// Makes a printer of the form that was chosen. `about` is the text above a table.
    pub(super) fn new(
        arguments: &PerfArguments,
        about: &str,
        table: StreamedTable,
        csv_head: &str,
    ) -> Self {
        let (form, head) = if arguments.json {
            (Form::Json, "[\n".to_owned())
        } else if arguments.csv {
            (Form::Csv, csv_head.to_owned())
        } else {
            let head = format!("{about}\n\n{}", table.head());
            (Form::Table(table), head)
        };
        Self { form, head, lines: 0, is_open: true }
    }

    fn print<T>(&mut self, line: &Line<T>) -> Result<(), Failure>
    where
        Line<T>: Cells + Serialize,
    {
        let mut text = std::mem::take(&mut self.head);
        match &self.form {
            Form::Table(table) => text += &table.row(&line.cells()),
            Form::Csv => text += &line.csv(),
            Form::Json => {
                if self.lines > 0 {
                    text += ",\n";
                }
                let json = output::json(line).map_err(|error| Failure::stdout(&error))?;
                // Line ends within strings are escaped.
                text += &format!("  {}", json.replace('\n', "\n  "));
            }
        }
        self.lines += 1;
        self.is_open &= print::print_while_open(text.as_bytes())?;
        Ok(())
    }

    /// Prints what stands after the last line, if there is a line.
    fn end(&self) -> Result<(), Failure> {
        match self.form {
            Form::Json if self.lines > 0 => print::print(b"\n]\n"),
            _ => Ok(()),
        }
    }

    /// Shows what is being measured, on a terminal.
    fn show_progress(&self, config: &PerfConfig) {
        if matches!(self.form, Form::Table(_)) && std::io::stderr().is_terminal() {
            let (lines, name) = (self.lines, config.operation.name());
            let size = human_size(config.message_size.into());
            output::tell(&format!("\r\x1b[K{lines} lines measured, now {name} of {size}"));
        }
    }

    fn erase_progress(&self) {
        if matches!(self.form, Form::Table(_)) && std::io::stderr().is_terminal() {
            output::tell("\r\x1b[K");
        }
    }
}

/// Measures a line for each configuration, and prints it and then the events of its rails. An
/// interrupt ends the last line early; this is not an error. With a closed stdout, only a picture
/// needs the other lines.
pub(super) fn measure_lines<T>(
    arguments: &PerfArguments,
    threads: u8,
    configs: impl Iterator<Item = PerfConfig>,
    measure: &Measure<T>,
    interrupted: &Arc<AtomicBool>,
    mut printer: Printer,
) -> Result<Vec<Line<T>>, Failure>
where
    Line<T>: Cells + Serialize,
{
    let export = Export::start(arguments.metrics.as_ref(), false);
    let mut lines = Vec::new();
    let mut failure = None;
    for config in configs {
        let is_read = printer.is_open || arguments.plot.is_some();
        if interrupted.load(Ordering::Relaxed) || !is_read {
            break;
        }
        printer.show_progress(&config);
        let rails = export.news("perf");
        let progress = PerfProgress { rails, ..PerfProgress::ended_by(interrupted) };
        let measured = measure(&config, &progress);
        printer.erase_progress();
        rails::news(&progress.rails, "").inspect(|news| output::tell(news));
        match measured {
            Ok(measured) => {
                let setting = Setting::new(arguments, &config);
                let line = Line::new(threads, &config, setting, measured);
                printer.print(&line)?;
                lines.push(line);
            }
            Err(PerfError::Session(SessionError::Interrupted)) => break,
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    printer.end()?;
    failure.map_or(Ok(lines), |error| Err(error.into()))
}
