//! The counts that were accepted, in a file that is committed.

use super::Counts;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use std::{fs, io};

/// Where the accepted counts are.
pub const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json");

/// A row may cost at most this many times what was accepted.
pub const GROWTH: f64 = 1.03;

/// What the counts depend on in addition to the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compiler {
    /// The compiler and its LLVM, with their versions.
    pub compiler: String,
    /// The target that it compiled for.
    pub target: String,
}

impl Compiler {
    /// Returns the environment of this program.
    pub fn current() -> Self {
        let compiler = env!("POLYRAIL_COMPILER").to_owned();
        Self { compiler, target: env!("POLYRAIL_TARGET").to_owned() }
    }
}

impl Display for Compiler {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.compiler, self.target)
    }
}

/// Counts, and the compiler that they are of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accepted {
    /// The compiler.
    #[serde(flatten)]
    pub compiler: Compiler,
    /// The rows.
    pub rows: Vec<Counts>,
}

/// Why the accepted counts cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file.
    #[error("cannot read or write {PATH}")]
    Io(#[from] io::Error),
    /// Its contents.
    #[error("{PATH} is not what `--accept` writes")]
    Format(#[from] serde_json::Error),
}

/// A row that costs more than was accepted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grown<'r> {
    /// The row.
    pub name: &'r str,
    /// What was accepted; `None` if the row is new.
    pub accepted: Option<f64>,
    /// What was counted.
    pub counted: f64,
}

impl Display for Grown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { name, accepted, counted } = self;
        match accepted {
            Some(accepted) => {
                write!(f, "{name}: {counted:.2} instructions, accepted {accepted:.2}")
            }
            None => write!(f, "{name}: {counted:.2} instructions, none accepted yet"),
        }
    }
}

impl Accepted {
    /// Reads the file at [`PATH`].
    ///
    /// # Errors
    ///
    /// It cannot be read, or holds something else.
    pub fn read() -> Result<Self, FileError> {
        Ok(serde_json::from_str(&fs::read_to_string(PATH)?)?)
    }

    /// Writes the file at [`PATH`].
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn write(&self) -> Result<(), FileError> {
        Ok(fs::write(PATH, self.text()?)?)
    }

    /// The file's contents: a line for each row, so that differences are read easily.
    fn text(&self) -> Result<String, serde_json::Error> {
        let compiler = serde_json::to_string(&self.compiler.compiler)?;
        let target = serde_json::to_string(&self.compiler.target)?;
        let rows: Result<Vec<_>, _> = self.rows.iter().map(serde_json::to_string).collect();
        let rows = rows?.join(",\n    ");
        Ok(format!(
            "{{\n  \"compiler\": {compiler},\n  \"target\": {target},\n  \"rows\": [\n    {rows}\n  ]\n}}\n"
        ))
    }

    /// What was accepted for a row.
    pub fn engine(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.engine)
    }

    /// The rows of `counted` whose engine costs more than was accepted, and new ones.
    pub fn grown<'r>(&self, counted: &'r [Counts]) -> Vec<Grown<'r>> {
        let grown = counted.iter().map(|row| Grown {
            name: &row.name,
            accepted: self.engine(&row.name),
            counted: row.engine,
        });
        grown.filter(|row| row.accepted.is_none_or(|most| row.counted > most * GROWTH)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(name: &str, engine: f64) -> Counts {
        Counts { name: name.to_owned(), floor: 10.0, baseline: 100.0, engine }
    }

    fn accepted() -> Accepted {
        let rows = vec![counts("one", 100.0), counts("two", 200.0)];
        Accepted { compiler: Compiler::current(), rows }
    }

    #[test]
    fn rows_may_grow_by_three_percent_and_shrink_at_will() {
        let within = [counts("one", 103.0), counts("two", 20.0)];
        assert!(accepted().grown(&within).is_empty());
        let beyond = [counts("one", 103.01), counts("two", 206.0)];
        let one = Grown { name: "one", accepted: Some(100.0), counted: 103.01 };
        assert_eq!(accepted().grown(&beyond), [one]);
        assert_eq!(one.to_string(), "one: 103.01 instructions, accepted 100.00");
    }

    #[test]
    fn a_new_row_is_not_accepted_by_itself() {
        let three = [counts("three", 1.0)];
        let grown = Grown { name: "three", accepted: None, counted: 1.0 };
        assert_eq!(accepted().grown(&three), [grown]);
    }

    #[test]
    fn the_file_has_a_line_for_each_row_and_is_read_as_it_was_written() {
        let text = accepted().text().unwrap();
        assert_eq!(text.lines().filter(|line| line.contains("\"name\"")).count(), 2);
        assert_eq!(serde_json::from_str::<Accepted>(&text).unwrap(), accepted());
    }

    #[test]
    fn the_committed_file_has_every_row() {
        let committed = Accepted::read().unwrap();
        let names: Vec<_> = committed.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, crate::rows::ROWS.map(|row| row.name));
    }
}
