//! An interface whose frames are taken: its queues, the memory that they fill, and the program that
//! leads frames there.
//!
//! In: what the request asks. Out: everything in place, and the program last of all, so that the
//! first frame that it leads finds its socket, and a step that fails has taken nothing. The program
//! is held by a link: when this value or this process goes, however it goes, frames go to the host
//! again. A program that is there already stays, and we are refused. (CONTRACT 2; FEATURES V17)

use super::super::losses::Losses;
use super::routes::{self, Routes};
use crate::fail::reason;
use crate::{Failure, interface};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::bpf::{Link, LinkTarget, LoadError, Map, Program, XdpAttached, XdpMode};
use sys::machine::Capabilities;
use sys::net::{Interface, RouteSocket};
use sys::packet::PacketSocket;
use sys::poll::PollSet;
use sys::steps::{Resource, Steps};
use sys::xdp::{Frames, Redirect, SocketSettings, TagLookup, XdpReceiver};
use wire::link::LinkType;

/// Frames of a queue where nobody says how much memory, at least and at most for all of them; at
/// most a 64th of the memory too.
const FRAMES_QUEUE: u64 = 4096;
const FRAMES_MIN: u64 = 8192;
const FRAMES_MAX: u64 = 1 << 16;
/// One frame in so many is not lent: a sink that sends out of this memory copies into it what lies
/// elsewhere.
const SPARE: usize = 16;
/// Entries of a ring, at most: the kernel's own limit is higher, and nobody is so late.
const ENTRIES_MAX: u32 = 1 << 14;
/// The longest wait for an occupied queue, and the pause between two tries: on a busy machine the
/// kernel takes some time to free it after its owner has ended.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);
/// More queues are not looked for.
const QUEUES_MAX: u32 = 256;

/// The arguments for making a program.
#[derive(Clone, Copy, Debug)]
pub struct Making<'m> {
    /// The sockets to which it leads frames, by queue.
    pub sockets: &'m Map,
    /// Its way to ask the driver for tags.
    pub asks: Option<TagLookup>,
    /// True if it must accept frames of several buffers.
    pub fragments: bool,
}

