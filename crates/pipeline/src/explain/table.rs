//! A table for a terminal: columns as wide as they must be, cells broken between words where they
//! would not fit.

use std::fmt::Write as _;

/// The head of a column.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// The heading.
    pub title: &'static str,
    /// True if cells are numbers, aligned right.
    pub right: bool,
}

impl Column {
    /// A column of words.
    #[must_use]
    pub const fn left(title: &'static str) -> Self {
        Self { title, right: false }
    }

    /// A column of numbers.
    #[must_use]
    pub const fn right(title: &'static str) -> Self {
        Self { title, right: true }
    }
}

/// Rows under their heads.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// Columns between two cells.
const GAP: usize = 2;
/// The narrowest that a column is made by breaking its cells.
const NARROW: usize = 14;

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().take(self.columns.len()).collect());
    }

    /// Returns true if the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table in at most so many columns, if its cells can be broken.
    #[must_use]
    pub fn text(&self, columns: usize) -> String {
        let titles: Vec<String> = self.columns.iter().map(|c| c.title.to_owned()).collect();
        let widths = self.widths(&titles, columns);
        let mut out = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            self.write(&mut out, row, &widths);
        }
        out
    }

    /// The widths of the columns: what they want, the widest narrowed until all fit.
    fn widths(&self, titles: &[String], columns: usize) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at)).chain(titles.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..titles.len()).map(width).collect();
        let gaps = 1 + GAP * titles.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > columns {
            let words = widths.iter_mut().zip(&self.columns).filter(|(_, column)| !column.right);
            let Some((widest, _)) = words.max_by_key(|(width, _)| **width) else { break };
            if *widest <= NARROW {
                break;
            }
            *widest -= 1;
        }
        widths
    }

    fn write(&self, out: &mut String, row: &[String], widths: &[usize]) {
        let cells: Vec<Vec<String>> =
            row.iter().zip(widths).map(|(cell, width)| wrap(cell, *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let mut text = String::from(" ");
            for ((cell, width), column) in cells.iter().zip(widths).zip(&self.columns) {
                let part = cell.get(line).map_or("", String::as_str);
                let _ = match column.right {
                    true => write!(text, "{part:>width$}{:GAP$}", ""),
                    false => write!(text, "{part:<width$}{:GAP$}", ""),
                };
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
}

/// The text in lines of at most so many columns, broken between words; a longer word is broken too.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut length = 0;
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + word.len() > columns {
            lines.push(std::mem::take(&mut line));
            length = 0;
        } else if length > 0 {
            line.push(' ');
            length += 1;
        }
        while word.len() > columns {
            let rest = word.split_off(columns);
            lines.push(word.into_iter().collect());
            word = rest;
        }
        length += word.len();
        line.extend(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_kept_together_as_long_as_they_fit() {
        assert_eq!(wrap("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn the_widest_column_gives_way() {
        let mut table =
            Table::new(&[Column::left("name"), Column::right("n"), Column::left("why")]);
        table.row([
            "a".to_owned(),
            "10".to_owned(),
            "because it is so and no other way".to_owned(),
        ]);
        table.row(["bcd".to_owned(), "7".to_owned(), "–".to_owned()]);
        let wanted = [
            " name   n  why",
            " a     10  because it is so",
            "           and no other way",
            " bcd    7  –",
        ];
        assert_eq!(table.text(29).lines().collect::<Vec<_>>(), wanted);
        assert!(table.text(100).lines().all(|line| !line.ends_with(' ')));
    }
}
