//! Counts the instructions of every row and compares them with those that were accepted.

use clap::Parser;
use clap::builder::PossibleValuesParser;
use polyrail_benches::instructions::accepted::{Accepted, Compiler, GROWTH};
use polyrail_benches::instructions::{Counts, callgrind};
use polyrail_benches::measure::as_printed;
use polyrail_benches::rows::{ROWS, Row};
use std::error::Error;
use std::io::{self, Write};
use std::iter::{once, successors};
use std::process::ExitCode;

/// Instructions of floor, baseline and engine on a null device, counted by callgrind.
///
/// Fails if the engine needs over 3% more in a row than was accepted with the same compiler.
#[derive(Debug, Parser)]
struct Options {
    /// Accept what is counted: write it to benches/instructions.json.
    #[arg(long, conflicts_with = "only")]
    accept: bool,

    /// Count this row only; may be given more than once.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(ROWS.map(|row| row.name)))]
    only: Vec<String>,

    /// Only run this contender of the row: how callgrind is given this program.
    #[arg(long, hide = true, requires = "only")]
    run: Option<String>,
}

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    let sources = successors(error.source(), |error| (*error).source());
    let messages: Vec<_> =
        once(error.to_string()).chain(sources.map(ToString::to_string)).collect();
    eprintln!("{}", messages.join(": "));
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let wanted = |row: &Row| options.only.is_empty() || options.only.iter().any(|o| o == row.name);
    let rows: Vec<_> = ROWS.into_iter().filter(wanted).collect();
    if let Some(contender) = options.run {
        rows.iter().for_each(|row| callgrind::run(row, &contender));
        return Ok(());
    }
    if cfg!(debug_assertions) {
        return Err("built without optimisation, these counts mean nothing: use --release".into());
    }
    let again = |row, contender| vec!["--only", row, "--run", contender];
    let counted: Result<Vec<_>, _> = rows.iter().map(|row| callgrind::count(row, again)).collect();
    let counted = counted?;
    let out = &mut io::stdout().lock();
    if options.accept {
        let accepted = Accepted { compiler: Compiler::current(), rows: counted };
        print_rows(out, &rows, &accepted.rows, &accepted)?;
        accepted.write()?;
        return Ok(());
    }
    let accepted = Accepted::read()?;
    print_rows(out, &rows, &counted, &accepted)?;
    judge(out, &counted, &accepted)
}

/// Fails if a row has grown. Only reports if the accepted counts are of another compiler.
fn judge(
    out: &mut impl Write,
    counted: &[Counts],
    accepted: &Accepted,
) -> Result<(), Box<dyn Error>> {
    let current = Compiler::current();
    let grown: Vec<_> = accepted.grown(counted).iter().map(ToString::to_string).collect();
    let grown = grown.join("\n");
    if accepted.compiler != current {
        writeln!(out, "\nAccepted with {}.", accepted.compiler)?;
        writeln!(out, "This is {current}, so nothing is judged.\n{grown}")?;
        return Ok(());
    }
    if grown.is_empty() {
        return Ok(());
    }
    let percent = (GROWTH - 1.0) * 100.0;
    Err(format!("over {percent:.0}% more than was accepted (see --accept):\n{grown}").into())
}

fn print_rows(
    out: &mut impl Write,
    rows: &[Row],
    counted: &[Counts],
    accepted: &Accepted,
) -> io::Result<()> {
    writeln!(
        out,
        "{:<19} {:>8} {:>9} {:>8} {:>8}  {:>7} {:>5}  {:>10}  holds",
        "instructions", "floor", "baseline", "engine", "change", "x floor", "limit", "x baseline",
    )?;
    rows.iter().zip(counted).try_for_each(|(row, counts)| print_row(out, row, counts, accepted))
}

fn print_row(
    out: &mut impl Write,
    row: &Row,
    counts: &Counts,
    accepted: &Accepted,
) -> io::Result<()> {
    let Counts { name, floor, baseline, engine } = counts;
    let change = accepted.engine(name).map(|accepted| (engine / accepted - 1.0) * 100.0);
    let change = change.map_or("new".to_owned(), |percent| format!("{percent:+.1}%"));
    // To the precision that is printed.
    let holds = as_printed(counts.floor_ratio()) <= row.instruction_limit;
    writeln!(
        out,
        "{name:<19} {floor:>8.2} {baseline:>9.2} {engine:>8.2} {change:>8}  {:>7.2} {:>5.2}  {:>10.3}  {:<5}  {}",
        counts.floor_ratio(),
        row.instruction_limit,
        counts.baseline_ratio(),
        if holds { "yes" } else { "NO" },
        row.work,
    )
}
