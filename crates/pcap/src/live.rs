//! A handle that is read from the rings of kernel programs.
//!
//! The thread that calls `pcap_loop`, `pcap_dispatch` or `pcap_next` reads the rings itself. While
//! it reads, it owns the [`CaptureReader`], so callbacks may call any function except these three.

mod device;
pub(crate) mod reading;

use crate::any::{AllInterfaces, is_ethernet};
use crate::filter::{Filter, LiveFilterProgram};
use crate::handle::{Handle, lock};
use crate::kernel_filter::{KernelFilter, kernel_capture_filter};
use crate::report::{self, Totals};
use crate::settings::Settings;
use device::{CaptureDevice, capture_settings, interface_drops};
use ebpf::classic::{Instruction, LinkType};
use reading::{CHECK_INTERVAL, CaptureReader, FrameCallback, direction};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use streamline::Options;
use streamline::capture::Capture;
use sys::eventfd::EventFd;
use sys::packet::{PacketSender, PacketSocket, QdiscMode, SendStopReason};
use sys::poll::PollSet;
use sys::timer::Timer;

/// `MAXIMUM_SNAPLEN` of libpcap, in bytes.
const SNAPSHOT_LENGTH_MAX: usize = 262_144;
/// Name of the pseudo-device that captures on all interfaces.
pub(crate) const ANY_DEVICE: &str = "any";
/// The counters that `pcap_stats(3)` returns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) received: u32,
    pub(crate) dropped: u32,
    pub(crate) dropped_by_interface: u32,
}

/// The state of a handle that this library reads from the rings of kernel programs, instead of
/// libpcap.
#[derive(Debug)]
pub(crate) struct LiveCapture {
    device: String,
    kind: CaptureDevice,
    /// Snapshot length in bytes.
    pub(crate) snapshot: usize,
    pub(crate) has_nanoseconds: bool,
    /// Time after which a read returns without a frame; `None` for no limit.
    timeout: Option<Duration>,
    is_nonblocking: AtomicBool,
    datalink: AtomicI32,
    direction: AtomicI32,
    filter: Mutex<Option<Arc<Filter>>>,
    /// The filter program that libpcap has compiled last, for capture files, and the program that
    /// runs the same expression on live frames.
    last_compiled: Mutex<(Vec<Instruction>, LiveFilterProgram)>,
    kernel_filter: Mutex<KernelFilter>,
    /// The capture; `None` while a thread reads it, and after the handle was closed.
    reading: Mutex<Option<Box<CaptureReader>>>,
    wake: EventFd,
    selectable: OnceLock<SelectableDescriptor>,
    /// Packet socket with which the program sends frames; `None` for the device `any`.
    sender: Option<Mutex<PacketSender>>,
    /// Packet socket that is open only to keep the interface in promiscuous mode; `None` if the
    /// program did not request this mode.
    _promiscuous: Option<PacketSocket>,
    /// Number of frames that the interface had dropped before activation, which the statistics of
    /// the handle do not include.
    interface_drops: u64,
    counts: FrameCounts,
}

/// Frame counts at the last read of the rings. `pcap_stats` returns them if it is called in a
/// signal handler that has interrupted a read.
#[derive(Debug, Default)]
struct FrameCounts {
    given: AtomicU64,
    /// Packets that the program received from the packet socket of `any`.
    from_socket: AtomicU64,
    lost: AtomicU64,
    unread: AtomicU64,
}

/// A descriptor that is readable when frames may be available.
#[derive(Debug)]
struct SelectableDescriptor {
    set: PollSet,
    timer: Timer,
}

