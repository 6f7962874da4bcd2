//! State of a list on the screen: the selected row, the text filter, and the visibility of the
//! help.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The action that a screen must take after a key was pressed in its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyEffect {
    /// The screen redraws itself.
    Redraw,
    /// The screen opens the row that is selected in the list.
    Open,
    /// The screen closes.
    Quit,
}

/// State of a list on the screen: the selected row, the text filter, and whether the help is shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ListState {
    /// Text of the filter. Only rows that contain this text are visible.
    pub(super) filter: String,
    /// True while the user types the text filter.
    pub(super) is_typing: bool,
    /// True while the help covers the list.
    pub(super) shows_help: bool,
    /// Index of the selected row among the rows that match the text filter.
    selected: usize,
}

impl ListState {
    /// Returns true if one of the texts of a row contains the text filter. Ignores case.
    pub(super) fn matches_filter(&self, texts: &[&str]) -> bool {
        let wanted = self.filter.to_lowercase();
        texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    /// Returns the index of the selected row among `count` rows that match the text filter.
    pub(super) fn selected_row_index(&self, count: usize) -> usize {
        self.selected.min(count.saturating_sub(1))
    }

    /// Returns the index of the first row on the screen. `count` is the number of rows that match
    /// the text filter, and `height` the number of rows that fit on the screen.
    pub(super) fn first_visible_row(&self, count: usize, height: usize) -> usize {
        (self.selected_row_index(count) + 1).saturating_sub(height.max(1))
    }

    /// Applies a key. `count` is the number of rows that match the text filter. Returns `None` if
    /// the key has no meaning in a list.
    pub(super) fn apply_key(&mut self, key: KeyEvent, count: usize) -> Option<KeyEffect> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Some(KeyEffect::Quit);
        }
        if self.is_typing {
            self.apply_filter_key(key.code);
            return Some(KeyEffect::Redraw);
        }
        let last = count.saturating_sub(1);
        let selected = self.selected_row_index(count);
        match key.code {
            KeyCode::Char('q') => return Some(KeyEffect::Quit),
            KeyCode::Enter => return Some(KeyEffect::Open),
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Down | KeyCode::Char('j') => self.selected = (selected + 1).min(last),
            KeyCode::Up | KeyCode::Char('k') => self.selected = selected.saturating_sub(1),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            _ => return None,
        }
        Some(KeyEffect::Redraw)
    }

    fn apply_filter_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
    }

    /// Closes the help. Returns false if it was not open.
    pub(super) fn close_help(&mut self) -> bool {
        std::mem::take(&mut self.shows_help)
    }

    /// Removes the text filter. Returns false if there was none.
    pub(super) fn clear_filter(&mut self) -> bool {
        !std::mem::take(&mut self.filter).is_empty()
    }
}

/// Returns the value after `current` in `all`, cyclically.
pub(super) fn next_value<T: Copy + PartialEq, const N: usize>(all: [T; N], current: T) -> T {
    let at = all.iter().position(|value| *value == current).unwrap_or(0);
    all[(at + 1) % N]
}
