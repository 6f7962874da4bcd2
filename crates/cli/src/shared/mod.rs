//! Lines that several users run, see and stop: the daemon, and what speaks to it.
//!
//! - `words`: the words of these commands;
//! - `daemon`: `streamline daemon`;
//! - `member`: a run that is registered, and one in the background; `hosts`: who runs its beginning
//!   in the kernel;
//! - `start`, `stop`, `set`, `tap`, `attach`, `ps`, `top`: what one does with paths; `sharing`:
//!   what of them runs in the kernel; `spaces`: what each has that runs them; `state`: what their
//!   filters show.
//!
//! All of it stands on the crate `daemon`; here is what a person says and is told.

mod attach;
mod daemon;
pub(crate) mod hosts;
pub(crate) mod member;
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
pub(crate) mod words;

use crate::status::Status;
use crate::terminal;
use ::daemon::client::{Client, ClientError, ToPath};
use std::os::fd::BorrowedFd;
use std::time::Duration;
use words::Command;

/// Does what these words say.
pub(crate) fn run(command: &Command) -> Status {
    let done = match command {
        Command::Daemon(given) => daemon::run(given),
        Command::Start(given) => start::run(given),
        Command::Stop(given) => stop::run(given),
        Command::Set(given) => set::run(given),
        Command::Ps(given) => ps::run(given),
        Command::Spaces(given) => spaces::run(given),
        Command::Tap(given) => tap::run(given),
        Command::Attach(given) => attach::run(given),
        Command::Top(given) => top::run(given),
        Command::State(given) => state::run(given),
    };
    done.unwrap_or_else(|status| status)
}

/// The daemon that is here.
fn client() -> Result<Client, Status> {
    Client::find(None).map_err(|error| complain(&error))
}

/// The process of a path.
fn path(name: &str) -> Result<ToPath, Status> {
    client()?.connect(name).map_err(|error| complain(&error))
}

/// Tells why there is no answer.
fn complain(error: &ClientError) -> Status {
    terminal::complain(&error.to_string());
    match error {
        ClientError::Nobody(_) => Status::Nothing,
        error if is_over(error) => Status::Nothing,
        _ => Status::Failed,
    }
}

/// Whether there is no such path, or none any more.
fn is_over(error: &ClientError) -> bool {
    match error {
        ClientError::Ended(_) => true,
        ClientError::Refused(fault) => fault.name == "io.streamline.NoSuchPath",
        _ => false,
    }
}

/// Tells what the machine refuses.
fn refused(error: &sys::Error) -> Status {
    terminal::complain(&error.to_string());
    Status::Failed
}

/// The signals that ask us to end.
fn signals() -> Result<BorrowedFd<'static>, Status> {
    engine::signal::watch().map_err(|error| refused(&error))
}

/// Waits for one of these, or for a signal that asks us to end; that the terminal has another size
/// is none. None: a signal, or the time is over.
fn wait(
    descriptors: &[BorrowedFd<'_>],
    signals: BorrowedFd<'_>,
    limit: Option<Duration>,
) -> Option<Vec<bool>> {
    let mut all: Vec<BorrowedFd<'_>> = descriptors.to_vec();
    all.push(signals);
    let mut ready = sys::poll::readable_within(&all, limit);
    let signalled = ready.pop() == Some(true);
    (!signalled && ready.contains(&true)).then_some(ready)
}

/// The name of a user, or its number.
fn user(uid: u32) -> String {
    ::daemon::policy::user_name(uid).unwrap_or_else(|| uid.to_string())
}

/// A stretch of time as people read it.
fn since(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_of_time_are_short() {
        let told: Vec<String> = [0, 59, 61, 3661, 90_000].map(since).into();
        assert_eq!(told, ["0 s", "59 s", "1:01", "1:01:01", "1 d 1 h"]);
    }
}
