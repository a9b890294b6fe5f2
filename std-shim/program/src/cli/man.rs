//! `polyrail man`: man pages.

use super::args::{Arguments, definition};
use super::exit::Failure;
use super::print;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;

/// Prints the page of the program, or of one of its commands.
pub(super) fn run(command: Option<&str>) -> Result<(), Failure> {
    let mut program = definition().disable_help_subcommand(true);
    // This gives each command its full name.
    program.build();
    let page = match command {
        None => program,
        Some(name) => program.find_subcommand(name).cloned().ok_or_else(|| unknown(name))?,
    };
    // Writing to memory cannot fail.
    let page = rendered(&page).map_err(|error| Failure::stdout(&error))?;
    print::print(&page)
}

fn unknown(name: &str) -> Failure {
    let names = Arguments::command();
    let names: Vec<&str> = names.get_subcommands().map(Command::get_name).collect();
    Failure::usage(&format!("{name:?} is not a command: there are {}", names.join(", ")))
}

fn rendered(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    // The text after the options has sections that this module renders.
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone().after_help("").version(version))
        .source(format!("polyrail {version}"))
        .manual("User Commands");
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    notes(&text).to_writer(&mut page)?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// Renders the paragraphs after the options. One whose first line ends with a colon is a section of
/// lines that stay as they are; the others are notes.
fn notes(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_in_notes = false;
    for paragraph in text.split("\n\n") {
        let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        if let Some(title) = first.strip_suffix(':').filter(|_| rest.starts_with(' ')) {
            // Long titles are sentences.
            let title = title.split([',', ';']).next().unwrap_or_default();
            roff.control("SH", [title.to_uppercase().as_str()]).control("nf", []);
            roff.text(rest.lines().map(|line| roman(format!("{line}\n"))).collect::<Vec<_>>());
            roff.control("fi", []);
            is_in_notes = false;
        } else {
            if !is_in_notes {
                roff.control("SH", ["NOTES"]);
            } else {
                roff.control("PP", []);
            }
            roff.text([roman(paragraph)]);
            is_in_notes = true;
        }
    }
    roff
}
