//! The alternate screen of a terminal in raw mode, for views that are redrawn in place, and styles
//! for the rows of graphs.

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use std::io::{self, Write};

/// The alternate screen of the terminal to which `W` writes. Dropping this value restores the
/// terminal.
pub(crate) struct Screen<W: Write> {
    pub(crate) terminal: Terminal<CrosstermBackend<W>>,
    _mode: ScreenMode<W>,
}

/// A guard for raw mode and the alternate screen, with a function that returns a handle to the
/// terminal. Dropping the guard restores the terminal.
struct ScreenMode<W: Write>(fn() -> W);

impl<W: Write> Screen<W> {
    /// Opens the alternate screen on the terminal. `output` returns a handle to the terminal.
    pub(crate) fn open(output: fn() -> W) -> io::Result<Self> {
        enable_raw_mode()?;
        let mode = ScreenMode(output);
        execute!(output(), EnterAlternateScreen)?;
        let terminal = Terminal::new(CrosstermBackend::new(output()))?;
        Ok(Self { terminal, _mode: mode })
    }
}

impl<W: Write> Drop for ScreenMode<W> {
    fn drop(&mut self) {
        // Errors while restoring the terminal cannot be reported.
        let _ = execute!((self.0)(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Styles a row of a drawn graph by its meaning: a horizontal rule is dim, and a row with losses is
/// red if `has_colour` is true.
pub(crate) fn style_graph_row(row: &str, has_colour: bool) -> Line<'_> {
    match row {
        _ if row.starts_with('─') => Line::styled(row, Style::new().add_modifier(Modifier::DIM)),
        _ if row.contains("  lost ") && has_colour => {
            Line::styled(row, Style::new().fg(Color::Red))
        }
        _ => Line::from(row),
    }
}
