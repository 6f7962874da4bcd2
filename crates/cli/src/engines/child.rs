//! One engine: this very program, started again to run the line for its share of the sessions.
//!
//! It keeps to its processor before it allocates anything, so its memory is that of its node. It
//! builds the line, says that it is ready, and runs when all are. What it prints goes to whoever
//! started it, in messages ([`super::output`]), and so does what it counted. It ends with whoever
//! started it, however that ends.

use super::told::{Order, Said, Told, Wanted};
use crate::run::{built, keep};
use crate::shared::hosts::Hosts;
use crate::status::Status;
use crate::{line, terminal};
use engine::build::{Extras, Path, Settings};
use engine::live::Live;
use engine::path::Adapt;
use engine::run::{self, Alarm, Until};
use engine::signal;
use pipeline::edit::Edit;
use runtime::latency::Breach;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::poll::Group;

/// The word with which this program is started as an engine.
pub(super) const WORD: &str = "serve-engine";
/// How long counters are waited for, and how long a change may take: as in `member::worker`.
const COUNTED: Duration = Duration::from_millis(200);
const SWITCHED: Duration = Duration::from_secs(10);

/// Runs as an engine, if that is what this process was started for.
pub(crate) fn serve_if_asked() -> Option<Status> {
    let mut words = std::env::args_os().skip(1);
    let alone = words.next().is_some_and(|word| word == WORD) && words.next().is_none();
    alone.then(|| serve().unwrap_or_else(|status| status))
}

/// Who started us.
struct Starter {
    says: Mutex<UnixStream>,
}

impl Starter {
    /// Whoever does not listen any more has ended, and so do we.
    fn tell(&self, said: &Said) {
        let mut text = serde_json::to_vec(said).unwrap_or_default();
        text.push(b'\n');
        let _ = self.says.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text);
    }
}

fn serve() -> Result<Status, Status> {
    let failed = |error: &dyn std::fmt::Display| {
        terminal::complain(&error.to_string());
        Status::Failed
    };
    sys::confine::end_with_parent().map_err(|error| failed(&error))?;
    let socket = sys::process::empty_input().map_err(|error| failed(&error))?;
    let socket = UnixStream::from(socket);
    let mut orders = BufReader::new(socket.try_clone().map_err(|error| failed(&error))?);
    let mut first = String::new();
    orders.read_line(&mut first).map_err(|error| failed(&error))?;
    let wanted: Wanted = serde_json::from_str(&first).map_err(|error| failed(&error))?;
    let starter = Arc::new(Starter { says: Mutex::new(socket) });
    // What refuses that lets it run anywhere.
    let _ = sys::process::pin_to(wanted.processor);
    run(&wanted, orders, &starter)
}

/// Builds the line, and runs it when that is the order.
fn run(
    wanted: &Wanted,
    mut orders: BufReader<UnixStream>,
    starter: &Arc<Starter>,
) -> Result<Status, Status> {
    let text = &wanted.text;
    let mut graph = line::graph(text)?;
    let (hosts, machine) = Hosts::find(&mut graph, wanted.embedded);
    let plan = line::planned(text, graph, &machine)?;
    let history = wanted.history.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let adapt = Adapt::asked(&plan, &machine);
    let extras = Extras { history, adapt, ..Extras::default() };
    let of = (wanted.number - 1, wanted.of);
    let settings = Settings { timed: wanted.timed, one_of: Some(of), ..Settings::default() };
    let signals = signal::watch().map_err(|error| super::refused(&error))?;
    let (_, paths) = built(text, plan, (&machine, &hosts), (settings, &extras))?;
    let lives: Vec<Live> = paths.iter().map(Path::live).collect();
    lives.iter().take(1).for_each(|live| live.says(text));
    let stop = Arc::new(EventFd::new().map_err(|error| super::refused(&error))?);
    let either = Group::new(&[signals, stop.as_fd()]).map_err(|error| super::refused(&error))?;
    starter.tell(&Said::Ready);
    if !matches!(next(&mut orders), Some(Order::Go)) {
        // Another one cannot run: what was made is given back.
        drop(paths);
        return Ok(Status::Done);
    }
    // All engines have been built: what comes from now on, each of them sees.
    starter.tell(&Said::Began { quiet: paths.iter().all(Path::is_quiet) });
    let hears = Hears { starter: Arc::clone(starter), lives: lives.clone(), stop };
    let thread = std::thread::Builder::new().name("orders".to_owned());
    let hearing = thread.spawn(move || hears.all(orders));
    hearing.map_err(|error| super::refused_io("clone", &error))?;
    let number = wanted.number;
    let late = |breach: &Breach| {
        terminal::warn(&format!("engine {number}: {}", engine::lateness::describe(breach)))
    };
    let alarm = (!wanted.quiet).then_some(Alarm(&late));
    let until = Until { readable: Some(either.as_fd()), alarm, ..Until::default() };
    let outcome = run::run(paths, until).map_err(|error| super::refused(&error))?;
    let last = lives.first().and_then(Live::text).unwrap_or_else(|| text.clone());
    // The line of this process, since its blocks are what failed here.
    let graph = line::graph(&last)?;
    for kept in keep(&last, &graph, &outcome.failures).into_iter().flatten() {
        kept.tell();
    }
    starter.tell(&Said::Ended(Box::new(Told::of(&outcome)), last));
    Ok(Status::Done)
}

/// The next order; nothing: whoever gave them has ended.
fn next(orders: &mut BufReader<UnixStream>) -> Option<Order> {
    let mut text = String::new();
    let read = orders.read_line(&mut text).ok()?;
    (read > 0).then(|| serde_json::from_str(&text).ok()).flatten()
}

/// Does what is ordered while the line runs.
struct Hears {
    starter: Arc<Starter>,
    lives: Vec<Live>,
    stop: Arc<EventFd>,
}

impl Hears {
    fn all(self, mut orders: BufReader<UnixStream>) {
        while let Some(order) = next(&mut orders) {
            match order {
                Order::Go => {}
                Order::Stop => self.stop.notify(),
                Order::Count => {
                    let told = Told::so_far(&self.lives, COUNTED);
                    self.starter.tell(&Said::Counted(Box::new(told)));
                }
                Order::Change(line) => self.starter.tell(&Said::Changed(self.change(line))),
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
