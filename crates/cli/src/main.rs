//! The command `streamline`. [SL §4.2, §7]
//!
//! The output of sinks is written to standard output. Mistakes, warnings and, without `--report`,
//! the ledger are written to standard error, so that data and reports are not mixed (CONTRACT 28).
//! The exit statuses are defined in [`status`].
//!
//! This crate is a front end: the library `streamline` parses, plans, builds and runs requests, and
//! the modules of this crate format the results.
#![forbid(unsafe_code)]

mod arguments;
mod cat;
mod check;
mod completion;
mod doctor;
mod drawings;
mod examples;
mod explain;
mod failure;
mod filters;
mod foreign_syntax;
mod man;
mod monitor;
mod mount;
mod path_commands;
mod progress;
mod record;
mod report_target;
mod request;
mod request_words;
mod run;
mod schema;
mod screen;
mod separate_program;
mod shared_prefix;
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
use streamline::CompletedTask;

fn main() -> ExitCode {
    // A failure of this call only means that the use of a closed standard stream is not detected.
    let _ = sys::closed_streams::replace_closed_standard_streams();
    // This call cannot fail, because the signal and its action are valid.
    let _ = sys::children::keep_exited_children();
    streamline::use_daemon_dbuf_ids();
    match streamline::serve_if_asked(&failure::notice_handler(false)) {
        Some(CompletedTask::Filter(status)) => return ExitCode::from(status),
        Some(CompletedTask::Worker(ended)) => {
            return ended.map_or_else(failure::report_open_error, |()| Status::Done).into();
        }
        None => {}
    }
    let arguments =
        match Arguments::try_parse_from(request_words::rearrange_arguments(std::env::args_os())) {
            Ok(arguments) => arguments,
            Err(error) => {
                if error.use_stderr()
                    && foreign_syntax::suggest_equivalent_command(std::env::args_os())
                {
                    return Status::Usage.into();
                }
                let status = if error.use_stderr() { Status::Usage } else { Status::Done };
                // If the message quotes hidden characters, they are replaced, and the message is
                // printed without colors. A failed write to standard error cannot be reported.
                if std::env::args_os().any(|word| word.to_string_lossy().contains(is_hidden)) {
                    terminal::print_error_text(
                        &VisibleLines(&error.render().to_string()).to_string(),
                    );
                } else {
                    let printed = error.print();
                    if let (Status::Done, Err(error)) = (status, printed) {
                        return terminal::report_write_error(&error).into();
                    }
                }
                return status.into();
            }
        };
    let status = match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Why(arguments) => why::trace_flow(&arguments),
        Command::Cat(arguments) => cat::cat(&arguments),
        Command::Check(arguments) => check::check(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Filters(arguments) => filters::filters(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Schema { name } => schema::print_schema(name.as_deref()),
        Command::Examples(arguments) => examples::examples(&arguments),
        Command::Man(arguments) => man::man(&arguments),
        Command::Completion { shell } => completion::print_script(shell),
        Command::Complete { line: Some(line), .. } => completion::print_completions(&line),
        Command::Complete { line: None, words } if words == ["schema"] => {
            schema::print_schema_names()
        }
        Command::Complete { line: None, words } => {
            path_commands::argument_completion::print_candidates(&words)
        }
        Command::Shared(arguments) => path_commands::run(&arguments),
        Command::Bench(arguments) => {
            separate_program::execute(separate_program::BENCH_PROGRAM, &arguments.words)
        }
        Command::Page(arguments) => {
            separate_program::execute(separate_program::PAGE_PROGRAM, &arguments.words)
        }
        Command::Mount(arguments) => return mount::mount(&arguments),
        Command::Sh(arguments) => return shell::run_shell(&arguments),
        Command::Exec(arguments) => return shell::run_preloaded(&arguments),
    };
    status.into()
}
