//! A table of words, its columns as wide as what stands in them.

/// Rows under a head, of at most so many columns of text; the last column is cut.
pub(super) fn table<const N: usize>(
    head: [&str; N],
    rows: &[[String; N]],
    right: &[usize],
    columns: usize,
) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |cells: [&str; N]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let width = widths[column];
            let cell = match right.contains(&column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            };
            text.push_str(&cell);
            text.push_str("  ");
        }
        let mut cut: String = text.trim_end().chars().take(columns).collect();
        cut.push('\n');
        cut
    };
    let mut text = line(head);
    for row in rows {
        text.push_str(&line(std::array::from_fn(|column| row[column].as_str())));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [["1".into(), "web".into()], ["22".into(), "a long one".into()]];
        let text = super::table(["no", "line"], &rows, &[0], 12);
        assert_eq!(text, "no  line\n 1  web\n22  a long o\n");
    }
}
