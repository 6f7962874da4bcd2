//! Commands for registered paths, and the daemon.
//!
//! - `daemon`: `streamline daemon`; `program_host`: its page and mount; `helper`: the
//!   process of either;
//! - `start`, `stop`, `set`, `tap`, `attach`, `ps`, `top`, `spaces`, `state`: the commands of the
//!   same names; `path_rows`, `sharing`: paths and kernel programs as these commands print them;
//! - `next`: completion of the commands' arguments.
//!
//! The crates `member` and `daemon` implement the calls; the modules of this directory format the
//! results.

mod attach;
mod connect;
mod daemon;
mod helper;
pub(crate) mod next;
mod path_rows;
mod program_host;
mod ps;
mod rates;
mod set;
mod sharing;
mod spaces;
mod start;
mod state;
mod stop;
mod table;
mod tap;
mod top;

pub(crate) use rates::short_rate;

use crate::arguments::paths::PathCommand;
use crate::status::Status;

/// Executes a command.
pub(crate) fn run(command: &PathCommand) -> Status {
    let result = match command {
        PathCommand::Daemon(given) => daemon::run(given),
        PathCommand::Start(given) => start::run(given),
        PathCommand::Stop(given) => stop::run(given),
        PathCommand::Set(given) => set::run(given),
        PathCommand::Ps(given) => ps::run(given),
        PathCommand::Spaces(given) => spaces::run(given),
        PathCommand::Tap(given) => tap::run(given),
        PathCommand::Attach(given) => attach::run(given),
        PathCommand::Top(given) => top::run(given),
        PathCommand::State(given) => state::run(given),
    };
    result.unwrap_or_else(|status| status)
}
