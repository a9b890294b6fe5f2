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
        let layout: Vec<(usize, bool)> = (0..columns).map(|c| (width(c), numeric(c))).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, (width, numeric)) in row.iter().zip(&layout) {
                line += &if *numeric {
                    format!("{cell:>width$}  ")
                } else {
                    format!("{cell:<width$}  ")
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
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
}
