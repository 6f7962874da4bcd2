//! The alarms of a run: evaluation of their conditions, and the commands that they start.

use super::condition::Condition;
use crate::arguments::monitor::MonitorArguments;
use crate::terminal;
use member::protocol::PathEvent;
use member::worker::Reporter;
use pipeline::explain::format_rounded_duration;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use streamline::figures::PathFigures;
use sys::local_socket::open_pidfd;

/// Maximum number of commands of `--alarm-exec` that run concurrently.
const COMMANDS_MAX: usize = 8;
/// Maximum time for which the end of a run waits for commands of `--alarm-exec` that are still
/// running.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// The alarms of a run, with the commands that `--alarm-exec` has started for them.
#[derive(Debug)]
pub(super) struct Alarms {
    all: Vec<Alarm>,
    command: Option<String>,
    path: String,
    /// The previous sample of the path's counters, from which rates are computed; `None` before the
    /// first sample.
    previous: Option<PathFigures>,
    children: Vec<Child>,
    raised: bool,
    /// Reporter that sends the alarms to the daemon's log.
    reporter: Reporter,
}

/// A condition of `--alarm`, and the state of its alarm.
#[derive(Debug)]
struct Alarm {
    condition: Condition,
    /// Running time of the path, in ns, at which the condition became true; `None` while it is
    /// false.
    since: Option<u64>,
    is_raised: bool,
}

impl Alarms {
    /// Creates an alarm for each condition in the arguments.
    pub(super) fn new(arguments: &MonitorArguments, path: &str, reporter: Reporter) -> Self {
        let alarm = |condition: &Condition| Alarm {
            condition: condition.clone(),
            since: None,
            is_raised: false,
        };
        let (previous, children, raised) = (None, Vec::new(), false);
        let all = arguments.alarm.iter().map(alarm).collect();
        let (command, path) = (arguments.alarm_exec.clone(), path.to_owned());
        Self { all, command, path, previous, children, raised, reporter }
    }

    /// Returns true if there are no conditions to evaluate.
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Evaluates all conditions on a sample of the path's counters, and raises or clears their
    /// alarms.
    pub(super) fn check(&mut self, now: &PathFigures) {
        if self.all.is_empty() {
            return;
        }
        let previous = self.previous.replace(now.clone());
        let elapsed = now.counters.elapsed_ns;
        let previous = previous.as_ref();
        let previous = previous.map(|old| (old, elapsed.saturating_sub(old.counters.elapsed_ns)));
        let mut raised = Vec::new();
        for alarm in &mut self.all {
            let Some(value) = alarm.condition.value(now, previous) else { continue };
            let (condition, name) = (&alarm.condition, alarm.condition.metric_name());
            if !condition.holds(value) {
                alarm.since = None;
                if std::mem::take(&mut alarm.is_raised) {
                    let value = format_value(value);
                    let text = format!("alarm `{condition}` is over: {name} is {value}");
                    self.reporter.report(PathEvent::Over, &text);
                    terminal::print_note(&text);
                }
                continue;
            }
            let held_ns = elapsed.saturating_sub(*alarm.since.get_or_insert(elapsed));
            if !alarm.is_raised && held_ns >= condition.duration_ns {
                alarm.is_raised = true;
                let since = match condition.duration_ns {
                    0 => String::new(),
                    _ => format!(", for {}", format_rounded_duration(held_ns)),
                };
                let value_text = format_value(value);
                let text = format!("alarm `{condition}`: {name} is {value_text}{since}");
                self.reporter.report(PathEvent::Alarm, &text);
                terminal::print_warning(&text);
                raised.push((condition.to_string(), value));
            }
        }
        self.raised |= !raised.is_empty();
        raised.iter().for_each(|(condition, value)| self.start_command(condition, *value));
    }

    /// Evaluates the conditions on the final counters, except conditions on rates, because the last
    /// interval is too short for a rate. Then waits at most [`COMMAND_TIMEOUT`] for commands that
    /// are still running. Returns true if an alarm was raised during the run.
    pub(super) fn finish(mut self, last: &PathFigures) -> bool {
        // The last interval is too short for a rate.
        self.all.retain(|alarm| !alarm.condition.is_rate());
        self.check(last);
        let deadline = Instant::now() + COMMAND_TIMEOUT;
        for child in &mut self.children {
            let process = i32::try_from(child.id()).ok();
            let process = process.and_then(|number| open_pidfd(number).ok());
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = process
                .map(|process| sys::poll::wait_until_readable(&[process.as_fd()], Some(left)));
            if is_running(child) && ended != Some(vec![true]) {
                terminal::print_warning("the command of --alarm-exec is still running");
            }
        }
        self.raised
    }

    /// Starts the command of `--alarm-exec`, if there is one. Prints a warning instead if
    /// [`COMMANDS_MAX`] commands are still running.
    fn start_command(&mut self, condition: &str, value: f64) {
        let Some(text) = &self.command else { return };
        self.children.retain_mut(is_running);
        if self.children.len() >= COMMANDS_MAX {
            terminal::print_warning(&format!(
                "the command of --alarm-exec was not started: {COMMANDS_MAX} of them are still \
                 running"
            ));
            return;
        }
        let mut command = Command::new("/bin/sh");
        command.args(["-c", text]).stdin(Stdio::null());
        command.env("STREAMLINE_ALARM", condition).env("STREAMLINE_VALUE", format_value(value));
        command.env("STREAMLINE_PATH", &self.path);
        // Only the sinks may write to standard output.
        let errors = std::io::stderr().as_fd().try_clone_to_owned();
        let started = errors.and_then(|errors| command.stdout(errors).spawn());
        match started {
            Ok(child) => self.children.push(child),
            Err(error) => terminal::print_warning(&format!(
                "the command of --alarm-exec was not started: {}",
                terminal::describe_io_error(&error)
            )),
        }
    }
}

/// Returns true if a command of `--alarm-exec` is still running. Prints a warning if the command
/// has failed, or if its state is unknown.
fn is_running(child: &mut Child) -> bool {
    match child.try_wait() {
        Ok(None) => true,
        Ok(Some(status)) if status.success() => false,
        Ok(Some(status)) => {
            terminal::print_warning(&format!("the command of --alarm-exec failed: {status}"));
            false
        }
        Err(error) => {
            terminal::print_warning(&format!("the command of --alarm-exec is lost: {error}"));
            false
        }
    }
}

/// Formats a value with two decimal places if it is not an integer, such as `12` or `0.93`.
fn format_value(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
