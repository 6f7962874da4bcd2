//! Records of runs: the summary that `run --record=FILE` prints, and the replay of `run --replay
//! FILE`.

use crate::arguments::RunArguments;
use crate::failure::{report_open_error, report_system_error};
use crate::report_target::ReportTarget;
use crate::run::{self, silence_space_panics};
use crate::status::Status;
use crate::terminal;
use engine::record::RecordingSummary;
use engine::signal;
use std::path::Path;
use streamline::record::{BuiltReplay, LedgerDifferences, ReplayableRecord, compare_with_record};

/// Prints the size of a record, unless `--quiet` is given. If the record has reached its size
/// limit, first prints the number of blocks that arrived after that. If recording has failed,
/// prints only the reason, and returns false.
pub(crate) fn print_summary(summary: &RecordingSummary, arguments: &RunArguments) -> bool {
    let target = &summary.target;
    if let Some(why) = &summary.failure {
        terminal::print_error(&format!("the record {target} is incomplete: {why}"));
        return false;
    }
    let beyond = summary.missing;
    if beyond.since.is_some() {
        let (blocks, bytes) = (beyond.blocks, beyond.bytes);
        terminal::print_warning(&format!(
            "the record {target} was full at {} bytes: {blocks} blocks with {bytes} bytes arrived \
             after that (--record-bytes sets its size limit)",
            summary.bytes_max
        ));
    }
    if !arguments.quiet {
        terminal::print_note(&format!(
            "recorded into {target} ({} bytes): `streamline run --replay {target}` repeats it",
            summary.bytes
        ));
    }
    true
}

/// Replays a record, prints the results of the replay and its differences from the recorded run,
/// and returns the exit status. Fails if the record is truncated or was modified, because the
/// output would then not be that of the recorded run.
pub(crate) fn replay_record(path: &Path, arguments: &RunArguments) -> Result<Status, Status> {
    let recorded = ReplayableRecord::open(path).map_err(report_open_error)?;
    let file = arguments.report.as_deref().map(ReportTarget::open).transpose()?;
    silence_space_panics();
    signal::watch_stop_signals().map_err(|error| report_system_error(&error))?;
    let options = run::options_from_arguments(arguments);
    let repetition =
        recorded.build_replay(path, arguments.into.clone(), &options).map_err(report_open_error)?;
    let BuiltReplay { ready, output_directory: into, completeness: whole } = repetition;
    let (finished, alarmed) = run::run_built_request(ready, arguments)?;
    let status = run::print_results(&finished.results, arguments, file).with_alarm(alarmed);
    if let (Some(into), false) = (into, arguments.quiet) {
        terminal::print_note(&format!("its output is in {}", into.display()));
    }
    let sentence = finished.results.sentence();
    let results = finished.report_and_unregister(status.exit_code(), sentence);
    if whole.is_damaged() && status == Status::Done {
        terminal::print_error(&format!(
            "the replay differs from the recorded run, because {} is damaged",
            path.display()
        ));
        return Ok(Status::Failed);
    }
    let found = compare_with_record(&whole, &results);
    Ok(found.map_or(status, |found| print_differences(&found, arguments, status)))
}

/// Maximum number of differences printed between a run and its replay.
const DIFFERENCES_MAX: usize = 8;

/// Prints the differences between a run and its replay, or a note that there are none. Returns
/// `status` if there are none, otherwise `Failed`.
fn print_differences(
    found: &LedgerDifferences,
    arguments: &RunArguments,
    status: Status,
) -> Status {
    if found.is_empty() {
        if !arguments.quiet {
            terminal::print_note("the replay matches the recorded run, block for block");
        }
        return status;
    }
    terminal::print_error("the replay differs from the recorded run");
    for (before, now) in found.iter().take(DIFFERENCES_MAX) {
        let line = |text: &Option<String>| text.clone().unwrap_or_else(|| "nothing".to_owned());
        terminal::print_error_text(&format!("  then {}\n   now {}\n", line(before), line(now)));
    }
    if found.len() > DIFFERENCES_MAX {
        terminal::print_error_text(&format!("  and {} more\n", found.len() - DIFFERENCES_MAX));
    }
    Status::Failed
}
