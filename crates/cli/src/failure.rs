//! Messages for errors and notices, and the exit status of each error.

use crate::status::Status;
use crate::{request, terminal};
use engine::build::BuildError;
use member::client::ClientError;
use pipeline::plan::Plan;
use pipeline::{Diagnostic, explain};
use streamline::privilege::Denial;
use streamline::{CrashCapture, Notice, Notices, OpenError};
use sys::process_group::ProcessOutcome;

/// Creates a handler that prints the notices of a run to standard error. If `quiet` is true, the
/// handler omits notes and prints only warnings.
pub(crate) fn notice_handler(quiet: bool) -> Notices {
    Notices::new(move |notice| match notice {
        Notice::Note(_) if quiet => {}
        Notice::Note(text) => terminal::print_note(text),
        Notice::Warning(text) => terminal::print_warning(text),
        Notice::RequestWarnings(text, list) => request::print_mistakes(text, list),
        Notice::Crash(capture) => print_crash(capture),
    })
}

/// Prints the location of a crash capture and the command that replays it.
pub(crate) fn print_crash(capture: &CrashCapture) {
    let path = capture.path.display();
    terminal::print_note(&format!("the block was saved to {path}; replay it with"));
    terminal::print_error_text(&format!("  {}\n", capture.command));
}

/// Prints the reason why a request cannot run. Returns the exit status.
pub(crate) fn report_open_error(error: OpenError) -> Status {
    match error {
        OpenError::Mistakes { text, list } => {
            request::print_mistakes(&text, &list);
            Status::Usage
        }
        OpenError::Unplaceable { text, graph, refused } => {
            let what = format!("no space can run `{}`", refused.name);
            request::print_mistakes(
                &text,
                &[Diagnostic::error(graph.node(refused.node).span, what)],
            );
            terminal::print_error_text(&explain::format_unplaceable(&graph, &refused));
            Status::Failed
        }
        OpenError::Build { text, plan, error } => print_build_error(&text, &plan, &error),
        OpenError::Unregistered(error) => report_client_error(&error),
        // The worker process has already reported the reason.
        OpenError::Worker { ended: Some(ProcessOutcome::Status(status)), .. } => {
            Status::from_exit_code(u8::try_from(status).unwrap_or(1))
        }
        other => {
            terminal::print_error(&other.to_string());
            match other {
                OpenError::Unfit(_) => Status::Usage,
                OpenError::Broken(broken) if broken.is_missing() => Status::NotFound,
                _ => Status::Failed,
            }
        }
    }
}

/// Prints the reason why a planned request could not be built. If a filter is the cause, also
/// prints its position in the request. Returns the exit status.
fn print_build_error(text: &str, plan: &Plan, error: &BuildError) -> Status {
    match error {
        BuildError::Mistake { node, mistake } => {
            let span = plan.graph.node(*node).span;
            request::print_mistake(text, span, &mistake.message, mistake.hint.as_deref());
            Status::Usage
        }
        BuildError::Outside { node, failure } => {
            let span = plan.graph.node(*node).span;
            let what = format!("cannot {} {}: {}", failure.call, failure.target, failure.why);
            match failure.missing_capability.and_then(Denial::for_capability) {
                Some(denial) => {
                    request::print_mistake(text, span, &what, None);
                    terminal::print_note(&denial.sentence());
                    terminal::print_error_text(&denial.remedies(text));
                }
                None => request::print_mistake(text, span, &what, failure.hint.as_deref()),
            }
            if failure.is_missing() { Status::NotFound } else { Status::Failed }
        }
        BuildError::Refused(_) | BuildError::Machine(_) | BuildError::Unexpected(_) => {
            terminal::print_error(&error.to_string());
            Status::Failed
        }
    }
}

/// Prints an error of a call to a daemon or a path. Returns the exit status.
pub(crate) fn report_client_error(error: &ClientError) -> Status {
    terminal::print_error(&error.to_string());
    match error {
        ClientError::NoDaemon(_) => Status::NotFound,
        error if is_path_gone(error) => Status::NotFound,
        _ => Status::Failed,
    }
}

/// Returns true if the error means that the path does not exist or has ended.
pub(crate) fn is_path_gone(error: &ClientError) -> bool {
    match error {
        ClientError::PathEnded(_) => true,
        ClientError::Refused(fault) => fault.name == "io.streamline.NoSuchPath",
        _ => false,
    }
}

/// Prints an error of a system call. Returns the exit status.
pub(crate) fn report_system_error(error: &sys::Error) -> Status {
    terminal::print_error(&error.to_string());
    Status::Failed
}
