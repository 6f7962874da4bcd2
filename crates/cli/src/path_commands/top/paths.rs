//! The screen of all visible paths with their rates and losses, from which the user can open a
//! path.

use super::super::connect::watch_signals;
use super::super::path_rows::{
    PathReachability, PathRow, PathsSampler, RIGHT_ALIGNED_CELLS, ROW_TITLES,
};
use super::super::rates::format_rate_short;
use super::super::shared_programs::{self, program_sentence};
use super::list_state::{KeyEffect, ListState, next_value};
use super::widgets::{
    color_style, highlight_row, input_line, key_lines, right_aligned, section_paragraph, title_row,
};
use crate::failure::report_client_error;
use crate::progress::format_bytes_short;
use crate::screen::Screen;
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, mask_hidden_characters};
use member::protocol::KernelProgram;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// Time limit for a sample of all paths, during which the screen does not react to keys.
const SAMPLE_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of samples between two queries of paths that do not reply.
const SILENT_QUERY_INTERVAL: usize = 5;
/// Maximum number of lines about kernel programs on the screen.
const PROGRAMS_MAX: usize = 4;

/// The sort order of the list of paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum PathOrder {
    /// Sorts by the number of the path, in ascending order.
    #[default]
    Number,
    /// Sorts by the rate in blocks per second, the highest first.
    Blocks,
    /// Sorts by the rate in bytes per second, the highest first.
    Bytes,
    /// Sorts by the number of lost blocks, the largest first.
    Lost,
}

impl PathOrder {
    const ALL: [Self; 4] = [Self::Number, Self::Blocks, Self::Bytes, Self::Lost];

    /// Returns the title of the column by which the paths are ordered.
    const fn title(self) -> &'static str {
        match self {
            Self::Number => "NO",
            Self::Blocks => "BLOCKS/S",
            Self::Bytes => "BYTES/S",
            Self::Lost => "LOST",
        }
    }

    fn value(self, row: &PathRow) -> f64 {
        match self {
            Self::Number => -f64::from(row.path.number),
            Self::Blocks => row.rate.map_or(-1.0, |rate| rate.blocks),
            Self::Bytes => row.rate.map_or(-1.0, |rate| rate.bytes),
            Self::Lost => row.lost.map_or(-1.0, |lost| lost as f64),
        }
    }
}

/// State of the screen of all paths: the list, the order, and the latest refusal.
#[derive(Default)]
struct PathsView {
    list: ListState,
    order: PathOrder,
    /// Reason why the selected path could not be opened; reset to `None` by the next key.
    refusal: Option<String>,
}

impl PathsView {
    /// Returns the paths that match the text filter, in the order that the user has selected.
    fn rows<'r>(&self, rows: &'r [PathRow]) -> Vec<&'r PathRow> {
        let is_listed = |row: &&PathRow| {
            let [number, name, user, .., line] = row.cells();
            self.list.matches_filter(&[&number, &name, &user, &line])
        };
        let mut listed: Vec<&PathRow> = rows.iter().filter(is_listed).collect();
        listed.sort_by(|a, b| self.order.value(b).total_cmp(&self.order.value(a)));
        listed
    }

    /// Applies a key to the screen of all paths. Refuses to open a path that belongs to another
    /// user.
    fn apply_key(&mut self, key: KeyEvent, rows: &[PathRow]) -> KeyEffect {
        let listed = self.rows(rows);
        self.refusal = None;
        match self.list.apply_key(key, listed.len()) {
            Some(KeyEffect::Open) => match listed.get(self.list.selected_row_index(listed.len())) {
                Some(row) if row.path.yours => return KeyEffect::Open,
                Some(row) => {
                    let owner = row.cells()[2].clone();
                    self.refusal = Some(format!(
                        "path {} belongs to {owner}: only its owner can inspect it",
                        row.path.number
                    ));
                }
                None => {}
            },
            Some(effect) => return effect,
            None => match key.code {
                KeyCode::Esc if self.list.close_help() || self.list.clear_filter() => {}
                KeyCode::Esc => return KeyEffect::Quit,
                KeyCode::Char('s') => self.order = next_value(PathOrder::ALL, self.order),
                _ => {}
            },
        }
        KeyEffect::Redraw
    }
}

/// The visible paths and the kernel programs, as of the latest sample of their counters.
#[derive(Default)]
struct PathsSnapshot {
    rows: Vec<PathRow>,
    kernel: Vec<KernelProgram>,
}

/// The screen of all paths, with the sampler of their counters.
pub(super) struct PathsScreen<'c> {
    client: &'c Client,
    every: Duration,
    sampler: PathsSampler,
    samples: usize,
    view: PathsView,
    latest: PathsSnapshot,
}

impl<'c> PathsScreen<'c> {
    pub(super) fn new(client: &'c Client, every: Duration) -> Self {
        Self {
            client,
            every,
            sampler: PathsSampler::default(),
            samples: 0,
            view: PathsView::default(),
            latest: PathsSnapshot::default(),
        }
    }

