//! The service of a path's process: `io.streamline.path`. `io.streamline.path`.
//!
//! One thread beside the spaces. It registers the path with the daemon, takes connections from it,
//! answers them by orders to the spaces ([`engine::live`]), and registers again when the daemon has
//! ended and another has come. The path itself needs none of this: it runs the same when there is
//! no daemon any more.
//!
//! Who connects has been let in by the daemon: the path's user, or root. Even so nobody is waited
//! for, and one that takes less than it asks for is let go.

mod answer;
mod counters;
mod spaces;
mod taps;

use crate::client::{Client, ClientError};
use crate::connection::Connection;
use crate::protocol::{Described, Ended, Link, Node, Register};
use answer::Answering;
use engine::live::Live;
use pipeline::edit::Edit;
use pipeline::explain;
use pipeline::plan::{Copied, Kernel, Plan, PlannedEdge};
use runtime::latency::Latency;
use runtime::ledger::Ledger;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use sys::eventfd::EventFd;
use sys::local_socket::Framing;
use sys::steps::{Resource, Steps};

/// A path that several processes run: how whoever answers for it reaches all of them.
pub trait Joint: Send + Sync + std::fmt::Debug {
    /// Returns the ledger of all of them, as far as they have reported.
    fn ledger(&self) -> Ledger;

    /// Returns the latency of blocks in all of them, if the request bounds it.
    fn latency(&self) -> Option<Latency>;

    /// Returns the name and process of each, while it runs.
    fn processes(&self) -> Vec<(String, u32)>;

    /// Changes the line of all of them, or of none: what was said of the switch, and the plan of
    /// what runs now; or why not.
    fn change(&self, edit: &Edit) -> Result<(String, Plan), String>;
}

/// A path as it is registered.
#[derive(Clone, Debug, Default)]
pub struct Registered {
    /// The name that its user gave it.
    pub name: Option<String>,
    /// The line.
    pub line: String,
    /// The log file of its output.
    pub log: Option<PathBuf>,
    /// The nodes of its plan.
    pub nodes: Vec<Node>,
    /// Its edges.
    pub links: Vec<Link>,
    /// True if time is measured in its filters even without a client.
    pub timed: bool,
    /// The kernel for which it was planned, if that is not as this process finds it: a daemon runs
    /// programs there for it.
    pub kernel: Option<Kernel>,
    /// All processes, if several run it.
    pub joint: Option<Arc<dyn Joint>>,
}

/// The thread that answers for a path. Dropping it ends the thread.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    number: Option<u32>,
}

/// State shared by this thread and the one that runs the path.
#[derive(Debug)]
struct Shared {
    /// Written to end the path.
    stop: EventFd,
    /// The thread is to look here.
    turn: EventFd,
    ended: Mutex<Option<Ended>>,
}

/// The interval at which a path without daemon looks for another.
const SEEK: Duration = Duration::from_millis(250);

impl Registered {
    /// The line of this text and its plan.
    #[must_use]
    pub fn new(line: &str, plan: &Plan) -> Self {
        let names = explain::names(&plan.graph);
        let space = |node: usize| {
            let placed = plan.placed.get(node).and_then(|placed| plan.spaces.get(placed.space));
            placed.map(|space| space.name.clone()).unwrap_or_default()
        };
        let copies = |node: usize| {
            let of = |copied: &&Copied| copied.nodes.iter().any(|id| id.0 == node);
            let spaces = plan.copied.iter().find(of).into_iter().flat_map(|copied| &copied.spaces);
            spaces.filter_map(|space| Some(plan.spaces.get(*space)?.name.clone())).collect()
        };
        let node = |(node, name): (usize, String)| {
            let (space, copies) = (space(node), copies(node));
            Node { name, space, copies }
        };
        let link = |(number, edge): (usize, &pipeline::graph::Edge)| {
            let (transport, room) = match plan.edges.get(number) {
                Some(PlannedEdge::Ring(ring)) => ("ring", Some(ring.entries)),
                Some(PlannedEdge::Kernel(ring)) => ("kernel", Some(ring.entries)),
                Some(PlannedEdge::Back) => ("back", None),
                Some(PlannedEdge::Pipe) => ("pipe", None),
                Some(PlannedEdge::Call) | None => ("call", None),
            };
            let plain = edge.classes.is_plain();
            Link {
                from: edge.from.0,
                to: edge.to.0,
                classes: if plain { String::new() } else { edge.classes.to_string() },
                transport: transport.to_owned(),
                room: room.map(|room| room as u64),
            }
        };
        Self {
            line: line.to_owned(),
            nodes: names.into_iter().enumerate().map(node).collect(),
            links: plan.graph.edges.iter().enumerate().map(link).collect(),
            ..Self::default()
        }
    }

