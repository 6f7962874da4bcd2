//! Text tables with automatic column widths.

use abi::text::VisibleText;

/// Formats the table with the titles `head` and the rows `format_rows`. Truncates lines to
/// `columns` characters, with `…` at the end. `right` contains the indices of right-aligned
/// columns.
pub(super) fn format_table<const N: usize>(
    head: [&str; N],
    format_rows: &[[String; N]],
    right: &[usize],
    columns: usize,
) -> String {
    let format_rows: Vec<&[String]> = format_rows.iter().map(<[String; N]>::as_slice).collect();
    self::format_rows(
        &head.map(str::to_owned),
        &format_rows,
        &|column| right.contains(&column),
        columns,
    )
}

/// Formats a table with any number of columns. Omits an empty header.
pub(super) fn format_rows(
    head: &[String],
    format_rows: &[impl AsRef<[String]>],
    right: &dyn Fn(usize) -> bool,
    columns: usize,
) -> String {
    let lines = || std::iter::once(head).chain(format_rows.iter().map(AsRef::as_ref));
    let count = lines().map(<[String]>::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines().filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |cells: &[String]| {
        let mut text = String::new();
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let width = *width;
            let cell = VisibleText(cell).to_string();
            let cell = match right(column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            };
            text.push_str(&cell);
            text.push_str("  ");
        }
        truncate(text.trim_end(), columns) + "\n"
    };
    lines().filter(|cells| !cells.is_empty()).map(line).collect()
}

/// Truncates a text to this many columns. The last column of a truncated text is `…`.
pub(super) fn truncate(text: &str, columns: usize) -> String {
    if text.chars().nth(columns).is_none() {
        return text.to_owned();
    }
    let kept = text.chars().take(columns.saturating_sub(1));
    kept.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_fit_their_widest_cell() {
        let format_rows = [["1".into(), "web".into()], ["22".into(), "a long one".into()]];
        let text = super::format_table(["no", "line"], &format_rows, &[0], 12);
        assert_eq!(text, "no  line\n 1  web\n22  a long …\n");
        let whole = super::format_table(["no", "line"], &format_rows, &[0], usize::MAX);
        assert_eq!(whole, "no  line\n 1  web\n22  a long one\n");
    }
}
