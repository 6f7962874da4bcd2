//! `streamline run`: runs a request and prints its results.
//!
//! The output of sinks, and the reports of the request's last filters (`… | count`), are written to
//! standard output. The ledger is written to standard error, or to the file of `--report`.
//! Normally, it is a one-line summary. The complete ledger is written with `--stats`, `--json` or
//! `--report`, if blocks were lost, or if the ledger does not balance.

use crate::arguments::RunArguments;
use crate::failure::{self, report_open_error, report_system_error};
use crate::monitor::Monitor;
use crate::progress::ProgressPrinter;
use crate::report_target::ReportTarget;
use crate::status::Status;
use crate::view::RunView;
use crate::{drawings, record, request, terminal};
use engine::latency_breach;
use engine::run::{LatencyAlarm, Progress, ProgressWatch};
use engine::signal;
use member::client::ClientError;
use member::protocol::{PathEvent, PathNumber};
use pipeline::graph::Graph;
use runtime::failure::PathFailure;
use runtime::latency::LatencyBreach;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use streamline::analysis::{self, SaveError};
use streamline::report::{ReportForm, format_count};
use streamline::{
    FinishedRun, OpenError, Options, PreparedRequest, ReadyRequest, RunResults, StopConditions,
};
use sys::open::PipeWaitRules;
use sys::poll::PollSet;

/// Runs the request in the arguments, or replays a record.
pub(crate) fn run(arguments: &RunArguments) -> Status {
    if let Some(file) = &arguments.replay {
        return record::replay_record(file, arguments).unwrap_or_else(|status| status);
    }
    let ran = StartNotifier::detach_background(arguments).and_then(|notifier| {
        let run_options = options_from_arguments(arguments);
        let prepared =
            PreparedRequest::read(&request::request_text(&arguments.line)?, &run_options)
                .map_err(report_open_error)?;
        build_and_run_request(prepared, &run_options, arguments, notifier)
    });
    ran.unwrap_or_else(|status| status)
}

/// Converts the arguments of `run` to run options.
pub(crate) fn options_from_arguments(arguments: &RunArguments) -> Options {
    let history = arguments.history.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    Options {
        count: arguments.count,
        time: arguments.time.map(Duration::from_nanos),
        timed: arguments.is_timed(),
        programs_timed: arguments.analyze,
        embedded: arguments.embedded,
        name: arguments.path_name.clone(),
        registered: arguments.background,
        log: arguments.log.clone(),
        history,
        serves_prefix: arguments.serves_prefix,
        record: arguments.record.clone(),
        record_bytes: arguments.record_bytes,
        captures_crashes: true,
        joins_prefixes: true,
        notices: failure::notice_handler(arguments.quiet),
        steps: arguments.rollback_log(),
        injected_refusal: arguments.kernel_refuses,
        ..Options::default()
    }
}

/// Builds and runs a prepared request, prints its results, and returns the exit status.
pub(crate) fn build_and_run_request(
    prepared: PreparedRequest,
    run_options: &Options,
    arguments: &RunArguments,
    notifier: StartNotifier,
) -> Result<Status, Status> {
    if arguments.background {
        check_standard_streams(&prepared.plan().graph)?;
    }
    let file = arguments.report.as_deref().map(ReportTarget::open).transpose()?;
    silence_space_panics();
    // From now on, a signal ends the run in an orderly way.
    signal::watch_stop_signals().map_err(|error| report_system_error(&error))?;
    sys::open::set_pipe_wait_rules(PipeWaitRules {
        notify: if arguments.quiet { |_| {} } else { print_pipe_wait_note },
        deadline: run_options.time.and_then(|time| Instant::now().checked_add(time)),
    });
    let ready =
        prepared.build(run_options).map_err(|error| report_build_failure(error, arguments))?;
    if let Some(number) = ready.number().or_else(|| arguments.serves_prefix.then_some(0)) {
        notifier.notify(number);
    }
    let (finished, alarmed) = run_built_request(ready, arguments)?;
    let status = print_results(&finished.results, arguments, file).with_alarm(alarmed);
    let status = match arguments.drawings.is_empty() {
        true => status,
        false => {
            let figures = analysis::drawn_figures(&finished.results);
            let drawn = drawings::draw(&arguments.drawings, &finished.results.plan, Some(&figures));
            if status == Status::Done { drawn } else { status }
        }
    };
    let recorded = finished.results.recorded.as_ref();
    let status = match recorded.is_none_or(|summary| record::print_summary(summary, arguments)) {
        false if status == Status::Done => Status::Failed,
        _ => status,
    };
    let sentence = finished.results.sentence();
    finished.report_and_unregister(status.exit_code(), sentence);
    Ok(status)
}

/// Prints a note that the run cannot start until another program opens the named pipe `pipe` for
/// reading.
fn print_pipe_wait_note(pipe: &Path) {
    let pipe = pipe.display();
    terminal::print_note(&format!("waiting until a program opens `{pipe}` for reading"));
}

