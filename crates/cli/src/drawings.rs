//! The drawings of `explain`: `--dot` and `--svg`.

use crate::arguments::explain::DrawingArguments;
use crate::status::Status;
use crate::{progress, terminal};
use pipeline::explain::{self, DrawnFigures};
use pipeline::plan::Plan;
use std::path::Path;

/// Checks that standard output does not receive both a drawing and the output of the request. If it
/// would, prints an error and returns the exit status.
pub(crate) fn refuse_mixed_stdout(wanted: &DrawingArguments, plan: &Plan) -> Result<(), Status> {
    if !wanted.writes_to_stdout() || (plan.reports.is_empty() && !progress::has_printing_sink(plan))
    {
        return Ok(());
    }
    terminal::print_error(
        "the request prints on standard output, too: name a file for the drawing, as in \
         --svg=plan.svg",
    );
    Err(Status::Usage)
}

/// Draws the plan in each requested format, and writes each drawing to its file. The drawings
/// contain the measurements of a run if `figures` is `Some`. Returns the exit status of the first
/// failure, or success if there is none.
pub(crate) fn draw(
    wanted: &DrawingArguments,
    plan: &Plan,
    figures: Option<&DrawnFigures>,
) -> Status {
    let dot = wanted.dot.as_ref().map(|file| (file, explain::format_dot(plan, figures)));
    let svg = wanted.svg.as_ref().map(|file| (file, explain::format_svg(plan, figures)));
    let mut status = Status::Done;
    for (file, text) in dot.into_iter().chain(svg) {
        let written = write_drawing(file, &text);
        if status == Status::Done {
            status = written;
        }
    }
    status
}

fn write_drawing(file: &Path, text: &str) -> Status {
    if file.as_os_str() == "-" {
        return terminal::print_text(text);
    }
    match std::fs::write(file, text) {
        Ok(()) => Status::Done,
        Err(error) => {
            let (file, why) = (file.display(), terminal::describe_io_error(&error));
            terminal::print_error(&format!("cannot write the drawing to {file}: {why}"));
            Status::Failed
        }
    }
}