    fn register(&self, number: Option<u32>, started: u64) -> Register {
        let log = self.log.as_ref().map(|log| log.display().to_string());
        let (name, line) = (self.name.clone(), self.line.clone());
        Register { name, line, log, number, started: Some(started) }
    }
}

impl Worker {
    /// Registers a path with this daemon, and answers for it from now on. Where the daemon ends
    /// while it is asked, and nobody waits for the path under a name, the path is registered with
    /// the next one that comes.
    pub fn begin(
        client: Client,
        path: Registered,
        lives: Vec<Live>,
        steps: &Steps,
    ) -> Result<Self, ClientError> {
        steps.take(Resource::Descriptor, "what the process of a path answers with")?;
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let shared =
            Shared { stop: EventFd::new()?, turn: EventFd::new()?, ended: Mutex::new(None) };
        let shared = Arc::new(shared);
        steps.take(Resource::Entry, "a path in the register")?;
        let directory = client.directory().to_owned();
        let tie = match Tie::new(client, &path.register(None, started)) {
            Err(ClientError::Gone | ClientError::Silent) if path.name.is_none() => None,
            tied => Some(tied?),
        };
        let number = tie.as_ref().map(|tie| tie.number);
        let about = Described {
            number: number.unwrap_or_default(),
            name: path.name.clone(),
            line: path.line.clone(),
            process: std::process::id(),
            started,
            log: path.log.as_ref().map(|log| log.display().to_string()),
            nodes: path.nodes.clone(),
            links: path.links.clone(),
        };
        let answering = Answering::new(Arc::clone(&shared), path, about, lives, (directory, tie))?;
        steps.take(Resource::Thread, "answers")?;
        let thread = std::thread::Builder::new().name("answers".to_owned());
        let thread = thread.spawn(move || answering.run()).map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?;
        Ok(Self { shared, thread: Some(thread), number })
    }

    /// The number under which the path was registered first; none: the daemon ended meanwhile.
    #[must_use]
    pub const fn number(&self) -> Option<u32> {
        self.number
    }

    /// Can be read once somebody wants the path to end.
    #[must_use]
    pub fn stopped(&self) -> BorrowedFd<'_> {
        self.shared.stop.as_fd()
    }

    /// Tells all who follow how the path ended, and takes it out of the registry.
    pub fn end(mut self, ended: Ended) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        self.join();
    }

    fn join(&mut self) {
        self.shared
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(Ended::default);
        self.shared.turn.notify();
        if let Some(thread) = self.thread.take() {
            // It ends by itself; if it has panicked there is nobody to tell here.
            let _ended = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.join();
    }
}

/// The tie of a path to a daemon: when either end hangs up, the daemon has ended.
#[derive(Debug)]
struct Tie {
    client: Client,
    /// The socket by which the daemon sends connections.
    way: Connection,
    number: u32,
}

impl Tie {
    fn new(client: Client, register: &Register) -> Result<Self, ClientError> {
        let (near, far) = sys::descriptor::pair()?;
        let number = client.register(register, far.as_fd())?;
        Ok(Self { client, way: Connection::new(near, Framing::Packets), number })
    }
}
