//! Elements that both screens of `top` share: titles, rows, keys and colors.

use super::list_state::ListState;
use crate::terminal;
use member::client::mask_hidden_characters;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row};

/// Returns a style with the given color, or without a color if standard output must not be colored.
pub(super) fn color_style(wanted: Color) -> Style {
    if terminal::can_color_stdout() { Style::new().fg(wanted) } else { Style::new() }
}

/// Formats the titles of a table's columns, and marks the column `ordered_by`, by which the rows
/// are sorted.
pub(super) fn title_row(
    titles: &[&str],
    is_right: impl Fn(usize) -> bool,
    ordered_by: &str,
) -> Row<'static> {
    let cells = titles.iter().enumerate().map(|(column, title)| {
        let mark = if *title == ordered_by { "▾" } else { "" };
        let text = format!("{title}{mark}");
        if is_right(column) { right_aligned(text) } else { Cell::from(text) }
    });
    Row::new(cells.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::BOLD))
}

/// Reverses the colors of a row if it is selected.
pub(super) fn highlight_row(row: Row<'static>, is_selected: bool) -> Row<'static> {
    if is_selected { row.style(Style::new().add_modifier(Modifier::REVERSED)) } else { row }
}

pub(super) fn right_aligned(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

pub(super) fn section_paragraph(
    title: &'static str,
    lines: Vec<Line<'static>>,
) -> Paragraph<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Paragraph::new(lines).block(Block::new().title(Line::styled(title, bold)))
}

/// Formats one line per key, with the effect of the key.
pub(super) fn key_lines(keys: &[(&str, &str)]) -> Vec<Line<'static>> {
    keys.iter().map(|(key, effect)| Line::from(format!("  {key:12} {effect}"))).collect()
}

/// Returns the line that displays the text filter, with a cursor while the user is typing. Returns
/// `None` if there is no text filter.
pub(super) fn input_line(list: &ListState) -> Option<Line<'static>> {
    let cursor = if list.is_typing { "_" } else { "  (Esc clears)" };
    let is_used = list.is_typing || !list.filter.is_empty();
    is_used.then(|| Line::from(format!("/{}{cursor}", mask_hidden_characters(&list.filter))))
}
