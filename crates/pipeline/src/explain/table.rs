//! Tables for a terminal, with columns of minimal width and cells wrapped between words.

use std::fmt::Write as _;

/// The maximum width of a text, in columns. Only a longer word may exceed it.
pub const TEXT_COLUMNS_MAX: usize = 100;

/// A table: rows with column headings.
#[derive(Debug)]
pub struct Table {
    /// The headings, each with a flag that is true if the column is right-aligned.
    columns: Vec<(&'static str, bool)>,
    rows: Vec<Vec<String>>,
}

/// The number of blank columns between two cells of a table.
const CELL_GAP: usize = 2;
/// The minimum width of a column whose cells are wrapped.
const WRAPPED_WIDTH_MIN: usize = 14;

impl Table {
    /// Returns a table without rows. A title may begin with `>`, which is not printed and makes the
    /// column right-aligned.
    #[must_use]
    pub fn new(titles: &[&'static str]) -> Self {
        let column = |title: &&'static str| (title.trim_start_matches('>'), title.starts_with('>'));
        Self { columns: titles.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row, with one cell for each column; surplus cells are dropped.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().take(self.columns.len()).collect());
    }

    /// Returns true if the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table with at most `columns` characters per line, unless a wrapped column would
    /// become narrower than the minimum.
    #[must_use]
    pub fn format_within(&self, columns: usize) -> String {
        let titles: Vec<String> =
            self.columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let widths = self.widths(&titles, columns);
        let mut out = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            self.write(&mut out, row, &widths);
        }
        out
    }

    /// Returns the widths of the columns. Starts with the natural widths, and narrows the widest
    /// left-aligned column until all columns fit or that column has the minimum width.
    fn widths(&self, titles: &[String], columns: usize) -> Vec<usize> {
        let width = |at: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(at)).chain(titles.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..titles.len()).map(width).collect();
        let gaps = 1 + CELL_GAP * titles.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > columns {
            let words = widths.iter_mut().zip(&self.columns).filter(|(_, (_, right))| !right);
            let Some((widest, _)) = words.max_by_key(|(width, _)| **width) else { break };
            if *widest <= WRAPPED_WIDTH_MIN {
                break;
            }
            *widest -= 1;
        }
        widths
    }

    fn write(&self, out: &mut String, row: &[String], widths: &[usize]) {
        let cells: Vec<Vec<String>> =
            row.iter().zip(widths).map(|(cell, width)| wrap_text(cell, *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let mut text = String::from(" ");
            for ((cell, width), (_, right)) in cells.iter().zip(widths).zip(&self.columns) {
                let part = cell.get(line).map_or("", String::as_str);
                let _ = match right {
                    true => write!(text, "{part:>width$}{:CELL_GAP$}", ""),
                    false => write!(text, "{part:<width$}{:CELL_GAP$}", ""),
                };
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
    }
}

/// Splits a text into lines of at most `columns` characters, between words where possible.
#[must_use]
pub fn wrap_text(text: &str, columns: usize) -> Vec<String> {
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
    fn table_wraps_cells_between_words() {
        assert_eq!(wrap_text("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap_text("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert_eq!(wrap_text("", 5), [""]);
    }

    #[test]
    fn table_narrows_the_widest_column_first() {
        let mut table = Table::new(&["name", ">n", "why"]);
        table.add_row([
            "a".to_owned(),
            "10".to_owned(),
            "because it is so and no other way".to_owned(),
        ]);
        table.add_row(["bcd".to_owned(), "7".to_owned(), "–".to_owned()]);
        let wanted = [
            " name   n  why",
            " a     10  because it is so",
            "           and no other way",
            " bcd    7  –",
        ];
        assert_eq!(table.format_within(29).lines().collect::<Vec<_>>(), wanted);
        assert!(table.format_within(100).lines().all(|line| !line.ends_with(' ')));
    }
}
