//! Plain text tables.

/// Rows of cells under a head. Columns of numbers are aligned to the right, others to the left.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns the lines of the table.
    pub(super) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().filter_map(move |row| row.get(column));
        let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let is_number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit());
        let numeric = |column| cells(column).skip(1).filter(|c| !is_number(c)).count() == 0;
        let layout: Vec<Column> =
            (0..columns).map(|c| Column { width: width(c), is_numeric: numeric(c) }).collect();
        self.rows.iter().map(|row| line(row, &layout)).collect()
    }
}

/// The width of a column, and whether it is aligned to the right.
#[derive(Debug)]
struct Column {
    width: usize,
    is_numeric: bool,
}

/// Returns a row as a line of text.
fn line(row: &[String], columns: &[Column]) -> String {
    let mut line = String::new();
    for (cell, &Column { width, is_numeric }) in row.iter().zip(columns) {
        line += &if is_numeric { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
    }
    format!("{}\n", line.trim_end())
}

/// A table whose rows are printed before the next ones are known, so the widths of columns are
/// chosen beforehand. A cell that is wider shifts the rest of its row.
#[derive(Debug, Default)]
pub(super) struct StreamedTable {
    head: Vec<String>,
    columns: Vec<Column>,
}

impl StreamedTable {
    /// Adds a column of words, at least as wide as each of `words`.
    pub(super) fn words(self, head: &str, words: impl Iterator<Item = impl AsRef<str>>) -> Self {
        let width = words.map(|word| word.as_ref().chars().count()).max().unwrap_or(0);
        self.column(head, width, false)
    }

    /// Adds a column of numbers with up to `digits` characters.
    pub(super) fn numbers(self, head: &str, digits: usize) -> Self {
        self.column(head, digits, true)
    }

    fn column(mut self, head: &str, width: usize, is_numeric: bool) -> Self {
        let width = width.max(head.chars().count());
        self.head.push(head.to_owned());
        self.columns.push(Column { width, is_numeric });
        self
    }

    /// Returns the line of the head.
    pub(super) fn head(&self) -> String {
        line(&self.head, &self.columns)
    }

    /// Returns the line of a row.
    pub(super) fn row(&self, cells: &[String]) -> String {
        line(cells, &self.columns)
    }
}

/// Returns a value as the text of a cell; a dash if it is unknown.
pub(super) fn known(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| "-".into(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_each_other() {
        let mut table = Table::new(&["name", "bytes"]);
        table.row(vec!["tx0".into(), "5".into()]);
        table.row(vec!["receiver".into(), "1024".into()]);
        assert_eq!(table.text(), "name      bytes\ntx0           5\nreceiver   1024\n");
    }

    #[test]
    fn rows_that_are_printed_one_by_one_stand_under_each_other() {
        let words = ["tx0", "receiver"];
        let table = StreamedTable::default().words("name", words.iter()).numbers("bytes", 6);
        assert_eq!(table.head(), "name       bytes\n");
        assert_eq!(table.row(&["tx0".into(), "5".into()]), "tx0            5\n");
        assert_eq!(table.row(&["tx0".into(), "1234567".into()]), "tx0       1234567\n");
    }
}
