//! `streamline top`: monitors a path, or all of the user's paths.
//!
//! The counters are sampled at regular intervals, and the screen is redrawn. With `--once`, a
//! single screen is printed as text; with `--json`, one object per sample.
//!
//! - `paths`: the screen of all paths;
//! - `snapshot`: a snapshot of a path, computed from two samples;
//! - `view`: the choices of the user: order, filter, selected node;
//! - `screen`: the screen of a path; `graph`: the graph with its rates;
//! - `choice`, `widgets`: the list state and the elements that both screens share.

mod graph;
mod list_state;
mod paths;
mod screen;
mod snapshot;
mod view;
mod widgets;

use super::connect::{connect_daemon, connect_path, wait_readable, watch_signals};
use super::shared_programs;
use crate::arguments::paths::{PsArguments, TopArguments};
use crate::failure::report_client_error;
use crate::screen::Screen;
use crate::status::Status;
use crate::terminal;
use list_state::KeyEffect;
use member::client::{ClientError, PathClient};
use member::protocol::Counters;
use paths::PathsScreen;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::size;
use snapshot::{PathSampler, Snapshot};
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;
use streamline::report::json_line;
use view::ViewChoices;

/// Assumed width and height of the screen if there is no terminal, in characters.
const DEFAULT_SCREEN_SIZE: (u16, u16) = (80, 24);
/// Interval between the two samples of a single snapshot.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Monitors a path, or all paths.
pub(super) fn run(arguments: &TopArguments) -> Result<Status, Status> {
    let Some(name) = &arguments.path else { return monitor_all_paths(arguments) };
    let (client, about) = connect_path(name)?;
    let mut sampler = PathSampler::new(about, client.uid());
    match (arguments.once, arguments.json) {
        (true, json) => {
            let snapshot = sample_twice(&client, &mut sampler)?;
            Ok(terminal::print_text(&if json {
                json_line(&snapshot)
            } else {
                render_text(&snapshot)
            }))
        }
        (false, true) => print_json_samples(&client, &mut sampler, arguments),
        (false, false) if !io::stdout().is_terminal() => {
            terminal::print_error(
                "`top` needs a terminal: use --once to print a single screen, or --json",
            );
            Err(Status::Usage)
        }
        (false, false) => run_screen(&client, &mut sampler, arguments),
    }
}

/// Monitors all paths on a screen from which the user can open a path. With `--once`, or if
/// standard output is not a terminal, prints the output of `ps` once. With `--json`, prints one
/// object per update.
fn monitor_all_paths(arguments: &TopArguments) -> Result<Status, Status> {
    let every = Duration::from_nanos(arguments.every);
    if arguments.json || arguments.once || !io::stdout().is_terminal() {
        let signals = watch_signals()?;
        loop {
            let status = super::ps::run(&PsArguments { json: arguments.json })?;
            let once = arguments.once || !arguments.json;
            if once || status != Status::Done || wait_for_signal(signals, every) {
                return Ok(status);
            }
        }
    }
    let client = connect_daemon()?;
    let mut screen = PathsScreen::new(&client, every);
    while let Some(number) = screen.choose_path()? {
        // If the path has just ended, an error is printed, and the loop shows the list again.
        let _ = connect_path(&number.to_string()).and_then(|(client, about)| {
            let mut sampler = PathSampler::new(about, client.uid());
            run_screen(&client, &mut sampler, arguments)
        });
    }
    Ok(Status::Done)
}

/// Samples the counters twice, [`SAMPLE_INTERVAL`] apart, and returns the resulting snapshot.
fn sample_twice(client: &PathClient, sampler: &mut PathSampler) -> Result<Snapshot, Status> {
    let count =
        |client: &PathClient| client.counters().map_err(|error| report_client_error(&error));
    sampler.snapshot(count(client)?);
    let _ = wait_for_signal(watch_signals()?, SAMPLE_INTERVAL);
    Ok(snapshot_with_kernel(client, sampler, count(client)?))
}

/// Computes a snapshot from `counters`, and adds the kernel programs that run filters of the path.
fn snapshot_with_kernel(
    client: &PathClient,
    sampler: &mut PathSampler,
    counters: Counters,
) -> Snapshot {
    let mut snapshot = sampler.snapshot(counters);
    snapshot.kernel = shared_programs::programs_of_path(client.number());
    snapshot
}

