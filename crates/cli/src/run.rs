//! `streamline run`: prints what becomes of a request.
//!
//! Standard output gets what sinks write, and the reports of the last filters of the request (`… |
//! count`). The ledger goes to standard error or to the file of `--report`: one line as a rule, all
//! of it with `--stats`, `--json` or `--report`, or if something was lost or does not balance.

use crate::arguments::RunArguments;
use crate::failure::{self, refuse, refused};
use crate::place::Place;
use crate::progress::Teller;
use crate::status::Status;
use crate::{line, record, terminal};
use engine::lateness;
use engine::run::{Alarm, Progress, Watch};
use engine::signal;
use member::protocol::Number;
use runtime::failure::PathFailure;
use runtime::latency::Breach;
use std::os::fd::OwnedFd;
use std::time::Duration;
use streamline::analysis::{self, Unkept};
use streamline::report::Form;
use streamline::{Finished, Options, Prepared, Ready, Results, Until};

/// Runs the request of these words.
pub(crate) fn run(given: &RunArguments) -> Status {
    if let Some(file) = &given.replay {
        return record::replay(file, given).unwrap_or_else(|status| status);
    }
    let ran = Starter::leave(given).and_then(|starter| {
        let options = options(given);
        let prepared = Prepared::read(&line::text(&given.line)?, &options).map_err(refuse)?;
        go(prepared, &options, given, starter)
    });
    ran.unwrap_or_else(|status| status)
}

/// The wishes of these words.
pub(crate) fn options(given: &RunArguments) -> Options {
    let history = given.history.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    Options {
        count: given.count,
        time: given.time.map(Duration::from_nanos),
        timed: given.is_timed(),
        programs_timed: given.analyze,
        embedded: given.embedded,
        name: given.path_name.clone(),
        registered: given.background,
        log: given.log.clone(),
        history,
        record: given.record.clone(),
        record_bytes: given.record_bytes,
        captures_crashes: true,
        notices: failure::notices(given.quiet),
        steps: given.steps(),
        refuses: given.kernel_refuses,
        ..Options::default()
    }
}

/// Runs a prepared request, and prints what became of it.
pub(crate) fn go(
    prepared: Prepared,
    options: &Options,
    given: &RunArguments,
    starter: Starter,
) -> Result<Status, Status> {
    let file = given.report.as_deref().map(Place::open).transpose()?;
    quiet_panics();
    // A signal from now on ends it in good order.
    signal::watch().map_err(|error| refused(&error))?;
    let ready = prepared.build(options).map_err(refuse)?;
    if let Some(number) = ready.number() {
        starter.tell(number);
    }
    let finished = watched(ready, given)?;
    let status = told(&finished.results, given, file);
    if let Some(summary) = &finished.results.recorded {
        record::ended(summary, given);
    }
    let sentence = finished.results.sentence();
    finished.end(status.number(), sentence);
    Ok(status)
}

/// Runs what was built to its end, with progress and alarms on standard error.
pub(crate) fn watched(ready: Ready, given: &RunArguments) -> Result<Finished, Status> {
    let signals = signal::watch().map_err(|error| refused(&error))?;
    let teller = Teller::new(given.progress, given.quiet, ready.plan());
    let tell = |progress: &Progress| teller.iter().for_each(|teller| teller.tell(progress));
    let watch = teller.as_ref().map(|teller| Watch { every_ns: teller.every_ns(), tell: &tell });
    let named = given.path_name.as_ref().map_or_else(String::new, |name| format!("{name}: "));
    let late = |breach: &Breach| terminal::warn(&format!("{named}{}", lateness::describe(breach)));
    let alarm = (!given.quiet).then_some(Alarm(&late));
    let until = Until { readable: Some(signals), elapsed: given.time, watch, alarm };
    let finished = ready.run(until);
    terminal::wipe();
    finished.map_err(refuse)
}

/// The process that started a path in the background, and waits to hear that it runs.
#[derive(Debug)]
pub(crate) struct Starter(Option<OwnedFd>);

impl Starter {
    /// No process waits.
    pub(crate) const NONE: Self = Self(None);