/// Fails if a request needs standard streams, which a path in the background does not have.
fn check_standard_streams(graph: &Graph) -> Result<(), Status> {
    let reader = graph.nodes_with_ids().find(|(id, _)| graph.reads_standard_input(*id));
    let (name, use_of) = match reader {
        Some((_, node)) => (node.name(), "standard input, which a path in the background lacks"),
        None if graph.writes_capture_to_standard_output() => {
            ("pcap", "standard output, which is the log of a path in the background")
        }
        None => return Ok(()),
    };
    terminal::print_error(&format!("`{name}` uses {use_of}: name a file, or use `run`"));
    Err(Status::Usage)
}

/// Prints the reason why a prepared request cannot run, and returns the exit status. If there is no
/// daemon and only the name of the request requires one, also prints a note.
fn report_build_failure(error: OpenError, arguments: &RunArguments) -> Status {
    let unnamed = match &error {
        OpenError::Unregistered(error) => matches!(**error, ClientError::NoDaemon(_)),
        _ => false,
    };
    let status = report_open_error(error);
    if unnamed && !arguments.background && arguments.path_name.is_some() {
        terminal::print_note(
            "only `--as` needs a daemon: leave it out, or start a daemon (`streamline daemon \
             --user &`)",
        );
    }
    status
}

/// Runs a built request, and blocks until it ends. Prints progress and alarms to standard error.
/// Returns the finished run, and true if an alarm of `--alarm` was raised.
pub(crate) fn run_built_request(
    ready: ReadyRequest,
    arguments: &RunArguments,
) -> Result<(FinishedRun, bool), Status> {
    let signals = signal::watch_stop_signals().map_err(|error| report_system_error(&error))?;
    let view = RunView::start(&ready, arguments)?;
    let both = view.as_ref().map(|view| PollSet::new(&[signals, view.stop_descriptor()]));
    let both = both.transpose().map_err(|error| report_system_error(&error))?;
    let readable = both.as_ref().map_or(signals, PollSet::as_fd);
    let printer =
        ProgressPrinter::new(arguments.progress, arguments.quiet || arguments.view, ready.plan());
    let report = |progress: &Progress| printer.iter().for_each(|printer| printer.print(progress));
    let watch = printer
        .as_ref()
        .map(|printer| ProgressWatch { interval_ns: printer.interval_ns(), report: &report });
    let named = arguments.path_name.as_ref().map_or_else(String::new, |name| format!("{name}: "));
    let reporter = ready.reporter();
    let late = |breach: &LatencyBreach| {
        let text = latency_breach::describe_breach(breach);
        reporter.report(PathEvent::Late, &text);
        if !arguments.quiet {
            terminal::print_warning(&format!("{named}{text}"));
        }
    };
    let alarm = (!arguments.quiet || ready.number().is_some()).then_some(LatencyAlarm(&late));
    let until = StopConditions {
        stop_descriptor: Some(readable),
        time_limit_ns: arguments.time,
        watch,
        alarm,
        ..StopConditions::default()
    };
    let monitor = Monitor::start(&ready, arguments)?;
    let finished = ready.run(until);
    drop(view);
    terminal::erase_status_line();
    let finished = finished.map_err(report_open_error)?;
    let alarmed = monitor.is_some_and(|monitor| monitor.finish(&finished.results));
    Ok((finished, alarmed))
}

/// A socket to the process that started this path in the background and is waiting until the path
/// runs.
#[derive(Debug)]
pub(crate) struct StartNotifier {
    socket: Option<OwnedFd>,
    /// True if [`StartNotifier::notify`] redirects standard error to the log.
    redirects_stderr: bool,
}

impl StartNotifier {
    /// The notifier of a path in the foreground. It does nothing, because no process is waiting.
    pub(crate) const FOREGROUND: Self = Self { socket: None, redirects_stderr: false };

    /// Detaches this process from the terminal if it runs a path in the background, or a prefix
    /// that several requests share. The standard input of such a process becomes its socket to the
    /// process that started it. In the foreground, does nothing.
    fn detach_background(arguments: &RunArguments) -> Result<Self, Status> {
        if !arguments.background && !arguments.serves_prefix {
            return Ok(Self::FOREGROUND);
        }
        let left = sys::process::start_session().and_then(|()| sys::process::detach_stdin());
        let socket = Some(left.map_err(|error| report_system_error(&error))?);
        Ok(Self { socket, redirects_stderr: arguments.background })
    }

    /// Sends the number of the running path to the process that started it.
    fn notify(self, number: u32) {
        if let Some(socket) = self.socket {
            if self.redirects_stderr {
                // Up to this point, errors went to the starting process, because it does not read
                // the log.
                let _ = sys::process::redirect_stderr_to_stdout();
            }
            let text = serde_json::to_vec(&PathNumber { number }).unwrap_or_default();
            // The starting process may have exited.
            let _ = sys::descriptor::send(socket, &text, &[]);
        }
    }
}

