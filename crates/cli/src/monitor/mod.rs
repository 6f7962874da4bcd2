//! Observation of a run in progress, for `--metrics` and `--alarm`.
//!
//! One thread evaluates the conditions on the path's counters every second, and replaces the
//! metrics files every 5 s. Metrics servers run in separate threads. Without these options, no
//! thread is started.

mod alarm;
mod condition;

pub(crate) use condition::Condition;

use crate::arguments::RunArguments;
use crate::status::Status;
use crate::terminal;
use alarm::Alarms;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use streamline::figures::{PathFigures, PathState};
use streamline::metrics::{MetricsServer, MetricsTarget, to_text, write_file};
use streamline::{Observer, ReadyRequest, RunResults};
use sys::eventfd::EventFd;

/// Interval between two samples of the path's counters.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of samples between two replacements of a metrics file.
const SAMPLES_PER_FILE_UPDATE: u32 = 5;
/// Name under which metrics report a path that has neither a name nor a number.
const UNNAMED_PATH_NAME: &str = "run";

/// The thread and the metrics servers that observe a run for `--metrics` and `--alarm`.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// Metrics servers, which stop when they are dropped.
    servers: Vec<MetricsServer>,
    files: Vec<(String, PathBuf)>,
    name: String,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<Alarms>>,
}

impl Monitor {
    /// Starts to observe a request that is about to run. Returns `None` if the arguments request
    /// neither metrics nor alarms. If a server, a file or the thread cannot be created, prints an
    /// error and returns the exit status.
    pub(crate) fn start(
        ready: &ReadyRequest,
        arguments: &RunArguments,
    ) -> Result<Option<Self>, Status> {
        if arguments.monitor.metrics.is_empty() && arguments.monitor.alarm.is_empty() {
            return Ok(None);
        }
        let number = || ready.number().map(|number| number.to_string());
        let named = arguments.path_name.clone();
        let name = named.clone().or_else(number).unwrap_or_else(|| UNNAMED_PATH_NAME.to_owned());
        let observer = ready.observer();
        let mut servers = Vec::new();
        let mut files = Vec::new();
        for target in &arguments.monitor.metrics {
            if let MetricsTarget::File(path) = target {
                // A collector reads the metrics of several runs together, so their paths must have
                // different names.
                let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                files.push((named.clone().or(stem).unwrap_or_else(|| name.clone()), path.clone()));
            }
            let (observer, name) = (observer.clone(), name.clone());
            let figures = move || vec![running_path_figures(&observer, &name)];
            let server = MetricsServer::start(target, figures).map_err(|error| {
                terminal::print_error(&error.to_string());
                Status::Failed
            })?;
            if let Some(server) = server {
                if !arguments.quiet {
                    terminal::print_note(&format!("metrics are at {}", server.display_address()));
                }
                servers.push(server);
            }
        }
        for (name, path) in &files {
            if !write_metrics(path, &running_path_figures(&observer, name)) {
                return Err(Status::Failed);
            }
        }
        let alarms = Alarms::new(&arguments.monitor, &name, ready.reporter());
        let stop = EventFd::new().map_err(|error| crate::failure::report_system_error(&error))?;
        let stop = Arc::new(stop);
        let (stopped, written) = (Arc::clone(&stop), files.clone());
        let watch = move || watch_path(&observer, alarms, &written, &stopped);
        let thread = std::thread::Builder::new().name("monitor".to_owned()).spawn(watch);
        let thread = thread.map_err(|error| {
            terminal::print_error(&format!(
                "no thread for --metrics: {}",
                terminal::describe_io_error(&error)
            ));
            Status::Failed
        })?;
        Ok(Some(Self { servers, files, name, stop, thread: Some(thread) }))
    }

    /// Ends the observation: writes the final metrics, and evaluates the alarms on the results of
    /// the run. Returns true if an alarm was raised during the run.
    pub(crate) fn finish(mut self, results: &RunResults) -> bool {
        self.stop.notify();
        drop(std::mem::take(&mut self.servers));
        let alarms = self.thread.take().and_then(|thread| thread.join().ok());
        for (name, path) in &self.files {
            write_metrics(path, &PathFigures::from_results(name, results, PathState::Ended));
        }
        let last = PathFigures::from_results(&self.name, results, PathState::Ended);
        alarms.is_some_and(|alarms| alarms.finish(&last))
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop.notify();
    }
}

fn running_path_figures(observer: &Observer, name: &str) -> PathFigures {
    PathFigures::from_results(name, &observer.results_so_far(), PathState::Running)
}

/// Evaluates the alarms every second, and replaces the metrics files every 5 s, until `stop` is
/// notified. Returns the alarms.
fn watch_path(
    observer: &Observer,
    mut alarms: Alarms,
    files: &[(String, PathBuf)],
    stop: &EventFd,
) -> Alarms {
    let mut next = Instant::now();
    for sample in 1_u32.. {
        next += SAMPLE_INTERVAL;
        let left = next.saturating_duration_since(Instant::now());
        if sys::poll::wait_until_readable(&[stop.as_fd()], Some(left)).contains(&true) {
            break;
        }
        let writes_files = sample.is_multiple_of(SAMPLES_PER_FILE_UPDATE);
        if alarms.is_empty() && !writes_files {
            continue;
        }
        let mut figures = running_path_figures(observer, UNNAMED_PATH_NAME);
        alarms.check(&figures);
        for (name, path) in files.iter().filter(|_| writes_files) {
            figures.name.clone_from(name);
            write_metrics(path, &figures);
        }
    }
    alarms
}

/// Replaces the contents of a metrics file with the metrics of a path. On failure, prints an error
/// and returns false.
fn write_metrics(path: &std::path::Path, figures: &PathFigures) -> bool {
    let written = write_file(path, &to_text(std::slice::from_ref(figures)));
    if let Err(error) = &written {
        let (path, why) = (path.display(), terminal::describe_io_error(error));
        terminal::print_error(&format!("cannot write the metrics to {path}: {why}"));
    }
    written.is_ok()
}
