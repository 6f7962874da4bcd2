//! `streamline run`: a line from text to outcome.
//!
//! Standard output gets what sinks write, and what the last filters of the line report (`… |
//! count`). The ledger goes to standard error or to the file of `--report`: one line as a rule, all
//! of it with `--stats`, `--json` or `--report`, or if something was lost or does not balance.

use crate::arguments::RunArguments;
use crate::privilege::Shut;
use crate::progress::Teller;
use crate::report::{self, Form, Part, Place, Report};
use crate::shared::hosts::Hosts;
use crate::shared::member::{Member, Starter};
use crate::status::Status;
use crate::{analyze, engines, line, record, terminal};
use engine::build::{self, BuildError, Extras, Settings};
use engine::path::Adapt;
use engine::record::Tape;
use engine::run::{self as engine_run, Alarm, Outcome, Progress, Until, Watch};
use engine::{signal, suspect};
use pipeline::Graph;
use pipeline::plan::{Machine, Plan, Refused};
use runtime::failure::{Cause, PathFailure};
use runtime::latency::Breach;
use std::path::PathBuf;

/// Runs the line of these words.
pub(crate) fn run(given: &RunArguments) -> Status {
    if let Some(file) = &given.replay {
        return record::replay(file, given).unwrap_or_else(|status| status);
    }
    let ran = Starter::leave(given).and_then(|starter| {
        let (text, mut graph) = line::settled(line::text(&given.line)?)?;
        if let Some(of) = engines::wanted(&graph) {
            return engines::run(&text, &graph, of, given, starter);
        }
        // What is recorded runs in this process.
        let alone = given.embedded || given.record.is_some();
        let (hosts, machine) = Hosts::find(&mut graph, alone);
        let machine = record::machine(machine, given);
        let plan = line::planned(&text, graph, &machine)?;
        start(&text, plan, (&machine, &hosts), given, starter)
    });
    ran.unwrap_or_else(|status| status)
}

/// Runs a plan, and tells what became of it. What the kernel refuses of it runs elsewhere.
pub(crate) fn start(
    text: &str,
    plan: Plan,
    on: (&Machine, &Hosts),
    given: &RunArguments,
    starter: Starter,
) -> Result<Status, Status> {
    let steps = given.steps();
    let recording = record::begin(text, &plan, on.0, given, &steps)?;
    let tape = recording.clone().map_or_else(Tape::default, Tape::Record);
    let history = given.history.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let adapt = recording.is_none().then(|| Adapt::asked(&plan, on.0)).flatten();
    let extras = Extras { tape, history, adapt, steps: steps.clone(), ..Extras::default() };
    let gone = go(text, plan, on, (given, starter), &extras);
    if gone.is_err() {
        steps.back_to_beginning();
    }
    let Gone { text, plan, outcome, file, member } = gone?;
    let status = told(&text, &plan, given, &outcome, file);
    if let Some(recording) = recording {
        record::end(&recording, &outcome, given);
    }
    member.end(status, ended(&plan, &outcome));
    Ok(status)
}

/// A run that has ended.
pub(crate) struct Gone {
    /// The request that ran when it ended.
    pub(crate) text: String,
    pub(crate) plan: Plan,
    pub(crate) outcome: Outcome,
    /// Where the report goes.
    pub(crate) file: Option<Place>,
    /// What it has to do with a daemon.
    pub(crate) member: Member,
}

