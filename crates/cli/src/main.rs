//! Streamline: the command. [SL §4.2, §7]
//!
//! In: words of a shell. Out: what sinks write, on standard output; everything else (mistakes,
//! warnings, the ledger) on standard error or in the file of `--report`, so that data and reports
//! do not mix (CONTRACT 28); and an exit status, see [`status`].
//!
//! This crate decides nothing about lines: `pipeline` reads, checks, places and explains them,
//! `engine` runs them.
#![forbid(unsafe_code)]

mod analyze;
mod arguments;
mod arranged;
mod bench;
mod check;
mod completion;
mod doctor;
mod engines;
mod examples;
mod explain;
mod filters;
mod habits;
mod line;
mod man;
mod privilege;
mod progress;
mod record;
mod report;
mod run;
mod shared;
mod shell;
mod status;
mod terminal;
mod why;

use abi::text::{VisibleLines, is_hidden};
use arguments::{Arguments, Command};
use clap::Parser;
use status::Status;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = engine::sandbox::serve_if_asked() {
        return ExitCode::from(status);
    }
    if let Some(status) = engines::serve_if_asked() {
        return status.into();
    }
    let arguments = match Arguments::try_parse_from(arranged::arranged(std::env::args_os())) {
        Ok(arguments) => arguments,
        Err(told) => {
            if told.use_stderr() && habits::tell(std::env::args_os()) {
                return Status::Usage.into();
            }
            let status = if told.use_stderr() { Status::Usage } else { Status::Done };
            // It may quote the words, and colours are no more than a help. Nobody can be told that
            // nobody can be told.
            if std::env::args_os().any(|word| word.to_string_lossy().contains(is_hidden)) {
                terminal::tell(&VisibleLines(&told.render().to_string()).to_string());
            } else {
                let _ = told.print();
            }
            return status.into();
        }
    };
    let status = match arguments.command {
        Command::Run(given) => run::run(&given),
        Command::Why(given) => why::why(&given),
        Command::Check(given) => check::check(&given),
        Command::Explain(given) => explain::explain(&given),
        Command::Filters(given) => filters::filters(given.name.as_deref()),
        Command::Doctor(given) => doctor::doctor(&given),
        Command::Examples { write } => examples::examples(write.as_deref()),
        Command::Man(given) => man::man(&given),
        Command::Completion { shell } => completion::script(shell),
        Command::Complete { line: Some(line), .. } => completion::complete(&line),
        Command::Complete { line: None, words } => shared::next::complete(&words),
        Command::Shared(given) => shared::run(&given),
        Command::Bench { words } => bench::bench(&words),
        Command::Sh(given) => return shell::sh(&given),
        Command::Exec(given) => return shell::exec(&given),
    };
    status.into()
}
