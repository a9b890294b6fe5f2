//! Prints the result of a command; turns errors of stdout into failures of the command.

use super::exit::Failure;
use super::output;
use serde::Serialize;

/// Writes to stdout.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    output::write(bytes).map_err(|error| Failure::stdout(&error))
}

/// Prints a value as JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    output::write_json(value).map_err(|error| Failure::stdout(&error))
}
