//! Commands for registered paths, and the daemon.
//!
//! - `daemon`: `streamline daemon`; `program_supervisor`: restarts the page and the mount, which
//!   the daemon runs as child processes; `helper`: such a child process;
//! - `start`, `stop`, `set`, `tap`, `attach`, `ps`, `top`, `spaces`, `state`: the commands of the
//!   same names; `path_rows`, `sharing`: rows of paths and kernel programs for these commands;
//! - `next`: shell completion of the commands' arguments.
//!
//! The crates `member` and `daemon` implement the calls; the modules of this directory format the
//! results.

pub(crate) mod argument_completion;
mod attach;
mod child_program;
mod connect;
mod daemon;
mod path_rows;
mod program_supervisor;
mod ps;
mod rates;
mod set;
mod shared_programs;
mod spaces;
mod start;
mod state;
mod stop;
mod table;
mod tap;
mod top;

pub(crate) use rates::format_rate_short;

use crate::arguments::paths::PathCommand;
use crate::status::Status;

/// Executes a command on registered paths, or runs the daemon. Returns the exit status.
pub(crate) fn run(command: &PathCommand) -> Status {
    let result = match command {
        PathCommand::Daemon(arguments) => daemon::run(arguments),
        PathCommand::Start(arguments) => start::run(arguments),
        PathCommand::Stop(arguments) => stop::run(arguments),
        PathCommand::Set(arguments) => set::run(arguments),
        PathCommand::Ps(arguments) => ps::run(arguments),
        PathCommand::Spaces(arguments) => spaces::run(arguments),
        PathCommand::Tap(arguments) => tap::run(arguments),
        PathCommand::Attach(arguments) => attach::run(arguments),
        PathCommand::Top(arguments) => top::run(arguments),
        PathCommand::State(arguments) => state::run(arguments),
    };
    result.unwrap_or_else(|status| status)
}
