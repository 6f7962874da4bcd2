//! An interface whose frames are redirected, with its queues, their memory and the XDP program.
//!
//! The program is attached last. A socket therefore exists when the first frame arrives, and if an
//! earlier step fails, nothing has been redirected. The program is attached by a BPF link: when
//! this value is dropped or the process exits for any reason, frames reach the host again. An XDP
//! program that is already attached stays, and opening fails. (CONTRACT 2; FEATURES V17)

use super::super::losses::FrameLossCounters;
use super::routes::{self, Routes};
use crate::failure::reason_text;
use crate::{Failure, interface};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::bpf::{Link, LinkTarget, LoadError, Map, Program, XdpAttachment, XdpMode};
use sys::machine::Capabilities;
use sys::net::{Interface, RouteSocket};
use sys::packet::PacketSocket;
use sys::poll::PollSet;
use sys::rollback::{RollbackLog, StepResource};
use sys::xdp::{Frames, SocketSettings, TagLookup, XdpReceiver, XdpRedirect};
use wire::link::LinkType;

/// Default number of frame buffers per queue.
const FRAMES_PER_QUEUE_DEFAULT: u64 = 4096;
/// Minimum number of frame buffers of an interface whose memory size the request does not set.
const FRAME_BUFFERS_MIN: u64 = 8192;
/// Maximum number of frame buffers of an interface whose memory size the request does not set. Such
/// buffers also use at most 1/64 of the machine's memory.
const FRAME_BUFFERS_MAX: u64 = 1 << 16;
/// Divisor for the number of spare frame buffers. One of `SPARE_FRAMES_DIVISOR` buffers is reserved
/// for sinks that send from this memory, into which they copy blocks from other memory.
const SPARE_FRAMES_DIVISOR: usize = 16;
/// Maximum number of entries in a queue's ring. It limits the number of frames that wait for the
/// source.
const RING_ENTRIES_MAX: u32 = 1 << 14;
/// Maximum time to wait for a receive queue that another socket still uses. Under load, the kernel
/// frees a queue only some time after its owner has exited.
const BUSY_QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between attempts to open a receive queue that another socket still uses.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of receive queues of an interface from which the source receives frames.
const QUEUES_MAX: u32 = 256;

/// Arguments for loading the XDP program of a device.
#[derive(Clone, Copy, Debug)]
pub struct LoadArguments<'m> {
    /// BPF map that contains the AF_XDP sockets, indexed by receive queue.
    pub sockets: &'m Map,
    /// Parameters for a call of the driver's function that reads the VLAN tag of a frame, or `None`
    /// if the driver has no such function.
    pub tag_lookup: Option<TagLookup>,
    /// True if the program must accept frames that span several buffers.
    pub accepts_fragments: bool,
}

