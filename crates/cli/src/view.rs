//! `run --view`: shows the graph of the plan on the terminal of standard error while the path runs,
//! with rates, times per block and losses.
//!
//! A thread samples the counters twice a second. The latest message appears at the bottom; all
//! messages are printed after the view has closed.

use crate::arguments::RunArguments;
use crate::path_commands::format_rate_short;
use crate::screen::{Screen, style_graph_row};
use crate::status::Status;
use crate::{progress, terminal};
use member::client::mask_hidden_characters;
use pipeline::explain::{self, DrawnFigures, format_rounded_duration};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use std::io::{self, IsTerminal as _, Stderr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use streamline::{Observer, ReadyRequest, analysis};
use sys::eventfd::EventFd;

/// Interval between two samples of the path's counters.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Interval at which the view checks if the run has ended, while it waits for a key.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(50);
const KEY_HELP: &str = "q ends the path, ? explains, arrows scroll";
const HELP_LINES: [&str; 9] = [
    "  ○ source   ● filter   ■ sink; a rule names the space of the rows below it",
    "  a line that crosses a rule is a ring or a pipe; ◄ closes a cycle",
    "",
    "  after a node: the blocks per second that it receives (of a source: that it emits),",
    "  its time per block, and the blocks lost in it or in front of it since the start",
    "",
    "  q, ^C    end the sources; what was read is processed; again: leave the view",
    "  ↓ ↑      scroll",
    "  ?        close this help",
];

/// The view of a run, with the thread that draws it.
#[derive(Debug)]
pub(crate) struct RunView {
    /// Eventfd that is notified when the user ends the path.
    stop: Arc<EventFd>,
    /// Eventfd that is notified when the run has ended.
    closed: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl RunView {
    /// Opens the view of a request that is about to run. Returns `None` if the arguments do not
    /// request a view. If standard error is not a suitable terminal, if a sink prints on the
    /// terminal, or if the view cannot be opened, prints an error and returns the exit status.
    pub(crate) fn start(
        ready: &ReadyRequest,
        arguments: &RunArguments,
    ) -> Result<Option<Self>, Status> {
        if !arguments.view {
            return Ok(None);
        }
        if !io::stderr().is_terminal() || !terminal::can_rewrite_line() {
            terminal::print_error(
                "--view needs a terminal as standard error: use --progress=yes or --stats, or \
                 `streamline top PATH` on another terminal",
            );
            return Err(Status::Usage);
        }
        if io::stdout().is_terminal() && progress::has_printing_sink(ready.plan()) {
            terminal::print_error(
                "the request prints on the terminal that --view draws on: redirect its output, as \
                 in `> FILE`, or give the sink a file",
            );
            return Err(Status::Usage);
        }
        let failed = |error: &dyn std::fmt::Display| {
            terminal::print_error(&format!("no view: {error}"));
            Status::Failed
        };
        let event = || EventFd::new().map(Arc::new).map_err(|error| failed(&error));
        let (stop, closed) = (event()?, event()?);
        let screen = Screen::open(io::stderr).map_err(|error| failed(&error))?;
        terminal::hold_messages();
        let session = ViewState {
            observer: ready.observer(),
            previous: None,
            now: None,
            shows_help: false,
            is_stopping: false,
            scroll: 0,
            stop: Arc::clone(&stop),
        };
        let end = Arc::clone(&closed);
        let thread = std::thread::Builder::new().name("view".to_owned());
        let thread = thread.spawn(move || {
            session.run(screen, &end);
            terminal::release_messages();
        });
        let thread = thread.map_err(|error| {
            terminal::release_messages();
            failed(&error)
        })?;
        Ok(Some(Self { stop, closed, thread: Some(thread) }))
    }

    /// Returns a descriptor that becomes readable when the user ends the path.
    pub(crate) fn stop_descriptor(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }
}

impl Drop for RunView {
    fn drop(&mut self) {
        self.closed.notify();
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, the panic hook has already printed the message.
            let _ended = thread.join();
        }
    }
}

/// The text that the view displays for one sample of the path's counters.
struct SampleText {
    heading: String,
    request: String,
    graph: Vec<String>,
}

/// The state of the thread that draws the view of `run --view`.
struct ViewState {
    observer: Observer,
    previous: Option<DrawnFigures>,
    now: Option<SampleText>,
    shows_help: bool,
    is_stopping: bool,
    /// Index of the first visible row of the graph.
    scroll: usize,
    stop: Arc<EventFd>,
}

impl ViewState {
    /// Redraws the view until the run has ended, the user leaves the view, or the terminal fails.
    fn run(mut self, mut screen: Screen<Stderr>, closed: &EventFd) {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                self.take_sample();
                next = Instant::now() + SAMPLE_INTERVAL;
            }
            // If the terminal disappears, the view ends, but the run continues.
            if screen.terminal.draw(|frame| self.draw(frame)).is_err() {
                return;
            }
            let is_closed = || {
                sys::poll::wait_until_readable(&[closed.as_fd()], Some(Duration::ZERO)) == [true]
            };
            loop {
                if is_closed() {
                    return;
                }
                match event::poll(END_CHECK_INTERVAL) {
                    Ok(true) => break,
                    Ok(false) if Instant::now() >= next => break,
                    Ok(false) => {}
                    Err(_) => return,
                }
            }
            while let Ok(true) = event::poll(Duration::ZERO) {
                match event::read() {
                    Ok(Event::Key(key)) if !self.apply_key(key) => return,
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        }
    }

    /// Applies a key. Returns false if the key closes the view.
    fn apply_key(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return self.request_end(),
            KeyCode::Char('q') => return self.request_end(),
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Esc => self.shows_help = false,
            KeyCode::Down | KeyCode::Char('j') => self.scroll += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            _ => {}
        }
        true
    }

    /// Requests the end of the path. Returns false if the end had already been requested; the
    /// caller then closes the view.
    fn request_end(&mut self) -> bool {
        self.stop.notify();
        !std::mem::replace(&mut self.is_stopping, true)
    }

    fn take_sample(&mut self) {
        let results = self.observer.results_so_far();
        let figures = analysis::drawn_figures(&results);
        let recent =
            self.previous.as_ref().map_or_else(|| figures.clone(), |old| figures.since(old));
        let sources = results.plan.graph.heads();
        let measured = &figures.measured;
        let blocks = |figures: &DrawnFigures| -> u64 {
            let nodes = sources.iter().filter_map(|id| figures.measured.nodes.get(id.0));
            nodes.map(|node| node.blocks).sum()
        };
        let rate = blocks(&recent) as f64 * 1e9 / recent.measured.elapsed_ns.max(1) as f64;
        let lost: u64 = figures.lost_in_nodes.iter().chain(&figures.lost_on_edges).sum();
        let heading = format!(
            "{}   {} blocks/s   {} blocks   lost {lost}",
            format_rounded_duration(measured.elapsed_ns),
            format_rate_short(rate),
            blocks(&figures),
        );
        let graph = explain::format_drawing(&results.plan, Some(&recent));
        self.now = Some(SampleText {
            heading,
            request: mask_hidden_characters(&results.text.replace('\n', " ")),
            graph: graph.lines().map(str::to_owned).collect(),
        });
        self.previous = Some(figures);
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let areas = [Constraint::Length(3), Constraint::Min(1), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(areas).areas(frame.area());
        let Some(picture) = &self.now else { return };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let dim = Style::new().add_modifier(Modifier::DIM);
        let heading = Line::styled(picture.heading.clone(), bold);
        frame.render_widget(
            Paragraph::new(vec![heading, Line::from(picture.request.clone())]),
            head,
        );
        let height = usize::from(body.height);
        self.scroll = self.scroll.min(picture.graph.len().saturating_sub(height));
        let lines: Vec<Line<'_>> = match self.shows_help {
            true => HELP_LINES.iter().map(|line| Line::from(*line)).collect(),
            false => {
                let rows = picture.graph.iter().skip(self.scroll);
                rows.map(|row| style_graph_row(row, terminal::can_color_stderr())).collect()
            }
        };
        frame.render_widget(Paragraph::new(lines), body);
        let foot_line = match (terminal::last_held_message(), self.is_stopping) {
            (Some(message), _) => Line::from(mask_hidden_characters(&message)),
            (None, true) => Line::styled("the path ends; q leaves the view", dim),
            (None, false) => Line::styled(KEY_HELP, dim),
        };
        frame.render_widget(Paragraph::new(foot_line), foot);
    }
}