    /// Redraws the screen until the user opens a path, the user quits, or a signal arrives. Returns
    /// the number of the opened path, or `None` if no path was opened.
    pub(super) fn choose_path(&mut self) -> Result<Option<u32>, Status> {
        let failed = |error: io::Error| {
            terminal::print_error(&format!("cannot draw: {}", terminal::describe_io_error(&error)));
            Status::Failed
        };
        let signals = watch_signals()?;
        let stdin = io::stdin();
        // The first sample is taken before the screen is opened, so that an error can be printed.
        let sampled = self.sample();
        sampled.map_err(|error| report_client_error(&error))?;
        let mut screen = Screen::open(io::stdout).map_err(failed)?;
        let mut next = Instant::now() + self.every;
        loop {
            let (latest, view) = (&self.latest, &self.view);
            screen.terminal.draw(|frame| draw_paths(frame, latest, view)).map_err(failed)?;
            let left = next.saturating_duration_since(Instant::now());
            let ready = sys::poll::wait_until_readable(&[stdin.as_fd(), signals], Some(left));
            if ready.last() == Some(&true) {
                return Ok(None);
            }
            // All pending keys are processed here, because only the first one makes the terminal
            // readable.
            while event::poll(Duration::ZERO).map_err(failed)? {
                let Event::Key(key) = event::read().map_err(failed)? else { continue };
                match self.view.apply_key(key, &self.latest.rows) {
                    KeyEffect::Redraw => {}
                    KeyEffect::Quit => return Ok(None),
                    KeyEffect::Open => {
                        let listed = self.view.rows(&self.latest.rows);
                        let index = self.view.list.selected_row_index(listed.len());
                        return Ok(listed.get(index).map(|row| row.path.number));
                    }
                }
            }
            if Instant::now() >= next {
                next = Instant::now() + self.every;
                if let Err(error) = self.sample() {
                    drop(screen);
                    return Err(report_client_error(&error));
                }
            }
        }
    }

    fn sample(&mut self) -> Result<(), ClientError> {
        let paths = self.client.list_paths()?;
        let asks_silent = self.samples.is_multiple_of(SILENT_QUERY_INTERVAL);
        self.samples += 1;
        let rows = self.sampler.sample(self.client, paths, (SAMPLE_TIMEOUT, asks_silent));
        self.latest = PathsSnapshot { rows, kernel: shared_programs::fetch_programs(self.client) };
        Ok(())
    }
}

/// Draws the list of all paths or, if it is open, the help.
fn draw_paths(frame: &mut Frame<'_>, latest: &PathsSnapshot, view: &PathsView) {
    let lines = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let programs = latest.kernel.len().min(PROGRAMS_MAX);
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(if programs > 0 { lines(programs + 1) } else { 0 }),
        Constraint::Length(1),
    ]);
    let [head, list, kernel, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(heading_line(&latest.rows)), head);
    if view.list.shows_help {
        frame.render_widget(section_paragraph("keys", help_lines()), list);
    } else if latest.rows.is_empty() {
        frame.render_widget(Paragraph::new("no paths run: `streamline start REQUEST`"), list);
    } else {
        let height = usize::from(list.height.saturating_sub(1));
        frame.render_widget(path_table(&view.rows(&latest.rows), view, height), list);
    }
    if programs > 0 {
        let sentences = latest.kernel.iter().take(PROGRAMS_MAX).map(program_sentence);
        let sentences = sentences.map(|text| Line::from(format!("  {text}"))).collect();
        frame.render_widget(section_paragraph("kernel", sentences), kernel);
    }
    frame.render_widget(Paragraph::new(footer_line(view)), foot);
}

/// Formats the number of paths, and the totals of the paths whose counters are available.
fn heading_line(rows: &[PathRow]) -> Line<'static> {
    let rates = || rows.iter().filter_map(|row| row.rate);
    let (blocks, bytes): (f64, f64) =
        (rates().map(|rate| rate.blocks).sum(), rates().map(|rate| rate.bytes).sum());
    let lost: u64 = rows.iter().filter_map(|row| row.lost).sum();
    let noun = if rows.len() == 1 { "path" } else { "paths" };
    let text = format!(
        "{} {noun}   {} blocks/s   {}/s   lost {lost}",
        rows.len(),
        format_rate_short(blocks),
        format_bytes_short(bytes as u64),
    );
    Line::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