/// Prints the outcome: filter reports, failures, losses, the ledger. Returns the exit status.
pub(crate) fn print_results(
    results: &RunResults,
    arguments: &RunArguments,
    file: Option<ReportTarget>,
) -> Status {
    let RunResults { plan, outcome, crashes, .. } = results;
    let form = if arguments.json { ReportForm::Json } else { ReportForm::Text };
    let report = results.report();
    let ends = match (form, terminal::drawing_columns()) {
        (ReportForm::Text, Some(columns)) => report.drawn_pipeline_end_reports(columns),
        (form, _) => report.pipeline_end_reports(form),
    };
    let printed = print_report_text(&ends, &plan.graph);
    if arguments.analyze {
        print_analysis(results);
    }

    // The full report includes the automatic changes.
    if !arguments.quiet && !arguments.stats && !arguments.json {
        outcome.adapted.iter().for_each(|change| terminal::print_note(change));
    }
    for (failure, capture) in outcome.failures.iter().zip(crashes) {
        if !failure.is_quiet() {
            terminal::print_error(&failure.to_string());
        }
        capture.iter().for_each(failure::print_crash);
    }
    let is_output_closed =
        printed == Status::OutputClosed || outcome.failures.iter().any(PathFailure::is_quiet);
    let failed = outcome.failures.iter().any(|failure| !failure.is_quiet());
    let no_loss = arguments.no_loss || plan.graph.options.flag("no-loss");
    let lost = !is_output_closed && report.lost_blocks() > 0;
    for imbalance in report.imbalances() {
        terminal::print_error(&format!("the ledger does not balance: {imbalance}"));
    }
    report.remarks().for_each(|remark| terminal::print_warning(&remark));
    if is_output_closed && !failed {
        warn_that_outputs_ended(results);
    }
    if lost {
        let what = report.describe_losses();
        if no_loss { terminal::print_error(&what) } else { terminal::print_warning(&what) }
    }
    let wanted = arguments.stats || arguments.json || file.is_some();
    let unbalanced = !report.imbalances().is_empty();
    let written = match (wanted || lost || unbalanced, file) {
        (true, Some(ReportTarget::Output)) => {
            print_report_text(&report.format_full_report(form), &plan.graph)
        }
        (true, Some(place)) => place.write(&report.format_full_report(form)),
        (true, None) => {
            terminal::print_error_text(&report.format_full_report(form));
            Status::Done
        }
        (false, _) => {
            if !arguments.quiet && !is_output_closed && !failed {
                report.explain_empty_output().iter().for_each(|why| terminal::print_note(why));
                terminal::print_error_text(&format!("{}\n", report.summary_sentence()));
            }
            Status::Done
        }
    };
    match () {
        () if failed || unbalanced || lost && no_loss => Status::Failed,
        () if written != Status::Done => written,
        () if is_output_closed => Status::OutputClosed,
        () => printed,
    }
}

/// Warns that all outputs have ended because the reader of standard output has exited, and prints
/// the totals of the run. Prints nothing if the request has only one sink.
fn warn_that_outputs_ended(results: &RunResults) {
    let nodes = results.plan.graph.nodes_with_ids().filter_map(|(_, node)| node.filter());
    if nodes.filter(|used| used.is_sink()).count() > 1 {
        let what = results.report().summary_sentence();
        terminal::print_warning(&format!(
            "the reader of standard output has exited, which ended all outputs: {what}"
        ));
    }
}

/// Prints the text of a report to standard output, or to standard error if the request writes a
/// capture to standard output.
fn print_report_text(text: &str, graph: &Graph) -> Status {
    if graph.writes_capture_to_standard_output() {
        terminal::print_error_text(text);
        return Status::Done;
    }
    terminal::print_text(text)
}

/// Prints the measurements of `--analyze`, and their effects on the next plan.
fn print_analysis(results: &RunResults) {
    let analysis = analysis::analyze_run(results);
    terminal::print_error_text(&format!("{}\n", analysis.text));
    match &analysis.saved {
        Err(SaveError::NoStateDirectory) => {
            terminal::print_note(
                "the measurements are not saved: neither XDG_STATE_HOME nor HOME is set",
            );
            return;
        }
        Err(SaveError::Failed(why)) => {
            terminal::print_warning(&format!("the measurements are not saved: {why}"));
            return;
        }
        Ok(0) => {}
        Ok(filters) => terminal::print_note(&format!(
            "{} received fewer than {} blocks: their measured costs are not saved",
            format_count(*filters as u64, "filter"),
            pipeline::explain::LEARNED_BLOCKS_MIN
        )),
    }
    if analysis.changes.is_empty() {
        terminal::print_note("measurements saved: the next plan of this request stays the same");
    }
    analysis.changes.iter().for_each(|change| terminal::print_note(&format!("next time {change}")));
}

/// Installs a panic hook that suppresses the standard message for a panic in a space, because the
/// path reports the failure. Does nothing if RUST_BACKTRACE is set.
pub(crate) fn silence_space_panics() {
    if std::env::var_os("RUST_BACKTRACE").is_some() {
        return;
    }
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !engine::path::is_space_thread() {
            terminal::erase_status_line();
            other(panic);
        }
    }));
}
