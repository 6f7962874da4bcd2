//! `streamline stop`: paths end as by ^C: their sources end, and what is under way drains.

use super::words::StopArguments;
use super::{client, complain, signals, wait};
use crate::status::Status;
use crate::terminal;
use daemon::client::{Client, ClientError, ToPath, plain};
use std::os::fd::AsFd as _;
use std::time::Duration;

/// How often a path that drains tells us that it does.
const EVERY: Duration = Duration::from_secs(60);

/// Stops all that are named; the worst that happened is the status.
pub(super) fn run(given: &StopArguments) -> Result<Status, Status> {
    let client = client()?;
    let mut status = Status::Done;
    for path in &given.paths {
        if let Err(failed) = stop(&client, path, given) {
            status = failed;
        }
    }
    Ok(status)
}

fn stop(client: &Client, path: &str, given: &StopArguments) -> Result<(), Status> {
    let told = |error: ClientError| {
        let silent = error == ClientError::Silent;
        let status = complain(&error);
        if silent {
            terminal::note(&format!("`streamline stop --kill {path}` ends it at once"));
        }
        status
    };
    let to = client.connect(path).map_err(told)?;
    if given.kill {
        to.kill().map_err(told)?;
        return gone(&to, path);
    }
    if !given.no_wait {
        // Asked for before it can have ended.
        let follows = client.connect(path).map_err(told)?;
        follows.follow(EVERY).map_err(told)?;
        stopped(&to).map_err(told)?;
        return drained(&follows, path);
    }
    stopped(&to).map_err(told)
}

/// Asks it to end; that it has just ended by itself is as good.
fn stopped(to: &ToPath) -> Result<(), ClientError> {
    match to.stop() {
        Err(ClientError::Ended(_)) => Ok(()),
        asked => asked,
    }
}

/// Waits until a path has ended, and says how.
fn drained(follows: &ToPath, path: &str) -> Result<(), Status> {
    let signals = signals()?;
    loop {
        let ready = wait(&[follows.as_fd(), follows.process()], signals, None);
        if ready.is_none() {
            terminal::note(&format!("{path} still drains"));
            return Err(Status::Failed);
        }
        // Of a process that has ended, too, the last word lies here.
        match follows.followed() {
            Ok(followed) => {
                if let Some(ended) = followed.ended {
                    terminal::note(&format!("{path}: {}", plain(&ended.report)));
                    return gone(follows, path);
                }
            }
            // It ends without a last word only if it is killed.
            Err(ClientError::Gone) => return gone(follows, path),
            Err(error) => return Err(complain(&error)),
        }
    }
}

/// Waits until the process has ended.
fn gone(to: &ToPath, path: &str) -> Result<(), Status> {
    match wait(&[to.process()], signals()?, None) {
        Some(_) => Ok(()),
        None => {
            terminal::note(&format!("the process of {path} is still there"));
            Err(Status::Failed)
        }
    }
}
