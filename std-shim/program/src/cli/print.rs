//! Prints the result of a command; turns errors of stdout into failures of the command.

use super::exit::Failure;
use super::output;
use serde::Serialize;

/// Writes to stdout.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    print_while_open(bytes).map(|_| ())
}

/// Writes to stdout, and returns whether its reader has not closed it.
pub(super) fn print_while_open(bytes: &[u8]) -> Result<bool, Failure> {
    output::write(bytes).map_err(|error| Failure::stdout(&error))
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    output::write_json(value).map(|_| ()).map_err(|error| Failure::stdout(&error))
}
