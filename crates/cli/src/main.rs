//! The command `streamline`. [SL §4.2, §7]
//!
//! Standard output receives the output of sinks. Standard error receives mistakes, warnings and,
//! without `--report`, the ledger, so data and reports are not mixed (CONTRACT 28). The exit
//! statuses are in [`status`].
//!
//! This crate is a front end: the library `streamline` parses, plans, builds and runs requests, and
//! the modules of this crate format the results.
#![forbid(unsafe_code)]

mod arguments;
mod arranged;
mod cat;
mod check;
mod completion;
mod doctor;
mod drawings;
mod examples;
mod explain;
mod failure;
mod filters;
mod habits;
mod line;
mod man;
mod monitor;
mod mount;
mod progress;
mod record;
mod report_target;
mod run;
mod schema;
mod screen;
mod separate;
mod shared;
mod sharers;
mod shell;
mod status;
mod terminal;
mod view;
mod why;

use abi::text::{VisibleLines, is_hidden};
use arguments::{Arguments, Command};
use clap::Parser;
use status::Status;
use std::process::ExitCode;
use streamline::Served;

fn main() -> ExitCode {
    // After a failure, writing to a closed standard output is not reported as an error.
    let _ = sys::closed_output::fail_if_closed();
    streamline::use_daemon_ids();
    match streamline::serve_if_asked(&failure::notices(false)) {
        Some(Served::Filter(status)) => return ExitCode::from(status),
        Some(Served::Worker(ended)) => {
            return ended.map_or_else(failure::report_open_error, |()| Status::Done).into();
        }
        None => {}
    }
    let arguments = match Arguments::try_parse_from(arranged::arrange(std::env::args_os())) {
        Ok(arguments) => arguments,
        Err(error) => {
            if error.use_stderr() && habits::suggest(std::env::args_os()) {
                return Status::Usage.into();
            }
            let status = if error.use_stderr() { Status::Usage } else { Status::Done };
            // The message may quote hidden characters, which must be replaced; the message then
            // loses its colors. A failed write to standard error cannot be reported.
            if std::env::args_os().any(|word| word.to_string_lossy().contains(is_hidden)) {
                terminal::print_error_text(&VisibleLines(&error.render().to_string()).to_string());
            } else {
                let printed = error.print();
                if status == Status::Done && printed.is_err() {
                    return Status::Unread.into();
                }
            }
            return status.into();
        }
    };
    let status = match arguments.command {
        Command::Run(given) => run::run(&given),
        Command::Why(given) => why::trace_flow(&given),
        Command::Cat(given) => cat::cat(&given),
        Command::Check(given) => check::check(&given),
        Command::Explain(given) => explain::explain(&given),
        Command::Filters(given) => filters::filters(&given),
        Command::Doctor(given) => doctor::doctor(&given),
        Command::Schema { name } => schema::print_schema(name.as_deref()),
        Command::Examples(given) => examples::examples(&given),
        Command::Man(given) => man::man(&given),
        Command::Completion { shell } => completion::print_script(shell),
        Command::Complete { line: Some(line), .. } => completion::print_completions(&line),
        Command::Complete { line: None, words } if words == ["schema"] => schema::print_names(),
        Command::Complete { line: None, words } => shared::next::print_candidates(&words),
        Command::Shared(given) => shared::run(&given),
        Command::Bench(given) => separate::execute(separate::BENCH, &given.words),
        Command::Page(given) => separate::execute(separate::PAGE, &given.words),
        Command::Mount(given) => return mount::mount(&given),
        Command::Sh(given) => return shell::run_shell(&given),
        Command::Exec(given) => return shell::run_preloaded(&given),
    };
    status.into()
}
