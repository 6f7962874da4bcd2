//! `streamline stop`: paths end as by ^C: their sources end, and what is under way drains.

use super::words::StopArguments;
use super::{client, complain, signals, wait};
use crate::status::Status;
use crate::terminal;
use member::client::{Client, ClientError, STOP, TOGETHER, ToPath, plain};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

/// The interval at which a draining path confirms that it drains.
const EVERY: Duration = Duration::from_secs(60);

/// Stops all that are named, at the same time; the worst that happened is the status.
pub(super) fn run(given: &StopArguments) -> Result<Status, Status> {
    let client = client()?;
    let mut asked = Asked { all: Vec::new(), status: Status::Done };
    if given.kill {
        for path in &given.paths {
            let killed = client.connect(path).and_then(|to| to.kill().map(|()| to));
            asked.take(path, killed);
        }
        return Ok(gone(asked));
    }
    if given.no_wait {
        stopped(&client, given.paths.iter(), &mut asked);
        return Ok(asked.status);
    }
    for path in &given.paths {
        // Asked for before it can have ended.
        let follows = client.connect(path).and_then(|to| to.follow(EVERY).map(|()| to));
        asked.take(path, follows);
    }
    let paths: Vec<&String> = asked.all.iter().map(|(path, _)| *path).collect();
    let stopped = stopped(&client, paths.into_iter(), &mut asked);
    let mut stopped = stopped.into_iter();
    asked.all.retain(|_| stopped.next() == Some(true));
    drained(asked)
}

/// Paths that end, and how it went until now.
struct Asked<'p> {
    all: Vec<(&'p String, ToPath)>,
    status: Status,
}

impl<'p> Asked<'p> {
    fn take(&mut self, path: &'p String, to: Result<ToPath, ClientError>) {
        match to {
            Ok(to) => self.all.push((path, to)),
            Err(error) => self.fails(path, &error),
        }
    }

    fn fails(&mut self, path: &str, error: &ClientError) {
        self.status = complain(error);
        if *error == ClientError::Silent {
            terminal::note(&format!("`streamline stop --kill {path}` ends path {path} at once"));
        }
    }
}

/// Asks paths to end, all at once; which of them will. That one has just ended by itself is as
/// good.
fn stopped<'p>(
    client: &Client,
    paths: impl Iterator<Item = &'p String>,
    asked: &mut Asked<'_>,
) -> Vec<bool> {
    let paths: Vec<(u32, String)> = paths.map(|path| (0, path.clone())).collect();
    let answers = client.ask_all(&paths, &[STOP], TOGETHER, |_, _| Ok(()));
    let will = |((_, path), answer): (&(u32, String), Result<(), ClientError>)| match answer {
        Ok(()) | Err(ClientError::Ended(_)) => true,
        Err(error) => {
            asked.fails(path, &error);
            false
        }
    };
    paths.iter().zip(answers).map(will).collect()
}

/// Waits until all have ended, and says how.
fn drained(mut asked: Asked<'_>) -> Result<Status, Status> {
    let signals = signals()?;
    let mut ending = Asked { all: Vec::new(), status: asked.status };
    while !asked.all.is_empty() {
        let both = asked.all.iter().flat_map(|(_, to)| [to.as_fd(), to.process()]);
        let descriptors: Vec<BorrowedFd<'_>> = both.collect();
        let Some(ready) = wait(&descriptors, signals, None) else {
            let still = asked.all.iter().chain(&ending.all);
            still.for_each(|(path, _)| terminal::note(&format!("{path} still drains")));
            return Err(Status::Failed);
        };
        let ready: Vec<bool> = ready.chunks(2).map(|pair| pair.contains(&true)).collect();
        for ((path, to), ready) in std::mem::take(&mut asked.all).into_iter().zip(ready) {
            // Of a process that has ended, too, the last word lies here.
            match ready.then(|| to.followed()) {
                None => asked.all.push((path, to)),
                Some(Ok(followed)) => match followed.ended {
                    None => asked.all.push((path, to)),
                    Some(ended) => {
                        terminal::note(&format!("{path}: {}", plain(&ended.report)));
                        ending.all.push((path, to));
                    }
                },
                // It ends without a last word only if it is killed.
                Some(Err(ClientError::Gone)) => ending.all.push((path, to)),
                Some(Err(error)) => ending.status = complain(&error),
            }
        }
    }
    Ok(gone(ending))
}

/// Waits until the processes have ended.
fn gone(asked: Asked<'_>) -> Status {
    let Asked { all, status } = asked;
    let Ok(signals) = signals() else { return Status::Failed };
    for (path, to) in &all {
        if wait(&[to.process()], signals, None).is_none() {
            terminal::note(&format!("the process of {path} is still there"));
            return Status::Failed;
        }
    }
    status
}