/// Runs a plan to its end. What the kernel refuses of it runs elsewhere.
pub(crate) fn go(
    text: &str,
    plan: Plan,
    on: (&Machine, &Hosts),
    (given, starter): (&RunArguments, Starter),
    extras: &Extras,
) -> Result<Gone, Status> {
    let file = given.report.as_deref().map(Place::open).transpose()?;
    quiet_panics();
    let signals = signal::watch().map_err(|error| {
        terminal::complain(&error.to_string());
        Status::Failed
    })?;
    let settings = Settings {
        count: given.count,
        timed: given.is_timed(),
        programs_timed: given.analyze,
        refuses: given.kernel_refuses,
        ..Settings::default()
    };
    let log = extras.steps.clone();
    let (plan, paths) = built(text, plan, on, (settings, extras))?;
    let live = paths.first().map(build::Path::live);
    live.iter().for_each(|live| live.says(text));
    if !given.quiet {
        plan.refused.iter().for_each(|refused| terminal::note(&elsewhere(&plan, refused)));
    }
    let teller = Teller::new(given, &plan);
    let tell = |progress: &Progress| teller.iter().for_each(|teller| teller.tell(progress));
    let watch = teller.as_ref().map(|teller| Watch { every_ns: teller.every_ns(), tell: &tell });
    let named = given.path_name.as_ref().map_or_else(String::new, |name| format!("{name}: "));
    let late =
        |breach: &Breach| terminal::warn(&format!("{named}{}", engine::lateness::describe(breach)));
    let alarm = (!given.quiet).then_some(Alarm(&late));
    let lives = paths.iter().map(build::Path::live).collect();
    let mut member = Member::begin((text, &plan), on.0, (lives, None), given, (starter, &log))?;
    let until = Until { readable: Some(member.stop(signals)?), elapsed: given.time, watch, alarm };
    let outcome = engine_run::run(paths, until);
    terminal::wipe();
    let outcome = outcome.map_err(|error| {
        terminal::complain(&error.to_string());
        Status::Failed
    })?;
    // It may have been changed meanwhile.
    let last = live.and_then(|live| live.text().zip(live.plan()));
    let (text, plan) = last.unwrap_or_else(|| (text.to_owned(), plan));
    Ok(Gone { text, plan, outcome, file, member })
}

/// How it ended, in a sentence: why, or how much it was.
pub(crate) fn ended(plan: &Plan, outcome: &Outcome) -> String {
    let failure = outcome.failures.iter().find(|failure| !failure.is_quiet());
    failure.map_or_else(|| Report::new(plan, outcome, &[]).sentence(), ToString::to_string)
}

/// Builds a plan; what the kernel refuses is planned again.
pub(crate) fn built(
    text: &str,
    mut plan: Plan,
    (machine, hosts): (&Machine, &Hosts),
    (settings, extras): (Settings, &Extras),
) -> Result<(Plan, Vec<build::Path>), Status> {
    loop {
        let error = match build::build_with(&plan, settings, hosts, extras) {
            Ok(paths) => return Ok((plan, paths)),
            Err(error) => error,
        };
        let BuildError::Refused(what) = &error else { return Err(refused(text, &plan, &error)) };
        plan = match plan.again(machine, std::slice::from_ref(what)) {
            None => return Err(refused(text, &plan, &error)),
            Some(again) => {
                let whole = plan.graph;
                again.map_err(|unplaceable| line::unplaceable(text, &whole, &unplaceable))?
            }
        };
    }
}

/// What runs elsewhere because the kernel refused it, in a sentence.
fn elsewhere(plan: &Plan, refused: &Refused) -> String {
    let name = plan.graph.node(refused.node).name();
    format!("`{name}` runs in {}: {}", plan.space_of(refused.node).name, refused.why)
}

