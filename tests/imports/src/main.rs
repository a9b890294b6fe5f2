//! Looks for modules that import each other.

mod circles;
mod conditions;
mod graph;
mod names;
mod paths;
mod report;
mod resolve;
mod tree;

#[cfg(test)]
mod tests;

use clap::Parser;
use report::Report;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use tree::Tree;

const DETAILS: &str = "\
A module imports another one where it names one of its items: in a `use`, or in a path anywhere in \
its code, macros included. What comes through a re-export is imported from the module that defines \
it; declaring a module and re-exporting its items does not count as an import. Neither does what is \
compiled for tests only. Method calls are not seen: they name no module.

Checked twice: between files, and between the modules of the crate's root, each with all that is \
within it. A circle of both kinds is listed once.

Exit codes: 0 no circles; 1 there are circles, and they are listed; 2 the sources cannot be read.";

/// Looks for modules that import each other, directly or by way of others.
#[derive(Debug, Parser)]
#[command(name = "imports", after_help = DETAILS, max_term_width = 100)]
struct Arguments {
    /// The root of each crate: `lib.rs`, `main.rs`.
    #[arg(required = true)]
    roots: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match check(&Arguments::parse()) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
            ExitCode::from(2)
        }
    }
}

/// Prints the circles of every crate, and returns how many there are.
fn check(arguments: &Arguments) -> Result<usize, tree::ReadError> {
    let mut total = 0;
    for root in &arguments.roots {
        let tree = Tree::read(root, &|file| std::fs::read_to_string(file))?;
        let report = Report::new(&tree);
        print!("{report}");
        total += report.count_circles();
    }
    Ok(total)
}