/// Formats the paths as a table of `height` rows that contains the selected path.
fn path_table(rows: &[&PathRow], view: &PathsView, height: usize) -> Table<'static> {
    let selected = view.list.selected_row_index(rows.len());
    let first = view.list.first_visible_row(rows.len(), height);
    let all: Vec<_> = rows.iter().skip(first).take(height).map(|row| (row, row.cells())).collect();
    let width = |column: usize| {
        let cells = all.iter().map(|(_, cells)| cells[column].chars().count());
        // A sortable title needs one more column for the mark of the order.
        let title = ROW_TITLES[column].len() + usize::from(RIGHT_ALIGNED_CELLS.contains(&column));
        u16::try_from(cells.max().unwrap_or(0).max(title)).unwrap_or(u16::MAX)
    };
    let last = ROW_TITLES.len() - 1;
    let widths: Vec<Constraint> = (0..ROW_TITLES.len())
        .map(|column| match column {
            column if column == last => Constraint::Min(10),
            column => Constraint::Length(width(column)),
        })
        .collect();
    let table_rows = all.iter().enumerate().map(|(number, (row, cells))| {
        let cells = cells.iter().enumerate().map(|(column, text)| {
            if RIGHT_ALIGNED_CELLS.contains(&column) {
                right_aligned(text.clone())
            } else {
                Cell::from(text.clone())
            }
        });
        let line = Row::new(cells.collect::<Vec<_>>());
        let line = match row.state {
            PathReachability::Silent => line.style(color_style(Color::Yellow)),
            _ if row.lost.is_some_and(|lost| lost > 0) => line.style(color_style(Color::Red)),
            _ => line,
        };
        highlight_row(line, first + number == selected)
    });
    let head =
        title_row(&ROW_TITLES, |column| RIGHT_ALIGNED_CELLS.contains(&column), view.order.title());
    Table::new(table_rows.collect::<Vec<_>>(), widths).header(head).column_spacing(2)
}

/// Returns lines that list all keys of the screen of paths, with their effects.
fn help_lines() -> Vec<Line<'static>> {
    key_lines(&[
        ("arrows, j k", "select a path; Home and End, the first and the last"),
        ("Enter", "open the selected path: its nodes, rings and losses; q returns"),
        ("s", "sort by the next column: NO, BLOCKS/S, BYTES/S, LOST"),
        ("/", "show only paths whose number, name, user or request contains a text"),
        ("Esc", "close the help, then clear the filter, then quit"),
        ("?", "open and close this help"),
        ("q, ^C", "quit; the paths run on"),
    ])
}

fn footer_line(view: &PathsView) -> Line<'static> {
    match &view.refusal {
        Some(refusal) => Line::styled(mask_hidden_characters(refusal), color_style(Color::Yellow)),
        None => input_line(&view.list).unwrap_or_else(|| {
            let keys = "? help, q quits, arrows move, Enter opens, s sorts, / filters";
            Line::styled(keys, Style::new().add_modifier(Modifier::DIM))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use member::protocol::RegisteredPath;

    fn row(number: u32, name: &str, yours: bool, lost: u64) -> PathRow {
        let path = RegisteredPath {
            number,
            name: Some(name.to_owned()),
            uid: 0,
            process: None,
            started: None,
            line: None,
            log: None,
            yours,
        };
        let state = if yours { PathReachability::Running } else { PathReachability::Hidden };
        PathRow { path, state, counters: None, rate: None, lost: Some(lost) }
    }

    fn press(view: &mut PathsView, keys: &str, rows: &[PathRow]) -> KeyEffect {
        let mut effect = KeyEffect::Redraw;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            effect = view.apply_key(code.into(), rows);
        }
        effect
    }

    #[test]
    fn enter_opens_own_paths_only() {
        let rows = [row(1, "web", true, 0), row(2, "dns", false, 7)];
        let mut view = PathsView::default();
        assert_eq!(press(&mut view, "\n", &rows), KeyEffect::Open);
        assert_eq!(press(&mut view, "j\n", &rows), KeyEffect::Redraw);
        let refusal = view.refusal.clone().unwrap_or_default();
        assert!(refusal.starts_with("path 2 belongs to "), "{refusal}");
        assert_eq!(press(&mut view, "k", &rows), KeyEffect::Redraw);
        assert_eq!(view.refusal, None, "the next key clears it");
    }

    #[test]
    fn sorting_by_losses_shows_the_path_with_the_most_first() {
        let rows = [row(1, "web", true, 0), row(2, "dns", true, 7)];
        let mut view = PathsView::default();
        let numbers = |view: &PathsView| -> Vec<u32> {
            view.rows(&rows).iter().map(|row| row.path.number).collect()
        };
        assert_eq!(numbers(&view), [1, 2]);
        press(&mut view, "sss", &rows);
        assert_eq!((view.order, numbers(&view)), (PathOrder::Lost, vec![2, 1]));
        press(&mut view, "/WEB\n", &rows);
        assert_eq!(numbers(&view), [1], "the filter ignores case");
        assert_eq!(press(&mut view, "\x1b", &rows), KeyEffect::Redraw);
        assert_eq!(press(&mut view, "\x1b", &rows), KeyEffect::Quit);
    }
}