impl LiveCapture {
    /// Opens the device. If libpcap must read the device instead, fails with the reason, which is
    /// empty if libpcap itself reports an error.
    pub(crate) fn open(settings: &Settings) -> Result<Self, String> {
        if let Some(why) = settings.libpcap_only_reason {
            return Err(why.to_owned());
        }
        let text = |error: sys::Error| error.to_string();
        let device = &settings.device;
        let wanted = capture_settings(settings);
        let (kind, sender, promiscuous, reading) = if device == ANY_DEVICE {
            let (all, capture) = AllInterfaces::open(settings, wanted)?;
            (CaptureDevice::All, None, None, CaptureReader::new(capture, Some(all)))
        } else {
            let interface = sys::net::interface(device).map_err(|_| String::new())?;
            if !interface.flags.is_up() {
                return Err(String::new());
            }
            if !is_ethernet(&interface) {
                return Err("its frames are not Ethernet frames".to_owned());
            }
            let index = interface.index;
            let sender = PacketSender::open(index, QdiscMode::Through).map_err(text)?;
            let promiscuous = settings.is_promiscuous.then(|| {
                let socket = PacketSocket::open()?;
                socket.make_promiscuous(index)?;
                Ok(socket)
            });
            let promiscuous = promiscuous.transpose().map_err(text)?;
            let capture = Capture::open(&wanted, &Options::default());
            let capture = capture.map_err(|error| error.to_string())?;
            let kind =
                CaptureDevice::Interface { index, is_loopback: interface.flags.is_loopback() };
            (kind, Some(Mutex::new(sender)), promiscuous, CaptureReader::new(capture, None))
        };
        let timeout_ms = u64::try_from(settings.timeout_ms).unwrap_or(0);
        let snapshot = usize::try_from(settings.snapshot).unwrap_or(0);
        Ok(Self {
            device: device.clone(),
            kind,
            snapshot: if snapshot == 0 {
                SNAPSHOT_LENGTH_MAX
            } else {
                snapshot.min(SNAPSHOT_LENGTH_MAX)
            },
            has_nanoseconds: settings.has_nanoseconds,
            // As with libpcap on Linux: otherwise the timeout delays frames, but ends no read.
            timeout: (settings.is_immediate && timeout_ms > 0)
                .then(|| Duration::from_millis(timeout_ms)),
            is_nonblocking: AtomicBool::new(settings.is_nonblocking),
            datalink: AtomicI32::new(kind.datalinks()[0]),
            direction: AtomicI32::new(direction::BOTH),
            filter: Mutex::new(None),
            last_compiled: Mutex::new((Vec::new(), LiveFilterProgram::Same)),
            kernel_filter: Mutex::default(),
            reading: Mutex::new(Some(Box::new(reading))),
            wake: EventFd::new().map_err(text)?,
            selectable: OnceLock::new(),
            sender,
            _promiscuous: promiscuous,
            interface_drops: interface_drops(device),
            counts: FrameCounts::default(),
        })
    }

    /// Returns the number of the descriptor that wakes a blocked read.
    pub(crate) fn waker_fd(&self) -> i32 {
        self.wake.as_fd().as_raw_fd()
    }

