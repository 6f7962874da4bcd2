//! `streamline tap`: runs a request over the output of a node of a running path, live or from the
//! past. ^C ends the request, but not the path.
//!
//! The frames arrive as a capture through a pipe, and the request runs in this process. The path
//! never waits for the request. It skips and counts frames that the request does not read in time;
//! the command reports the count at the end. With `--all`, the first such frame ends the tap.

use super::connect::{connect_path, format_age};
use crate::arguments::RunArguments;
use crate::arguments::paths::TapArguments;
use crate::failure::{self, report_client_error, report_open_error, report_system_error};
use crate::run::{self, silence_space_panics};
use crate::status::Status;
use crate::terminal;
use engine::build::PathOptions;
use member::client::mask_hidden_characters;
use member::protocol::{TapParameters, TapReport, TapStart};
use std::os::fd::AsRawFd as _;
use streamline::report::format_count;
use streamline::{Notices, Options, PreparedRequest};

/// Starts a tap, and runs the request on its output.
pub(super) fn run(arguments: &TapArguments) -> Result<Status, Status> {
    let (name, node) = match arguments.path.split_once(':') {
        Some((name, node)) => (name, Some(node.to_owned())),
        None => (arguments.path.as_str(), None),
    };
    let words = arguments.words.join(" ");
    let (to, _) = connect_path(name)?;
    let wanted = TapParameters {
        node,
        from: arguments.from.clone(),
        all: arguments.all.then_some(true),
        patience_ms: arguments.patience.map(|ns| ns / 1_000_000),
        ..TapParameters::default()
    };
    let text = |fd: i32| format!("replay \"/proc/self/fd/{fd}\" | {words}");
    // Mistakes in the request are reported before the tap starts.
    let notices = failure::notice_handler(false);
    let options = Options { outside_kernel: true, notices, ..Options::default() };
    streamline::read_graph(&text(0), &options).map_err(report_open_error)?;
    let (began, pipe) = to.tap(&wanted).map_err(|error| report_client_error(&error))?;
    terminal::print_note(&describe_tap_start(&arguments.path, &began, arguments.from.is_some()));
    let (count, time) = (arguments.count, arguments.time);
    let quiet = RunArguments { quiet: true, count, time, ..RunArguments::default() };
    // The request of a tap is not registered as a path: the tapped path counts it as a reader.
    let options =
        Options { outside_kernel: true, embedded: true, ..run::options_from_arguments(&quiet) };
    let prepared = PreparedRequest::read(
        &text(pipe.as_raw_fd()),
        &Options { notices: Notices::default(), ..options.clone() },
    );
    let prepared = prepared.map_err(report_open_error)?;
    silence_space_panics();
    engine::signal::watch_stop_signals().map_err(|error| report_system_error(&error))?;
    let ready = prepared.build_with(&options, PathOptions::default()).map_err(report_open_error)?;
    let (finished, _) = run::run_built_request(ready, &quiet)?;
    let report = to.tap_report();
    let status = run::print_results(&finished.results, &quiet, None);
    match report {
        Ok(report) => terminal::print_note(&describe_end(&report)),
        Err(_) => terminal::print_note(
            "the path has ended, and did not report how many frames were skipped",
        ),
    }
    Ok(status)
}

/// Describes the start position of a tap: the block at which it begins, and the amount of past
/// output.
fn describe_tap_start(path: &str, start: &TapStart, has_from: bool) -> String {
    let TapStart { block, past, ago_ns, remembers } = *start;
    let path = mask_hidden_characters(path);
    let at = format!("tap at {path} begins at block {block}");
    match past {
        0 if has_from && !remembers => format!(
            "{at}, now: the path stores no past output of that node; sources store it in paths \
             started with --history=64M"
        ),
        0 => format!("{at}, now"),
        _ => {
            let ms = ago_ns / 1_000_000;
            let ago = if ms < 10_000 { format!("{ms} ms") } else { format_age(ms / 1000) };
            format!("{at}, {ago} ago: {} of the past", format_count(past, "frame"))
        }
    }
}

/// Describes a tap that has ended: the frames received, the frames skipped, and the reason of the
/// end.
fn describe_end(report: &TapReport) -> String {
    let mut text = format!("tap: {}", format_count(report.frames, "frame"));
    if report.skipped > 0 {
        let skipped = format_count(report.skipped, "frame");
        text.push_str(&format!(", {skipped} skipped, because this request was too slow"));
        if let Some(missing) = &report.missing {
            text.push_str(&format!(" (blocks {})", mask_hidden_characters(missing)));
        }
    }
    if report.no_frame > 0 {
        text.push_str(&format!(", {} without a frame", format_count(report.no_frame, "block")));
    }
    if let Some(why) = &report.over {
        text.push_str(&format!("; it ended: {}", mask_hidden_characters(why)));
    }
    text
}