/// Resource a program.
pub type Maker<'m> = &'m (dyn Fn(&Making<'_>) -> Result<Program, LoadError> + Sync);

/// The request.
pub(super) struct Asked<'a> {
    pub(super) interface: &'a str,
    pub(super) netns: Option<&'a str>,
    /// Bytes of memory; none: what fits the queues.
    pub(super) ring: Option<u64>,
    pub(super) promiscuous: bool,
    /// Also from an interface that somebody may need.
    pub(super) force: bool,
    /// Resource the program; none: one that leads everything here.
    pub(super) make: Option<Maker<'a>>,
    pub(super) steps: &'a Steps,
}

/// An interface whose frames come here.
#[derive(Debug)]
pub(super) struct Device {
    /// Dropped first: what follows is needed as long as frames are led here.
    link: Link,
    redirect: Redirect,
    pub(super) queues: Vec<XdpReceiver>,
    pub(super) frames: Arc<Frames>,
    pub(super) group: PollSet,
    pub(super) losses: Losses,
    pub(super) name: String,
    mode: XdpMode,
    detached: bool,
    remarked: Option<String>,
    /// Lets frames for other hosts in, while it is open.
    _promiscuous: Option<PacketSocket>,
}

/// The name in lists of programs.
const NAME: &str = "streamline_take";
/// The call, for failures.
const CALL: &str = "take from";

impl Device {
    /// Takes the frames of an interface in its name space.
    pub(super) fn open(asked: &Asked<'_>) -> Result<Self, Failure> {
        interface::within(asked.netns, || Self::here(asked))
    }

    fn here(asked: &Asked<'_>) -> Result<Self, Failure> {
        let name = asked.interface;
        let (found, link_type) = interface::named(CALL, name)?;
        fits(&found, link_type, name)?;
        if !asked.force {
            is_spared(&found.name, asked.netns.is_none())?;
        }
        let cannot = |error: sys::Error| refused(name, &error);
        let step = |makes, target| asked.steps.take(makes, target);
        let (frames, queues, fragments) = queues(asked, found.index).map_err(cannot)?;
        let mut queues = queues;
        let count = u32::try_from(queues.len()).unwrap_or(QUEUES_MAX);
        let promiscuous = asked.promiscuous.then(|| {
            step(Resource::Descriptor, "a packet socket")?;
            promiscuous(found.index)
        });
        let promiscuous = promiscuous.transpose();
        let promiscuous = promiscuous.map_err(cannot)?;
        supply(&frames, &mut queues).map_err(cannot)?;
        step(Resource::Descriptor, "a group of sockets").map_err(cannot)?;
        let group = PollSet::new(&queues).map_err(cannot)?;
        step(Resource::Descriptor, "a netlink socket").map_err(cannot)?;
        let links = RouteSocket::open().map_err(cannot)?;
        let losses = Losses::begin(links, Some(found.index), true);
        let lead = |redirect: &Redirect| {
            step(Resource::Program, "a place at an interface")?;
            let all = (0..count).zip(&queues);
            all.into_iter().try_for_each(|(number, queue)| redirect.redirect_to(number, queue))?;
            Ok::<(), Refusal>(())
        };
        step(Resource::Program, "a program that takes").map_err(cannot)?;
        let placed = match asked.make {
            None => Redirect::attach_new((NAME, count, fragments), found.index, lead),
            Some(make) => {
                let made = |sockets: &Map, asks| {
                    make(&Making { sockets, asks, fragments }).map_err(Refusal::Load)
                };
                Redirect::attach_with((NAME, count), &made, found.index, lead)
            }
        };
        let (redirect, attached) = placed.map_err(|why| match why {
            Refusal::Load(error) => not_loaded(name, &error),
            Refusal::Call(error) if matches!(error.errno, EBUSY | EEXIST) => {
                taken_already(name, &found)
            }
            Refusal::Call(error) => refused(name, &error),
        })?;
        let XdpAttached { link, mode, .. } = attached;
        let name = name.to_owned();
        Ok(Self {
            link,
            redirect,
            queues,
            frames,
            group,
            losses,
            name,
            mode,
            detached: false,
            remarked: None,
            _promiscuous: promiscuous,
        })
    }

    /// Lends free frames to all queues, each its share.
    pub(super) fn supply(&mut self) -> Result<(), Failure> {
        supply(&self.frames, &mut self.queues).map_err(|error| refused(&self.name, &error))
    }

    /// Leads nothing here any more: frames go to the host again.
    pub(super) fn detach(&mut self) -> bool {
        // What is said about the link then is our own doing.
        self.remarked = self.remark();
        self.detached = self.link.detach().is_ok();
        self.detached
    }

    /// Returns the program's counts, and how many frames found no room, by the kernel's counters.
    pub(super) fn counted(&self) -> (sys::xdp::RedirectCounts, Option<u64>) {
        let lost = self.queues.iter().map(|queue| {
            let of = queue.statistics().ok()?;
            Some(of.rx_dropped + of.rx_full)
        });
        // In this order: what was lost had been led before.
        let lost = lost.sum();
        (self.redirect.counts(), lost)
    }

    /// Returns true if the interface has gone.
    pub(super) fn is_gone(&self) -> bool {
        self.queues.iter().any(|queue| queue.error().is_some())
    }

    /// Returns a remark for the user.
    pub(super) fn remark(&self) -> Option<String> {
        if self.detached {
            return self.remarked.clone();
        }
        let passed = self.redirect.counts().passed;
        let mut all = Vec::new();
        if self.mode == XdpMode::Generic {
            all.push("its driver has no XDP: the kernel copies each frame twice".to_owned());
        }
        if passed > 0 {
            all.push(format!("{passed} frames of queues that came later went to the host"));
        }
        if self.link.info().is_ok_and(|info| info.target == LinkTarget::Xdp(0)) {
            all.push("the program was taken away from the interface".to_owned());
        }
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// A program that is not attached, with the cause.
enum Refusal {
    Load(LoadError),
    Call(sys::Error),
}

impl From<LoadError> for Refusal {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<sys::Error> for Refusal {
    fn from(error: sys::Error) -> Self {
        Self::Call(error)
    }
}

/// The memory and a receiver for each queue that the interface has, and whether packets may lie in
/// several frames.
fn queues(asked: &Asked<'_>, index: u32) -> sys::Result<(Arc<Frames>, Vec<XdpReceiver>, bool)> {
    let first = |fragments| {
        let bytes = asked.ring.map(|bytes| bytes / 4096);
        let memory = sys::machine::Machine::detect().memory.unwrap_or(u64::MAX) / 64 / 4096;
        let queues = u64::from(channels(asked.interface));
        let wanted = (queues * FRAMES_QUEUE).clamp(FRAMES_MIN, FRAMES_MAX).min(memory.max(1024));
        let frames = 1 << bytes.unwrap_or(wanted).clamp(64, 1 << 20).ilog2();
        asked.steps.take(Resource::Memory, "frames of AF_XDP")?;
        let frames = Frames::create("streamline-take", frames)?;
        frames.reserve(frames.count() / SPARE);
        let entries = u32::try_from(frames.count()).unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
        let settings = SocketSettings { fragments, ..SocketSettings::new(index, 0, entries) };
        asked.steps.take(Resource::Descriptor, "a socket of AF_XDP")?;
        let receiver = patiently(|| XdpReceiver::open(&frames, settings))?;
        Ok((frames, settings, receiver))
    };
    // A kernel before 6.6 knows no packets in several frames.
    let (frames, settings, receiver) = match first(true) {
        Err(sys::Error { errno: EINVAL, .. }) => first(false)?,
        outcome => outcome?,
    };
    let mut queues = vec![receiver];
    for queue in 1..QUEUES_MAX {
        asked.steps.take(Resource::Descriptor, "a socket of AF_XDP")?;
        match patiently(|| XdpReceiver::open(&frames, SocketSettings { queue, ..settings })) {
            Ok(receiver) => queues.push(receiver),
            // There is no such queue.
            Err(error) if error.errno == EINVAL => break,
            Err(error) => return Err(error),
        }
    }
    Ok((frames, queues, settings.fragments))
}

/// Tries it again for a moment while somebody has the queue: the kernel takes it from who has ended
/// a little later.
fn patiently<T>(attempt: impl Fn() -> sys::Result<T>) -> sys::Result<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.errno == EBUSY && begin.elapsed() < PATIENCE => {
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Returns the number of queues of an interface in our own namespace, as files report it.
fn channels(interface: &str) -> u32 {
    let folder = std::fs::read_dir(format!("/sys/class/net/{interface}/queues"));
    let names = folder.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let count = names.filter(|name| name.to_string_lossy().starts_with("rx-")).count();
    u32::try_from(count).unwrap_or(QUEUES_MAX).clamp(1, QUEUES_MAX)
}

fn supply(frames: &Frames, queues: &mut [XdpReceiver]) -> sys::Result<()> {
    let share = frames.count() / queues.len().max(1);
    queues.iter_mut().try_for_each(|queue| queue.supply(share).map(drop))
}

fn promiscuous(index: u32) -> sys::Result<PacketSocket> {
    let socket = PacketSocket::open()?;
    socket.promiscuous(index)?;
    Ok(socket)
}

/// Checks that frames of this interface can be taken at all.
fn fits(found: &Interface, link: LinkType, name: &str) -> Result<(), Failure> {
    if link != LinkType::ETHERNET {
        let why = "its frames have no Ethernet header, and XDP sees no others";
        let hint = "`rx` without `take` watches it";
        return Err(Failure::new(CALL, name, why).hint(hint));
    }
    if found.xdp.is_some() {
        return Err(taken_already(name, found));
    }
    Ok(())
}

/// Refuses an interface that somebody may need.
fn is_spared(interface: &str, ours: bool) -> Result<(), Failure> {
    let routes = Routes::read();
    let connection = std::env::var("SSH_CONNECTION").ok().filter(|_| ours);
    let caller = routes::caller(connection.as_deref()).filter(|caller| !caller.is_loopback());
    let why = if caller.is_some_and(|caller| routes.to(caller) == Some(interface)) {
        "you are connected through it, and would be cut off"
    } else if routes.is_default(interface) {
        "the default route of this name space leads through it"
    } else {
        return Ok(());
    };
    Err(Failure::new(CALL, interface, why)
        .hint("`--force` before the line takes it all the same; `rx` without `take` watches"))
}

/// Another program has the place.
fn taken_already(name: &str, found: &Interface) -> Failure {
    // Looked at again: it may have come meanwhile.
    let now = RouteSocket::open().and_then(|links| links.indexed(found.index)).ok();
    let number = now.as_ref().unwrap_or(found).xdp.map_or(0, |xdp| xdp.program);
    let programs = sys::bpf::programs().unwrap_or_default();
    let named = programs.iter().find(|(id, name)| *id == number && !name.is_empty());
    let who = named.map_or_else(String::new, |(_, name)| format!(" `{name}`"));
    let why = format!("the XDP program{who} (number {number}) is there, and is kept");
    Failure::new(CALL, name, why).hint(
        "end the program that put it there, or `ip link set dev … xdp off`; `rx` without `take` \
         watches beside it",
    )
}

/// The program was not loaded.
fn not_loaded(name: &str, error: &LoadError) -> Failure {
    let denied = matches!(error.error.errno, EPERM | EACCES);
    let why = format!("the kernel refuses the program: {error}");
    let failure = Failure::new(CALL, name, why).errno(Some(error.error.errno));
    Failure { needs: denied.then_some(Capabilities::BPF), ..failure }
}

/// Turns a refusal of the machine into a failure.
fn refused(name: &str, error: &sys::Error) -> Failure {
    let why = reason(&std::io::Error::from_raw_os_error(error.errno));
    let told =
        |what: &str| Failure::new(CALL, name, format!("{what}: {why}")).errno(Some(error.errno));
    match (error.call, error.errno) {
        ("socket", EAFNOSUPPORT) => told("this kernel has no AF_XDP")
            .hint("taking needs a kernel with CONFIG_XDP_SOCKETS; `rx` without `take` watches"),
        ("socket", EPERM | EACCES) => {
            let failure = told("the kernel refuses a socket of AF_XDP");
            Failure { needs: Some(Capabilities::NET_RAW), ..failure }
        }
        ("bpf", EPERM | EACCES) => {
            Failure { needs: Some(Capabilities::BPF), ..told("the kernel refuses the program") }
        }
        (_, ENOBUFS) => told("the memory cannot be locked")
            .hint("raise the limit of locked memory (`ulimit -l`), or give CAP_IPC_LOCK"),
        ("bind", EBUSY) => told("another socket of AF_XDP has its queue")
            .hint("end the program that takes from it already"),
        _ => told(&format!("{} on {}", error.call, error.target)),
    }
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const EACCES: i32 = rustix::io::Errno::ACCESS.raw_os_error();
const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
const EEXIST: i32 = rustix::io::Errno::EXIST.raw_os_error();
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
const EAFNOSUPPORT: i32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
