//! `streamline attach`: what a path prints from now on, how far it is, and how it ends. ^C lets it
//! go on.

use super::words::AttachArguments;
use super::{complain, path, signals, wait};
use crate::progress::short;
use crate::report::counted;
use crate::status::Status;
use crate::terminal;
use daemon::client::{ClientError, plain};
use daemon::protocol::Counters;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

/// How often it is looked at.
const EVERY: Duration = Duration::from_millis(250);

/// Follows a path.
pub(super) fn run(given: &AttachArguments) -> Result<Status, Status> {
    let signals = signals()?;
    let to = path(&given.path)?;
    let about = to.describe().map_err(|error| complain(&error))?;
    let mut log = about.log.as_deref().and_then(Log::open);
    to.follow(EVERY).map_err(|error| complain(&error))?;
    let mut heard = false;
    loop {
        let ready = wait(&[to.as_fd(), to.process()], signals, None);
        if ready.is_none() {
            terminal::wipe();
            terminal::note(&format!("path {} goes on without us", to.number()));
            return Ok(Status::Done);
        }
        // Of a process that has ended, too, the last word lies here.
        let followed = to.followed();
        let printed = log.as_mut().map_or(Status::Done, Log::print);
        if printed != Status::Done {
            return Ok(printed);
        }
        match followed {
            Ok(followed) => {
                heard = true;
                if let Some(ended) = followed.ended {
                    terminal::wipe();
                    terminal::tell(&format!("{}\n", plain(&ended.report)));
                    return Ok(Status::numbered(ended.status));
                }
                if let Some(counters) = followed.counters.filter(|_| terminal::can_rewrite()) {
                    terminal::status(&line(&counters));
                }
            }
            // It had ended when we asked.
            Err(ClientError::Gone) if !heard => {
                return Err(complain(&ClientError::Ended(given.path.clone())));
            }
            Err(ClientError::Gone) => {
                terminal::wipe();
                let number = to.number();
                terminal::complain(&format!("path {number} has ended, and not said how"));
                return Ok(Status::Failed);
            }
            Err(error) => return Err(complain(&error)),
        }
    }
}

/// How far it is, in a line.
fn line(counters: &Counters) -> String {
    let given = counters.sources.iter().map(|source| source.given);
    let (blocks, bytes) = given.fold((0, 0), |(n, m), given| (n + given.blocks, m + given.bytes));
    let time = super::since(counters.elapsed_ns / 1_000_000_000);
    let lost = super::rates::lost(counters);
    let lost = if lost > 0 { format!("  lost: {lost}") } else { String::new() };
    format!(" {time}  {}  {}{lost}", counted(blocks, "block"), short(bytes))
}

/// What a path prints, from now on.
struct Log(File);

impl Log {
    fn open(path: &str) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self(file))
    }

    fn print(&mut self) -> Status {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = self.0.read(&mut bytes).unwrap_or(0);
            if read == 0 {
                return Status::Done;
            }
            terminal::wipe();
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(bytes.get(..read).unwrap_or_default());
            if written.and_then(|()| stdout.flush()).is_err() {
                return Status::Unread;
            }
        }
    }
}
