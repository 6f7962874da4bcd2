//! `streamline top`: a path while it runs, or all that are yours.
//!
//! In: counters, again and again. Out: a picture that takes the place of the one before; with
//! `--once` one picture as text, with `--json` one object for each.
//!
//! - `look`: two counts and what passed between them;
//! - `frame`: the picture.

mod frame;
mod look;

use super::words::TopArguments;
use super::{complain, reach, sharing, signals, wait};
use crate::status::Status;
use crate::terminal;
use look::{Look, Watched};
use member::client::{ClientError, ToPath};
use member::protocol::Counters;
use ratatui::Terminal;
use ratatui::backend::{CrosstermBackend, TestBackend};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;
use streamline::report::json_line;

/// The size of a picture where there is no terminal.
const SIZE: (u16, u16) = (80, 24);
/// The time between the two counts of a picture alone.
const BETWEEN: Duration = Duration::from_millis(250);

/// Shows it.
pub(super) fn run(given: &TopArguments) -> Result<Status, Status> {
    let Some(name) = &given.path else { return all(given) };
    let (to, about) = reach(name)?;
    let mut watched = Watched::new(about, to.uid());
    match (given.once, given.json) {
        (true, json) => {
            let look = twice(&to, &mut watched)?;
            Ok(terminal::print(&if json { json_line(&look) } else { picture(&look) }))
        }
        (false, true) => objects(&to, &mut watched, given),
        (false, false) if !io::stdout().is_terminal() => {
            terminal::complain("this is no terminal: ask for one picture by --once, or for --json");
            Err(Status::Usage)
        }
        (false, false) => live(&to, &mut watched, given),
    }
}

/// All paths, in the place of the list before.
fn all(given: &TopArguments) -> Result<Status, Status> {
    let once = given.once || !io::stdout().is_terminal();
    let signals = signals()?;
    loop {
        let words = super::words::PsArguments { json: given.json };
        if !once {
            terminal::clear();
        }
        let status = super::ps::run(&words)?;
        let limit = Duration::from_nanos(given.every);
        if once || status != Status::Done || wait_out(signals, limit) {
            return Ok(status);
        }
    }
}

/// Two counts shortly after each other.
fn twice(to: &ToPath, watched: &mut Watched) -> Result<Look, Status> {
    let count = |to: &ToPath| to.count().map_err(|error| complain(&error));
    watched.look(count(to)?);
    let _ = wait_out(signals()?, BETWEEN);
    Ok(looked(to, watched, count(to)?))
}

/// A look, with what of the path runs in the kernel.
fn looked(to: &ToPath, watched: &mut Watched, counters: Counters) -> Look {
    let mut look = watched.look(counters);
    look.kernel = sharing::of_path(to.number());
    look
}

/// Waits out the limit; returns true if a signal came first.
fn wait_out(signals: BorrowedFd<'_>, limit: Duration) -> bool {
    sys::poll::readable(&[signals], Some(limit)).contains(&true)
}

/// One object for each count, until the path ends.
fn objects(to: &ToPath, watched: &mut Watched, given: &TopArguments) -> Result<Status, Status> {
    to.follow(Duration::from_nanos(given.every)).map_err(|error| complain(&error))?;
    let signals = signals()?;
    while let Some(followed) = next(to, signals)? {
        if let Some(counters) = followed.counters {
            let status = terminal::print(&json_line(&looked(to, watched, counters)));
            if status != Status::Done {
                return Ok(status);
            }
        }
        if followed.ended.is_some() {
            break;
        }
    }
    Ok(Status::Done)
}

/// Returns the next counts of a path; `None` if a signal came, or the path is gone.
fn next(
    to: &ToPath,
    signals: BorrowedFd<'_>,
) -> Result<Option<member::protocol::Followed>, Status> {
    if wait(&[to.as_fd()], signals, None).is_none() {
        return Ok(None);
    }
    match to.followed() {
        Ok(followed) => Ok(Some(followed)),
        Err(ClientError::Gone) => Ok(None),
        Err(error) => Err(complain(&error)),
    }
}

/// A picture as text.
fn picture(look: &Look) -> String {
    let (columns, rows) = size().ok().filter(|_| io::stdout().is_terminal()).unwrap_or(SIZE);
    let backend = TestBackend::new(columns, rows);
    let Ok(mut terminal) = Terminal::new(backend);
    let Ok(_) = terminal.draw(|frame| frame::draw(frame, look, 0));
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in 0..rows {
        let line: String = (0..columns).map(|column| buffer[(column, row)].symbol()).collect();
        let line = line.trim_end();
        // On paper nothing stands at the lower border, and there are no keys.
        if line != frame::KEYS && !(line.is_empty() && text.ends_with("\n\n")) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// The terminal as it was before, whatever happens.
struct Screen(Terminal<CrosstermBackend<io::Stdout>>);

impl Screen {
    fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        Terminal::new(CrosstermBackend::new(io::stdout())).map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nobody left to be told.
        let _ = execute!(io::stdout(), LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

/// Pictures in each other's place, until the path ends or somebody has seen enough.
fn live(to: &ToPath, watched: &mut Watched, given: &TopArguments) -> Result<Status, Status> {
    let failed = |error: io::Error| {
        terminal::complain(&format!("cannot draw: {}", terminal::reason(&error)));
        Status::Failed
    };
    let signals = signals()?;
    to.follow(Duration::from_nanos(given.every)).map_err(|error| complain(&error))?;
    let mut screen = Screen::open().map_err(failed)?;
    let stdin = io::stdin();
    let (mut look, mut first) = (None, 0);
    loop {
        let ready = wait(&[to.as_fd(), stdin.as_fd()], signals, None);
        let Some(ready) = ready else { return Ok(Status::Done) };
        if ready.get(1) == Some(&true) && event::poll(Duration::ZERO).map_err(failed)? {
            match event::read().map_err(failed)? {
                Event::Key(key) if is_end(key.code, key.modifiers) => return Ok(Status::Done),
                Event::Key(key) => first = scrolled(first, key.code),
                _ => {}
            }
        }
        if ready.first() == Some(&true) {
            let Some(followed) = next(to, signals)? else { return Ok(Status::Done) };
            look = followed.counters.map(|counters| looked(to, watched, counters)).or(look);
            if let Some(ended) = followed.ended {
                drop(screen);
                terminal::note(&member::client::plain(&ended.report));
                return Ok(Status::Done);
            }
        }
        if let Some(look) = &look {
            screen.0.draw(|frame| frame::draw(frame, look, first)).map_err(failed)?;
        }
    }
}

fn is_end(code: KeyCode, modifiers: KeyModifiers) -> bool {
    let control = modifiers.contains(KeyModifiers::CONTROL);
    matches!(code, KeyCode::Char('q') | KeyCode::Esc) || control && code == KeyCode::Char('c')
}

/// The first node that is shown.
const fn scrolled(first: usize, code: KeyCode) -> usize {
    match code {
        KeyCode::Down | KeyCode::Char('j') => first.saturating_add(1),
        KeyCode::Up | KeyCode::Char('k') => first.saturating_sub(1),
        KeyCode::Home => 0,
        _ => first,
    }
}