/// Tells what could not be built, at its place in the line.
fn refused(text: &str, plan: &Plan, error: &BuildError) -> Status {
    match error {
        BuildError::Mistake { node, mistake } => {
            let span = plan.graph.node(*node).span;
            line::tell_at(text, span, &mistake.what, mistake.hint.as_deref());
            Status::Usage
        }
        BuildError::Outside { node, failure } => {
            let span = plan.graph.node(*node).span;
            let what = format!("cannot {} {}: {}", failure.call, failure.target, failure.why);
            let used = plan.graph.node(*node).filter();
            let name = used.map_or("", |used| used.description.name);
            match Shut::at(name, failure.call, failure.needs) {
                Some(shut) => {
                    line::tell_at(text, span, &what, None);
                    terminal::note(&shut.sentence());
                    terminal::tell(&shut.ways(text));
                }
                None => line::tell_at(text, span, &what, failure.hint.as_deref()),
            }
            if failure.is_missing() { Status::Nothing } else { Status::Failed }
        }
        BuildError::Refused(_) | BuildError::Machine(_) | BuildError::Unexpected(_) => {
            terminal::complain(&error.to_string());
            Status::Failed
        }
    }
}

/// Tells the outcome: reports of the line's end, failures, losses, the ledger.
pub(crate) fn told(
    text: &str,
    plan: &Plan,
    given: &RunArguments,
    outcome: &Outcome,
    file: Option<Place>,
) -> Status {
    tell_outcome(text, plan, given, (outcome, &[]), file)
}

/// The same, of several engines and of each by itself.
pub(crate) fn tell_outcome(
    text: &str,
    plan: &Plan,
    given: &RunArguments,
    (outcome, parts): (&Outcome, &[Part]),
    file: Option<Place>,
) -> Status {
    let kept = keep(text, &plan.graph, &outcome.failures);
    let form = if given.json { Form::Json } else { Form::Text };
    let report = Report::new(plan, outcome, &kept).of_engines(parts);
    let printed = terminal::print(&report.line_ends(form));
    if given.analyze {
        analyze::tell(text, plan, outcome);
    }

    // The report has them, if it is asked for.
    if !given.quiet && !given.stats && !given.json {
        outcome.adapted.iter().for_each(|told| terminal::note(told));
    }
    for (failure, kept) in outcome.failures.iter().zip(&kept) {
        if !failure.is_quiet() {
            terminal::complain(&failure.to_string());
        }
        if let Some(kept) = kept {
            kept.tell();
        }
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

/// A block that a filter failed on.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// What fails again.
    pub(crate) command: String,
}

impl Kept {
    /// Says where it is, and what to do with it.
    pub(crate) fn tell(&self) {
        let path = self.path.display();
        terminal::note(&format!("the block is kept in {path}; replay it with"));
        terminal::tell(&format!("  {}\n", self.command));
    }
}

/// Keeps the blocks on which filters failed, one per failure.
pub(crate) fn keep(text: &str, graph: &Graph, failures: &[PathFailure]) -> Vec<Option<Kept>> {
    failures
        .iter()
        .map(|failure| {
            let Cause::Panic { block: Some(block), .. } = &failure.cause else { return None };
            let folder = state()?;
            match suspect::keep(block, &failure.node, &folder) {
                Ok(kept) => {
                    let line = replaced(text, graph, &kept.source);
                    let command = format!("streamline {}", report::quoted(&line));
                    Some(Kept { path: kept.path, command })
                }
                Err(why) => {
                    terminal::warn(&format!("the block could not be kept: {why}"));
                    None
                }
            }
        })
        .collect()
}

/// The folder for what is left behind: `$XDG_STATE_HOME/streamline`, by default in
/// `~/.local/state`.
pub(crate) fn state() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    if base.is_none() {
        terminal::warn("nothing can be kept: neither XDG_STATE_HOME nor HOME is set");
    }
    Some(base?.join("streamline"))
}

/// The line with another source in the place of each of its own.
pub(crate) fn replaced(text: &str, graph: &Graph, source: &str) -> String {
    let mut spans: Vec<_> = graph.heads().into_iter().map(|head| graph.node(head).span).collect();
    spans.sort_unstable();
    let mut line = String::new();
    let mut from = 0;
    for span in spans {
        line.push_str(text.get(from..span.start).unwrap_or_default());
        line.push_str(source);
        from = span.end;
    }
    line.push_str(text.get(from..).unwrap_or_default());
    line
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