/// Blocks until a signal arrives, for at most `limit`. Returns true if a signal has arrived.
fn wait_for_signal(signals: BorrowedFd<'_>, limit: Duration) -> bool {
    sys::poll::wait_until_readable(&[signals], Some(limit)).contains(&true)
}

/// Prints one JSON object per sample until the path ends, a signal arrives or the output is closed.
fn print_json_samples(
    client: &PathClient,
    sampler: &mut PathSampler,
    arguments: &TopArguments,
) -> Result<Status, Status> {
    client
        .subscribe_to_counters(Duration::from_nanos(arguments.every))
        .map_err(|error| report_client_error(&error))?;
    let signals = watch_signals()?;
    while let Some(followed) = next_update(client, signals)? {
        if let Some(counters) = followed.counters {
            let status =
                terminal::print_text(&json_line(&snapshot_with_kernel(client, sampler, counters)));
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

/// Blocks until the path sends its next update of the counters, and returns it. Returns `None` if a
/// signal arrives or the path has ended.
fn next_update(
    client: &PathClient,
    signals: BorrowedFd<'_>,
) -> Result<Option<member::protocol::PathUpdate>, Status> {
    if wait_readable(&[client.as_fd()], signals, None).is_none() {
        return Ok(None);
    }
    match client.next_update() {
        Ok(followed) => Ok(Some(followed)),
        Err(ClientError::Disconnected) => Ok(None),
        Err(error) => Err(report_client_error(&error)),
    }
}

/// Renders the screen of a path as text, for `--once`.
fn render_text(snapshot: &Snapshot) -> String {
    let (columns, rows) =
        size().ok().filter(|_| io::stdout().is_terminal()).unwrap_or(DEFAULT_SCREEN_SIZE);
    let backend = TestBackend::new(columns, rows);
    let Ok(mut terminal) = Terminal::new(backend);
    let Ok(_) = terminal.draw(|frame| screen::draw_screen(frame, snapshot, None));
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in 0..rows {
        let line: String = (0..columns).map(|column| buffer[(column, row)].symbol()).collect();
        let line = line.trim_end();
        // The text omits the key help and repeated blank lines.
        if line != screen::KEY_HELP && !(line.is_empty() && text.ends_with("\n\n")) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Redraws the screen of a path until the path ends, the user quits or a signal arrives.
fn run_screen(
    client: &PathClient,
    sampler: &mut PathSampler,
    arguments: &TopArguments,
) -> Result<Status, Status> {
    let failed = |error: io::Error| {
        terminal::print_error(&format!("cannot draw: {}", terminal::describe_io_error(&error)));
        Status::Failed
    };
    let signals = watch_signals()?;
    client
        .subscribe_to_counters(Duration::from_nanos(arguments.every))
        .map_err(|error| report_client_error(&error))?;
    let mut screen = Screen::open(io::stdout).map_err(failed)?;
    let stdin = io::stdin();
    let (mut snapshot, mut view) = (None, ViewChoices::default());
    loop {
        let ready = wait_readable(&[client.as_fd(), stdin.as_fd()], signals, None);
        let Some(ready) = ready else { return Ok(Status::Done) };
        // All pending keys are processed here, because only the first one makes the terminal
        // readable.
        while event::poll(Duration::ZERO).map_err(failed)? {
            match event::read().map_err(failed)? {
                Event::Key(key) if view.apply_key(key, snapshot.as_ref()) == KeyEffect::Quit => {
                    return Ok(Status::Done);
                }
                _ => {}
            }
        }
        if ready.first() == Some(&true) {
            let Some(followed) = next_update(client, signals)? else { return Ok(Status::Done) };
            snapshot = followed
                .counters
                .map(|counters| snapshot_with_kernel(client, sampler, counters))
                .or(snapshot);
            if let Some(ended) = followed.ended {
                drop(screen);
                terminal::print_note(&member::client::mask_hidden_characters(&ended.report));
                return Ok(Status::Done);
            }
        }
        if let Some(snapshot) = &snapshot {
            screen
                .terminal
                .draw(|frame| screen::draw_screen(frame, snapshot, Some(&view)))
                .map_err(failed)?;
        }
    }
}