/// A function that loads the XDP program of a device.
pub type ProgramLoader<'m> = &'m (dyn Fn(&LoadArguments<'_>) -> Result<Program, LoadError> + Sync);

/// Parameters for opening a [`TakeDevice`].
pub(super) struct TakeParameters<'a> {
    pub(super) interface: &'a str,
    pub(super) netns: Option<&'a str>,
    /// Size, in bytes, of the memory for frames. If `None`, the size is derived from the number of
    /// queues.
    pub(super) ring: Option<u64>,
    pub(super) promiscuous: bool,
    /// True if the source may take the frames of an interface on which the user or the host
    /// depends.
    pub(super) force: bool,
    /// Loader of the XDP program, or `None` for a program that redirects every frame.
    pub(super) loader: Option<ProgramLoader<'a>>,
    pub(super) steps: &'a RollbackLog,
}

/// An interface whose frames are redirected to this process.
#[derive(Debug)]
pub(super) struct TakeDevice {
    /// The attached program. Dropped first, because the fields below are in use while frames are
    /// redirected.
    link: Link,
    redirect: XdpRedirect,
    pub(super) queues: Vec<XdpReceiver>,
    pub(super) frames: Arc<Frames>,
    pub(super) group: PollSet,
    pub(super) losses: FrameLossCounters,
    pub(super) name: String,
    mode: XdpMode,
    detached: bool,
    note_at_detach: Option<String>,
    /// Packet socket that keeps the interface in promiscuous mode while it is open, or `None` if
    /// promiscuous mode was not requested.
    _promiscuous: Option<PacketSocket>,
}

/// Name of the XDP program in listings such as `bpftool prog`.
const PROGRAM_NAME: &str = "streamline_take";
/// Verb in failure messages, as in "cannot take from eth0".
const TAKE_VERB: &str = "take from";

impl TakeDevice {
    /// Opens the interface in the requested namespace, and redirects its frames to this process.
    pub(super) fn open(parameters: &TakeParameters<'_>) -> Result<Self, Failure> {
        interface::run_in_namespace(parameters.netns, || {
            Self::open_in_current_namespace(parameters)
        })
    }

    fn open_in_current_namespace(parameters: &TakeParameters<'_>) -> Result<Self, Failure> {
        let name = parameters.interface;
        let (found, link_type) = interface::find_interface_by_name(TAKE_VERB, name)?;
        check_interface_redirectable(&found, link_type, name)?;
        if !parameters.force {
            check_interface_not_protected(&found.name, parameters.netns.is_none())?;
        }
        let cannot = |error: sys::Error| system_failure(name, &error);
        let step = |makes, target| parameters.steps.announce_creation(makes, target);
        let (frames, queues, fragments) =
            open_queue_receivers(parameters, found.index).map_err(cannot)?;
        let mut queues = queues;
        let count = u32::try_from(queues.len()).unwrap_or(QUEUES_MAX);
        let promiscuous = parameters.promiscuous.then(|| {
            step(StepResource::Descriptor, "a packet socket")?;
            open_promiscuous_socket(found.index)
        });
        let promiscuous = promiscuous.transpose();
        let promiscuous = promiscuous.map_err(cannot)?;
        lend_buffers(&frames, &mut queues).map_err(cannot)?;
        step(StepResource::Descriptor, "a group of sockets").map_err(cannot)?;
        let group = PollSet::new(&queues).map_err(cannot)?;
        step(StepResource::Descriptor, "a netlink socket").map_err(cannot)?;
        let links = RouteSocket::open().map_err(cannot)?;
        let losses = FrameLossCounters::begin_counting(links, Some(found.index), true);
        let lead = |redirect: &XdpRedirect| {
            step(StepResource::Program, "a place at an interface")?;
            let all = (0..count).zip(&queues);
            all.into_iter()
                .try_for_each(|(number, queue)| redirect.redirect_to_receiver(number, queue))?;
            Ok::<(), AttachRefusal>(())
        };
        step(StepResource::Program, "a program that takes").map_err(cannot)?;
        let placed = match parameters.loader {
            None => {
                XdpRedirect::create_and_attach((PROGRAM_NAME, count, fragments), found.index, lead)
            }
            Some(make) => {
                let made = |sockets: &Map, asks| {
                    make(&LoadArguments { sockets, tag_lookup: asks, accepts_fragments: fragments })
                        .map_err(AttachRefusal::Load)
                };
                XdpRedirect::create_and_attach_with((PROGRAM_NAME, count), &made, found.index, lead)
            }
        };
        let (redirect, attached) = placed.map_err(|why| match why {
            AttachRefusal::Load(error) => load_failure(name, &error),
            AttachRefusal::Call(error) if matches!(error.errno, EBUSY | EEXIST) => {
                already_attached_failure(name, &found)
            }
            AttachRefusal::Call(error) => system_failure(name, &error),
        })?;
        let XdpAttachment { link, mode, .. } = attached;
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
            note_at_detach: None,
            _promiscuous: promiscuous,
        })
    }

    /// Returns all free frame buffers to the kernel for further frames, in equal shares for the
    /// receive queues of the interface.
    pub(super) fn lend_buffers(&mut self) -> Result<(), Failure> {
        lend_buffers(&self.frames, &mut self.queues)
            .map_err(|error| system_failure(&self.name, &error))
    }

    /// Detaches the program, so that the host receives all frames again. Returns true on success.
    pub(super) fn detach(&mut self) -> bool {
        // The note is recorded first, because detaching changes the state of the link.
        self.note_at_detach = self.user_note();
        self.detached = self.link.detach().is_ok();
        self.detached
    }

    /// Returns the counters of the XDP program, and the number of frames that the kernel dropped
    /// because a ring was full. The number is `None` if the counter of a queue cannot be read.
    pub(super) fn counters(&self) -> (sys::xdp::RedirectCounts, Option<u64>) {
        let lost = self.queues.iter().map(|queue| {
            let of = queue.statistics().ok()?;
            Some(of.rx_dropped + of.rx_full)
        });
        // The losses are read first, so that every lost frame is also in the program's counters.
        let lost = lost.sum();
        (self.redirect.counts(), lost)
    }

    /// Returns true if a queue has a pending error, which means that the interface has been
    /// removed. Clears the error.
    pub(super) fn is_gone(&self) -> bool {
        self.queues.iter().any(|queue| queue.take_error().is_some())
    }

    /// Returns a note for the user about circumstances that the counters do not show, or `None` if
    /// there are none: the driver has no XDP, the host received frames of queues that were added
    /// later, or another process detached the program. After [`Self::detach`], returns the note as
    /// of that call.
    pub(super) fn user_note(&self) -> Option<String> {
        if self.detached {
            return self.note_at_detach.clone();
        }
        let passed = self.redirect.counts().passed;
        let mut all = Vec::new();
        if self.mode == XdpMode::Generic {
            all.push("its driver has no XDP: the kernel copies each frame twice".to_owned());
        }
        if passed > 0 {
            all.push(format!("{passed} frames of queues that were added later went to the host"));
        }
        if self.link.info().is_ok_and(|info| info.target == LinkTarget::Xdp(0)) {
            all.push("the program was removed from the interface".to_owned());
        }
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Reason why the XDP program could not be loaded or attached.
enum AttachRefusal {
    Load(LoadError),
    Call(sys::Error),
}

impl From<LoadError> for AttachRefusal {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<sys::Error> for AttachRefusal {
    fn from(error: sys::Error) -> Self {
        Self::Call(error)
    }
}

/// Opens an AF_XDP receiver for each receive queue of the interface with the index `index`. All
/// receivers share one memory. Returns the memory, the receivers, and true if packets may span
/// several buffers.
fn open_queue_receivers(
    parameters: &TakeParameters<'_>,
    index: u32,
) -> sys::Result<(Arc<Frames>, Vec<XdpReceiver>, bool)> {
    let first = |fragments| {
        let bytes = parameters.ring.map(|bytes| bytes / 4096);
        let memory = sys::machine::Machine::detect().memory_bytes.unwrap_or(u64::MAX) / 64 / 4096;
        let queues = u64::from(receive_queue_count(parameters.interface));
        let wanted = (queues * FRAMES_PER_QUEUE_DEFAULT)
            .clamp(FRAME_BUFFERS_MIN, FRAME_BUFFERS_MAX)
            .min(memory.max(1024));
        let frames = 1 << bytes.unwrap_or(wanted).clamp(64, 1 << 20).ilog2();
        parameters.steps.announce_creation(StepResource::Memory, "frames of AF_XDP")?;
        let frames = Frames::create("streamline-take", frames)?;
        frames.reserve_send_frames(frames.count() / SPARE_FRAMES_DIVISOR);
        let entries =
            u32::try_from(frames.count()).unwrap_or(RING_ENTRIES_MAX).min(RING_ENTRIES_MAX);
        let settings = SocketSettings { fragments, ..SocketSettings::new(index, 0, entries) };
        parameters.steps.announce_creation(StepResource::Descriptor, "a socket of AF_XDP")?;
        let receiver = retry_while_busy(|| XdpReceiver::open(&frames, settings))?;
        Ok((frames, settings, receiver))
    };
    // Kernels before 6.6 do not support packets in several buffers.
    let (frames, settings, receiver) = match first(true) {
        Err(sys::Error { errno: EINVAL, .. }) => first(false)?,
        outcome => outcome?,
    };
    let mut queues = vec![receiver];
    for queue in 1..QUEUES_MAX {
        parameters.steps.announce_creation(StepResource::Descriptor, "a socket of AF_XDP")?;
        match retry_while_busy(|| XdpReceiver::open(&frames, SocketSettings { queue, ..settings }))
        {
            Ok(receiver) => queues.push(receiver),
            // The previous queue was the last.
            Err(error) if error.errno == EINVAL => break,
            Err(error) => return Err(error),
        }
    }
    Ok((frames, queues, settings.fragments))
}

/// Calls `attempt` until the queue is no longer busy, for at most [`BUSY_QUEUE_TIMEOUT`]. The
/// kernel frees a queue only some time after its owner has exited. Blocks.
fn retry_while_busy<T>(attempt: impl Fn() -> sys::Result<T>) -> sys::Result<T> {
    let begin = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.errno == EBUSY && begin.elapsed() < BUSY_QUEUE_TIMEOUT => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

/// Returns the number of receive queues that an interface in this process's own namespace has, read
/// from `/sys`.
fn receive_queue_count(interface: &str) -> u32 {
    let folder = std::fs::read_dir(format!("/sys/class/net/{interface}/queues"));
    let names = folder.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let count = names.filter(|name| name.to_string_lossy().starts_with("rx-")).count();
    u32::try_from(count).unwrap_or(QUEUES_MAX).clamp(1, QUEUES_MAX)
}

fn lend_buffers(frames: &Frames, queues: &mut [XdpReceiver]) -> sys::Result<()> {
    let share = frames.count() / queues.len().max(1);
    queues.iter_mut().try_for_each(|queue| queue.lend_free_frames(share).map(drop))
}

fn open_promiscuous_socket(index: u32) -> sys::Result<PacketSocket> {
    let socket = PacketSocket::open()?;
    socket.make_promiscuous(index)?;
    Ok(socket)
}

/// Fails if the interface has no Ethernet frames or already has an XDP program.
fn check_interface_redirectable(
    found: &Interface,
    link: LinkType,
    name: &str,
) -> Result<(), Failure> {
    if link != LinkType::ETHERNET {
        let why = "its frames have no Ethernet header, which XDP requires";
        let hint = "`rx` without `take` watches it";
        return Err(Failure::new(TAKE_VERB, name, why).with_hint(hint));
    }
    if found.xdp.is_some() {
        return Err(already_attached_failure(name, found));
    }
    Ok(())
}

/// Fails if taking the interface's frames would cut off the host or the user: the default route or,
/// if `ours` is true, the user's SSH connection uses the interface. `ours` is true if the interface
/// is in this process's own network namespace.
fn check_interface_not_protected(interface: &str, ours: bool) -> Result<(), Failure> {
    let routes = Routes::read_tables();
    let connection = std::env::var("SSH_CONNECTION").ok().filter(|_| ours);
    let caller =
        routes::parse_ssh_peer(connection.as_deref()).filter(|caller| !caller.is_loopback());
    let why = if caller.is_some_and(|caller| routes.route_interface(caller) == Some(interface)) {
        "you are connected through it, and would be cut off"
    } else if routes.has_default_route(interface) {
        "the default route of this namespace leads through it"
    } else {
        return Ok(());
    };
    Err(Failure::new(TAKE_VERB, interface, why).with_hint(
        "`--force` before the request takes it nevertheless; `rx` without `take` only \
               observes",
    ))
}

/// Creates the failure for an interface that already has an XDP program.
fn already_attached_failure(name: &str, found: &Interface) -> Failure {
    // The interface is queried again, because another process may have attached the program since
    // the first query.
    let now = RouteSocket::open().and_then(|links| links.interface_by_index(found.index)).ok();
    let number = now.as_ref().unwrap_or(found).xdp.map_or(0, |xdp| xdp.program);
    let programs = sys::bpf::list_programs().unwrap_or_default();
    let named = programs.iter().find(|(id, name)| *id == number && !name.is_empty());
    let who = named.map_or_else(String::new, |(_, name)| format!(" `{name}`"));
    let why = format!("the XDP program{who} (number {number}) is already attached there");
    Failure::new(TAKE_VERB, name, why).with_hint(
        "end the program that put it there, or `ip link set dev … xdp off`; `rx` without `take` \
         watches beside it",
    )
}

/// Creates the failure for an XDP program that could not be loaded.
fn load_failure(name: &str, error: &LoadError) -> Failure {
    let denied = matches!(error.error.errno, EPERM | EACCES);
    let why = format!("the kernel refuses the program: {error}");
    let failure = Failure::new(TAKE_VERB, name, why).with_errno(Some(error.error.errno));
    Failure { missing_capability: denied.then_some(Capabilities::BPF), ..failure }
}

/// Converts an operating-system error into a failure.
fn system_failure(name: &str, error: &sys::Error) -> Failure {
    let why = reason_text(&std::io::Error::from_raw_os_error(error.errno));
    let refusal = |what: &str| {
        Failure::new(TAKE_VERB, name, format!("{what}: {why}")).with_errno(Some(error.errno))
    };
    match (error.call, error.errno) {
        ("socket", EAFNOSUPPORT) => refusal("this kernel has no AF_XDP").with_hint(
            "taking needs a kernel with CONFIG_XDP_SOCKETS; `rx` without `take` watches",
        ),
        ("socket", EPERM | EACCES) => {
            let failure = refusal("the kernel refuses an AF_XDP socket");
            Failure { missing_capability: Some(Capabilities::NET_RAW), ..failure }
        }
        ("bpf", EPERM | EACCES) => Failure {
            missing_capability: Some(Capabilities::BPF),
            ..refusal("the kernel refuses the program")
        },
        (_, ENOBUFS) => refusal("the memory cannot be locked")
            .with_hint("raise the limit of locked memory (`ulimit -l`), or grant CAP_IPC_LOCK"),
        ("bind", EBUSY) => refusal("another AF_XDP socket uses its queue")
            .with_hint("end the program that already takes frames from it"),
        _ => refusal(&format!("{} on {}", error.call, error.target)),
    }
}

const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
const EACCES: i32 = rustix::io::Errno::ACCESS.raw_os_error();
const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
const EEXIST: i32 = rustix::io::Errno::EXIST.raw_os_error();
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
const EAFNOSUPPORT: i32 = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