    /// Leaves the terminal, if this is a path in the background.
    fn leave(given: &RunArguments) -> Result<Self, Status> {
        if !given.background {
            return Ok(Self::NONE);
        }
        let left = sys::process::leave_terminal().and_then(|()| sys::process::detach_stdin());
        left.map(|socket| Self(Some(socket))).map_err(|error| refused(&error))
    }

    /// Tells it that the path runs.
    fn tell(self, number: u32) {
        if let Some(socket) = self.0 {
            let text = serde_json::to_vec(&Number { number }).unwrap_or_default();
            // One that has gone need not know.
            let _ = sys::descriptor::send(socket, &text, &[]);
        }
    }
}

/// Prints the outcome: reports of the request's end, failures, losses, the ledger.
pub(crate) fn told(results: &Results, given: &RunArguments, file: Option<Place>) -> Status {
    let Results { plan, outcome, crashes, .. } = results;
    let form = if given.json { Form::Json } else { Form::Text };
    let report = results.report();
    let printed = terminal::print(&report.line_ends(form));
    if given.analyze {
        analyzed(results);
    }

    // The report has them, if it is asked for.
    if !given.quiet && !given.stats && !given.json {
        outcome.adapted.iter().for_each(|told| terminal::note(told));
    }
    for (failure, capture) in outcome.failures.iter().zip(crashes) {
        if !failure.is_quiet() {
            terminal::complain(&failure.to_string());
        }
        capture.iter().for_each(failure::crash);
    }
    let unread = printed == Status::Unread || outcome.failures.iter().any(PathFailure::is_quiet);
    let failed = outcome.failures.iter().any(|failure| !failure.is_quiet());
    let no_loss = given.no_loss || plan.graph.options.flag("no-loss");
    let lost = !unread && report.lost() > 0;
    for imbalance in report.imbalances() {
        terminal::complain(&format!("the ledger does not balance: {imbalance}"));
    }
    report.remarks().for_each(terminal::warn);
    if lost {
        let what = report.losses();
        if no_loss { terminal::complain(&what) } else { terminal::warn(&what) }
    }
    let wanted = given.stats || given.json || file.is_some();
    let unbalanced = !report.imbalances().is_empty();
    let written = match (wanted || lost || unbalanced, file) {
        (true, Some(place)) => place.write(&report.whole(form)),
        (true, None) => {
            terminal::tell(&report.whole(form));
            Status::Done
        }
        (false, _) => {
            if !given.quiet && !unread && !failed {
                report.nothing_written().iter().for_each(|why| terminal::note(why));
                terminal::tell(&format!("{}\n", report.sentence()));
            }
            Status::Done
        }
    };
    match () {
        () if failed || unbalanced || lost && no_loss => Status::Failed,
        () if written != Status::Done => written,
        () if unread => Status::Unread,
        () => printed,
    }
}

/// Prints measurements, and their effect on the next plan.
fn analyzed(results: &Results) {
    let analysis = analysis::analyze(results);
    terminal::tell(&format!("{}\n", analysis.text));
    match &analysis.kept {
        Err(Unkept::Homeless) => {
            terminal::note("nothing is kept of this: neither XDG_STATE_HOME nor HOME is set");
            return;
        }
        Err(Unkept::Failed(why)) => {
            terminal::warn(&format!("nothing is kept of this: {why}"));
            return;
        }
        Ok(0) => {}
        Ok(filters) => terminal::note(&format!(
            "what a filter costs is learned from {} blocks on: too few came to {filters} of them",
            pipeline::explain::LEARNED_MIN
        )),
    }
    if analysis.changes.is_empty() {
        terminal::note("kept for the next plan, which would be the same");
    }
    analysis.changes.iter().for_each(|change| terminal::note(&format!("next time {change}")));
}

/// A panic in a space is reported with its path; the message in between would say less. With
/// RUST_BACKTRACE it is wanted all the same.
pub(crate) fn quiet_panics() {
    if std::env::var_os("RUST_BACKTRACE").is_some() {
        return;
    }
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !engine::path::runs_space() {
            terminal::wipe();
            other(panic);
        }
    }));
}
