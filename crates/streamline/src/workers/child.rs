//! A worker: a program started to run a request for its share of the sessions.
//!
//! It keeps to its processor before it allocates anything, so its memory is that of its node. It
//! builds the request, says that it is ready, and runs when all are. It prints, in messages, to the
//! process that started it ([`super::output`]), and sends its counts there. It ends with that
//! process, however that ends.

use super::message::{Command, Counts, Message, Wanted};
use crate::crash;
use crate::error::OpenError;
use crate::options::{Notice, Notices, Options};
use crate::prepared::{self, Prepared};
use engine::build::{Extras, Path, Settings};
use engine::lateness;
use engine::live::Live;
use engine::path::Adapt;
use engine::run::{self, Alarm, Until};
use engine::signal;
use pipeline::edit::Edit;
use runtime::latency::Breach;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::poll::PollSet;

/// The word with which a program is started as a worker.
pub(super) const WORD: &str = "serve-engine";
/// The time for counters, and for a change: as in `member::worker`.
const COUNTED: Duration = Duration::from_millis(200);
const SWITCHED: Duration = Duration::from_secs(10);

/// Runs as a worker, if this process was started for that.
pub(crate) fn serve_if_asked(notices: &Notices) -> Option<Result<(), OpenError>> {
    let mut words = std::env::args_os().skip(1);
    let alone = words.next().is_some_and(|word| word == WORD) && words.next().is_none();
    alone.then(|| serve(notices))
}

/// The process that started this one.
struct Starter {
    socket: Mutex<UnixStream>,
}

impl Starter {
    /// Sends it a message. If it takes none it has ended, and this process ends with it.
    fn send(&self, message: &Message) {
        let mut text = serde_json::to_vec(message).unwrap_or_default();
        text.push(b'\n');
        let _ = self.socket.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text);
    }
}

fn serve(notices: &Notices) -> Result<(), OpenError> {
    let failed = |error: io::Error| OpenError::of_worker("read", &error);
    sys::confine::end_with_parent()?;
    let socket = UnixStream::from(sys::process::detach_stdin()?);
    let mut commands = BufReader::new(socket.try_clone().map_err(failed)?);
    let mut first = String::new();
    commands.read_line(&mut first).map_err(failed)?;
    let wanted = serde_json::from_str(&first);
    let wanted: Wanted = wanted.map_err(|error| OpenError::Unfit(error.to_string()))?;
    let starter = Arc::new(Starter { socket: Mutex::new(socket) });
    // Refused, it runs anywhere.
    let _ = sys::process::pin_to(wanted.processor);
    run(&wanted, commands, (&starter, notices))
}

/// Builds the request, and runs it on command.
fn run(
    wanted: &Wanted,
    mut commands: BufReader<UnixStream>,
    (starter, notices): (&Arc<Starter>, &Notices),
) -> Result<(), OpenError> {
    let options =
        Options { embedded: wanted.embedded, notices: notices.clone(), ..Options::default() };
    let mut prepared = Prepared::worker(&wanted.text, &options)?;
    let adapt = Adapt::asked(&prepared.plan, &prepared.machine);
    let extras = Extras { history: wanted.history, adapt, ..Extras::default() };
    let of = (wanted.number - 1, wanted.of);
    let settings = Settings { timed: wanted.timed, one_of: Some(of), ..Settings::default() };
    let signals = signal::watch()?;
    let paths = prepared.paths(settings, &extras)?;
    let lives: Vec<Live> = paths.iter().map(Path::live).collect();
    let stop = Arc::new(EventFd::new()?);
    let either = PollSet::new(&[signals, stop.as_fd()])?;
    starter.send(&Message::Ready);
    if !matches!(next(&mut commands), Some(Command::Go)) {
        // Another one cannot run: everything made is given back.
        return Ok(());
    }
    // All workers have been built: each of them sees what comes from now on.
    starter.send(&Message::Began { quiet: paths.iter().all(Path::is_quiet) });
    let obeys = Obeys { starter: Arc::clone(starter), lives: lives.clone(), stop };
    let thread = std::thread::Builder::new().name("orders".to_owned());
    let obeying = thread.spawn(move || obeys.all(commands));
    obeying.map_err(|error| OpenError::of_worker("clone", &error))?;
    let number = wanted.number;
    let late =
        |breach: &Breach| notices.warn(&format!("engine {number}: {}", lateness::describe(breach)));
    let alarm = Some(Alarm(&late));
    let outcome =
        run::run(paths, Until { readable: Some(either.as_fd()), alarm, ..Until::default() })?;
    let last = lives.first().and_then(Live::text).unwrap_or_else(|| wanted.text.clone());
    // The request of this process, since its blocks are what failed here.
    let quiet = Options::default();
    let graph = prepared::graph(&last, &quiet.own, &quiet)?;
    for capture in crash::keep(&last, &graph, &outcome.failures, notices).iter().flatten() {
        notices.give(&Notice::Crash(capture));
    }
    starter.send(&Message::Ended(Box::new(Counts::of(&outcome)), last));
    Ok(())
}

/// The next command; none: the process that sends them has ended.
fn next(commands: &mut BufReader<UnixStream>) -> Option<Command> {
    let mut text = String::new();
    let read = commands.read_line(&mut text).ok()?;
    (read > 0).then(|| serde_json::from_str(&text).ok()).flatten()
}

/// Obeys commands while the request runs.
struct Obeys {
    starter: Arc<Starter>,
    lives: Vec<Live>,
    stop: Arc<EventFd>,
}

impl Obeys {
    fn all(self, mut commands: BufReader<UnixStream>) {
        while let Some(command) = next(&mut commands) {
            match command {
                Command::Go => {}
                Command::Stop => self.stop.notify(),
                Command::Count => {
                    let counts = Counts::so_far(&self.lives, COUNTED);
                    self.starter.send(&Message::Counted(Box::new(counts)));
                }
                Command::Change(text) => {
                    self.starter.send(&Message::Changed(self.change(text)));
                }
            }
        }
        self.stop.notify();
    }

    fn change(&self, line: String) -> Result<(String, String), String> {
        let [live] = self.lives.as_slice() else {
            return Err("it has several parts that nothing joins".to_owned());
        };
        let edit = Edit::Whole(line);
        let machine = engine::machine::look();
        let switched = engine::change::change(live, &edit, &machine, SWITCHED);
        let switched = switched.map_err(|why| why.to_string())?;
        Ok((switched.to_string(), switched.text))
    }
}