    /// Returns the link types that the device supports, as `DLT_` numbers. The default is the
    /// first.
    pub(crate) fn datalinks(&self) -> &'static [i32] {
        self.kind.datalinks()
    }

    /// Returns the link type of the packets that the program reads, a `DLT_` number.
    pub(crate) fn datalink(&self) -> i32 {
        self.datalink.load(Ordering::Relaxed)
    }

    /// Changes the link type. Returns false if the device does not support it.
    pub(crate) fn set_datalink(&self, link: i32) -> bool {
        let is_known = self.datalinks().contains(&link);
        if is_known {
            self.datalink.store(link, Ordering::Relaxed);
        }
        is_known
    }

    /// Returns true if reads are nonblocking.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// Makes reads nonblocking if `value` is true, and blocking otherwise.
    pub(crate) fn set_nonblocking(&self, value: bool) {
        self.is_nonblocking.store(value, Ordering::Relaxed);
    }

    /// Records `form`, the filter program for live frames, under `compiled`, the program that
    /// libpcap has compiled from the same expression for capture files.
    pub(crate) fn record_live_program(&self, compiled: &[Instruction], form: LiveFilterProgram) {
        *lock(&self.last_compiled) = (compiled.to_vec(), form);
    }

    /// Returns the filter of these instructions for the current link type; `None` if they are not a
    /// valid program.
    fn build_filter(&self, instructions: Vec<Instruction>) -> Option<Filter> {
        let index = match self.kind {
            CaptureDevice::Interface { index, .. } => index,
            CaptureDevice::All => 0,
        };
        let (compiled, form) = lock(&self.last_compiled).clone();
        let (program, expects_tags) = match form {
            LiveFilterProgram::Other(live) if compiled == instructions => (live, false),
            LiveFilterProgram::Unknown if compiled == instructions => (instructions, true),
            _ => (instructions, false),
        };
        let link = LinkType(self.datalink().cast_unsigned());
        Filter::new(program, (link, expects_tags), index)
    }

    /// Loads a filter that the program has compiled and may set later.
    pub(crate) fn prepare_filter(&self, instructions: Vec<Instruction>) {
        let filter = self.build_filter(instructions);
        if let (Some(filter), Some(reading)) = (filter, lock(&self.reading).as_ref()) {
            let wanted = kernel_capture_filter(&filter, self.snapshot);
            lock(&self.kernel_filter).prepare(&reading.capture, wanted);
        }
    }

    /// Replaces the filter. Fails with the reason if the instructions are not a valid program, or
    /// if an earlier filter remains in the kernel.
    pub(crate) fn set_filter(&self, instructions: Vec<Instruction>) -> Result<(), String> {
        let Some(filter) = self.build_filter(instructions) else {
            return Err("BPF program is not valid".to_owned());
        };
        let wanted = kernel_capture_filter(&filter, self.snapshot);
        let mut reading = lock(&self.reading);
        let mut capture = reading.as_mut().map(|reading| &mut reading.capture);
        lock(&self.kernel_filter).set_kernel_filter(capture.as_deref_mut(), (&filter, wanted))?;
        *lock(&self.filter) = Some(Arc::new(filter));
        if let Some(capture) = capture {
            self.select_new_doorbells(capture);
        }
        Ok(())
    }

    /// Makes the selectable descriptor watch all doorbells and daemon connections of the capture,
    /// including those that are new. Also makes the descriptor readable once, because there may be
    /// unread frames.
    fn select_new_doorbells(&self, capture: &Capture) {
        let Some(selectable) = self.selectable.get() else { return };
        for descriptor in capture.doorbells().chain(capture.daemon_connections()) {
            // Descriptors of directions that were not replaced are in the set already.
            let _ = selectable.set.add(descriptor);
        }
        // Makes the program read once, because frames from before may be unread.
        selectable.timer.set(Some(Duration::ZERO));
    }

    /// Returns a phrase for the report that names the component that runs the filter; empty if
    /// there is no filter or the filter accepts all packets.
    fn filter_location_phrase(&self) -> String {
        if lock(&self.filter).as_ref().is_none_or(|filter| filter.accepts_all()) {
            return String::new();
        }
        match &lock(&self.kernel_filter).refusal {
            None => ", filtered in the kernel".to_owned(),
            Some(why) => format!(", filtered in the program: {}", why.replace('\n', " ")),
        }
    }

    /// Sets the direction of the frames to read. Returns false for an unknown direction.
    pub(crate) fn set_direction(&self, wanted: i32) -> bool {
        let is_known = matches!(wanted, direction::BOTH | direction::IN | direction::OUT);
        if is_known {
            self.direction.store(wanted, Ordering::Relaxed);
        }
        is_known
    }

    /// Reads frames that are available, at most `count` (all if `count` is 0 or less), and waits
    /// for the first as long as the settings of the handle permit. Returns the number of frames, 0
    /// after a timeout, or a negative [`status`](crate::handle::status).
    pub(crate) fn dispatch(&self, handle: &Handle, count: i32, take: FrameCallback<'_>) -> i32 {
        let Some(mut reading) = lock(&self.reading).take() else {
            return handle
                .set_error("the handle is being read already, by its callback or a thread");
        };
        let result = self.read(handle, &mut reading, count, take);
        self.store_counts(&mut reading);
        self.set_timer(&mut reading);
        *lock(&self.reading) = Some(reading);
        result
    }

    /// Returns a descriptor that is readable when frames may be available. Creates it at the first
    /// call; returns `None` if this fails.
    pub(crate) fn selectable_fd(&self) -> Option<i32> {
        if self.selectable.get().is_none() {
            let reading = lock(&self.reading);
            let timer = Timer::new().ok()?;
            let descriptors = reading.as_ref()?.descriptors();
            let all: Vec<BorrowedFd<'_>> = descriptors.chain([timer.as_fd()]).collect();
            let set = PollSet::new(&all).ok()?;
            drop(all);
            drop(reading);
            // Makes the program read once, which sets the timer again.
            timer.set(Some(Duration::ZERO));
            let _ = self.selectable.set(SelectableDescriptor { set, timer });
        }
        Some(self.selectable.get()?.set.as_fd().as_raw_fd())
    }

    /// Sets the timer of the selectable descriptor. The timer makes the descriptor readable when
    /// there may be frames for which no doorbell was notified.
    fn set_timer(&self, reading: &mut CaptureReader) {
        let Some(SelectableDescriptor { timer, .. }) = self.selectable.get() else { return };
        let silence = reading.capture.unnotified_time_left();
        let after = match reading.has_packets() {
            true => Some(Duration::ZERO),
            false => Some(silence).filter(|silence| !silence.is_zero()),
        };
        timer.set(after);
    }

    /// Sends a frame. Fails with the reason.
    pub(crate) fn send(&self, frame: &[u8]) -> Result<(), String> {
        let Some(sender) = &self.sender else {
            return Err("Sending packets isn't supported on the \"any\" device".to_owned());
        };
        let failure = |errno| {
            let text = std::io::Error::from_raw_os_error(errno).to_string();
            format!("send: {}", text.split(" (os error").next().unwrap_or_default())
        };
        let mut sender = lock(sender);
        loop {
            match sender.send(&[frame]).stopped {
                None => return Ok(()),
                Some(SendStopReason::NoRoom(errno)) if self.is_nonblocking() => {
                    return Err(failure(errno));
                }
                Some(SendStopReason::NoRoom(_)) => {
                    sys::poll::wait_until_writable(sender.as_fd(), CHECK_INTERVAL);
                }
                Some(SendStopReason::Refused(errno)) => return Err(failure(errno)),
            }
        }
    }

    fn store_counts(&self, reading: &mut CaptureReader) {
        let counts = reading.capture.counts();
        let lost = counts.lost + reading.count_socket_drops();
        self.counts.lost.store(lost, Ordering::Relaxed);
        self.counts.unread.store(counts.unread, Ordering::Relaxed);
    }

    /// Returns the counts so far. Safe to call in a signal handler: if it interrupts a read of the
    /// rings, the counts of lost and unread packets are those of an earlier read.
    pub(crate) fn totals(&self) -> Totals {
        if let Ok(mut reading) = self.reading.try_lock()
            && let Some(reading) = reading.as_mut()
        {
            self.store_counts(reading);
        }
        Totals {
            given: self.counts.given.load(Ordering::Relaxed),
            from_socket: self.counts.from_socket.load(Ordering::Relaxed),
            lost: self.counts.lost.load(Ordering::Relaxed),
            unread: self.counts.unread.load(Ordering::Relaxed),
        }
    }

    /// Returns the counters for `pcap_stats(3)`. As with libpcap on Linux, the received packets
    /// include the dropped ones.
    pub(crate) fn statistics(&self) -> Statistics {
        let Totals { given, lost, unread, .. } = self.totals();
        let drops = interface_drops(&self.device).saturating_sub(self.interface_drops);
        let word = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Statistics {
            received: word(given + lost + unread),
            dropped: word(lost),
            dropped_by_interface: word(drops),
        }
    }

    /// Ends the capture, and prints its totals if the user requested them.
    pub(crate) fn close(&self) {
        let totals = self.totals();
        let place = self.filter_location_phrase();
        *lock(&self.reading) = None;
        report::print_totals(&self.device, &totals, &place);
    }

    /// Prints the totals of a capture that is still open when the program exits, if the user
    /// requested them.
    pub(crate) fn report_at_exit(&self) {
        report::print_totals(&self.device, &self.totals(), "");
    }
}
