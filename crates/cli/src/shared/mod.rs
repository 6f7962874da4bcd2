//! Lines that several users run, see and stop: the daemon, and what speaks to it.
//!
//! - `words`: the words of these commands;
//! - `daemon`: `streamline daemon`;
//! - `start`, `stop`, `set`, `tap`, `attach`, `ps`, `top`: what one does with paths; `sharing`:
//!   what of them runs in the kernel; `spaces`: what each has that runs them; `state`: what their
//!   filters show;
//! - `next`: the next word of such a command, for shells.
//!
//! All of it stands on the crates `member` and `daemon`; here are the words for people.

mod attach;
mod daemon;
pub(crate) mod next;
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

use crate::failure::{complain, is_over, refused};
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, TOGETHER, ToPath};
use member::protocol::{Described, Path};
use std::collections::BTreeMap;
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

/// The process of a path that answers now, and what it is: for what may take long after that.
fn reach(name: &str) -> Result<(ToPath, Described), Status> {
    client()?.reach(name).map_err(|error| {
        let silent = error == ClientError::Silent;
        let status = complain(&error);
        if silent {
            terminal::note(&format!("`streamline stop --kill {name}` ends it at once"));
        }
        status
    })
}

/// Names the paths that did not answer in time, by user.
fn name_silent<'p>(paths: impl Iterator<Item = &'p Path>) {
    let mut silent: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    paths.for_each(|path| silent.entry(path.uid).or_default().push(path.number));
    for (uid, numbers) in silent {
        terminal::note(&format!(
            "no answer within {} s from {} of {}: stopped, or overrun; `streamline stop --kill \
             PATH` ends one",
            TOGETHER.as_secs(),
            numbered(&numbers),
            user(uid)
        ));
    }
}

/// `paths 1, 2 and 30 more`
fn numbered(numbers: &[u32]) -> String {
    const NAMED: usize = 8;
    let named: Vec<String> = numbers.iter().take(NAMED).map(u32::to_string).collect();
    let noun = if numbers.len() == 1 { "path" } else { "paths" };
    match numbers.len().saturating_sub(NAMED) {
        0 => format!("{noun} {}", named.join(", ")),
        more => format!("{noun} {} and {more} more", named.join(", ")),
    }
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
    member::rights::user_name(uid).unwrap_or_else(|| uid.to_string())
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
        assert_eq!(numbered(&[7]), "path 7");
        let many: Vec<u32> = (1..=32).collect();
        assert_eq!(numbered(&many), "paths 1, 2, 3, 4, 5, 6, 7, 8 and 24 more");
        assert_eq!(told, ["0 s", "59 s", "1:01", "1:01:01", "1 d 1 h"]);
    }
}
