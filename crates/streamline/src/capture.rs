//! A live capture of one or several interfaces whose frames the calling thread reads directly from
//! the kernel's rings.
//!
//! A [`Capture`] is for a program with its own thread and loop, such as a program that calls
//! libpcap. A capture is planned like the requests `rx IF` and `tx IF`, and therefore uses the same
//! kernel programs and rings. With a daemon, all captures of a user at an interface share one
//! program per direction and one ring of frames. A capture builds no path; only the kernel programs
//! run. Reading a frame takes one copy and no system call.
//!
//! Frames from all interfaces, from all processors and in both directions are merged in time order.
//! A frame is returned only if its time is not later than the last
//! [`Capture::load_arrived_frames`], because another processor may still be about to store a frame
//! with an earlier time.
//!
//! A frame that is not read in time is overwritten in its ring, and counted as lost.
//!
//! The filter can be replaced while frames arrive ([`Capture::prepare_filter`]). Interfaces can be
//! added at any time ([`Capture::add_interface`]).

mod awake;
mod direction;
mod filter_switch;
mod interfaces;

pub use filter_switch::{CaptureFilter, PreparedFilter};

use crate::error::OpenError;
use crate::options::Options;
use direction::DirectionCapture;
use endpoint::Failure;
use endpoint::source::kernel::clock_offset::ClockOffset;
use endpoint::source::kernel::frames_in_place::{captured_length, copy_frame_start};
use endpoint::source::kernel::reader::ExportedFrame;
use endpoint::source::kernel::wire_length;
use engine::registry::MachineRegistry;
use pipeline::registry::Registry as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Returns the resolver that a request on this machine would use to look up names, such as host
/// names.
#[must_use]
pub fn name_resolver() -> Option<Arc<dyn filter::NameResolver>> {
    MachineRegistry::Local.resolver()
}

/// Maximum length of a captured frame in bytes, including its VLAN tag.
pub const FRAME_BYTES_MAX: usize = (64 << 10) + 64 + 4;

/// The settings of a capture.
#[derive(Clone, Debug, Default)]
pub struct CaptureSettings {
    /// Name of the interface.
    pub interface: String,
    /// The frames to capture, and the number of bytes that the kernel program copies from each
    /// frame.
    pub filter: CaptureFilter,
    /// Memory for unread frames on all processors together, in bytes; `None` for the default.
    pub ring_bytes: Option<u64>,
    /// Maximum delay of the notification about a frame, in nanoseconds; `None` for the default. A
    /// value below 1 ms counts as 1 ms, and a value above the default counts as the default.
    pub delay_ns: Option<u64>,
    /// True if the caller sleeps on its own socket, from which the capture takes frames away while
    /// the caller is awake ([`Capture::wake_up`]). While the caller is asleep, the host delivers
    /// all frames to the socket, which wakes the caller. The capture itself sends no notifications.
    pub host_wakes: bool,
    /// True to omit the frames that the host sends.
    pub received_only: bool,
    /// A pcap-filter(7) expression for the frames that the capture takes, so that the host does not
    /// receive them. `None` if the capture only observes frames.
    pub take_filter: Option<String>,
}

/// A live capture of one or several interfaces.
#[derive(Debug)]
pub struct Capture {
    directions: Vec<DirectionCapture>,
    clock: ClockOffset,
    /// Time of the last [`Self::load_arrived_frames`], in nanoseconds of the monotonic clock.
    loaded_at: u64,
    /// Minimum time between two notifications about arriving frames, in nanoseconds.
    notification_interval_ns: u64,
    read: u64,
    skipped: u64,
    /// Number of frames lost in the directions that [`Self::forget_ended_directions`] has removed
    /// from this capture, because they have ended.
    lost_in_ended_directions: u64,
    /// Number of times that an interface was added or removed. A filter that was prepared before
    /// such a change cannot be activated any more ([`Self::can_switch_to`]).
    interface_changes: u64,
    settings: CaptureSettings,
    options: Options,
}

/// The properties of a captured frame. The bytes of the frame are in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedFrame {
    /// Time of day of the frame, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Length of the frame on the wire, in bytes, including its VLAN tag.
    pub wire_length: u32,
    /// Number of captured bytes in the ring, including the VLAN tag.
    pub captured: usize,
    /// Size in bytes of the segments into which the frame has yet to be divided (segmentation
    /// offload); 0 if the frame need not be divided.
    pub segment_size: u16,
    /// Index of the interface.
    pub interface: u32,
    /// True if the host sends the frame.
    pub is_sent: bool,
    /// True if the kernel program could not decide whether the frame matches the capture's filter.
    /// The caller must then test the frame itself.
    pub is_undecided: bool,
}

/// Numbers of frames read, skipped, lost and unread since the start of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CaptureCounts {
    /// Frames that [`Capture::next_frame`] has returned.
    pub read: u64,
    /// Frames that the caller of [`Capture::next_frame`] skipped.
    pub skipped: u64,
    /// Frames that were overwritten before they were read.
    pub lost: u64,
    /// Frames in the rings that have not been read.
    pub unread: u64,
}

impl Capture {
    /// Opens a capture, and attaches its kernel programs. The capture receives all frames from that
    /// moment on.
    pub fn open(settings: &CaptureSettings, options: &Options) -> Result<Self, OpenError> {
        let (settings, options) = (settings.clone(), options.clone());
        let (directions, clock) = (Vec::new(), ClockOffset::measure());
        let (loaded_at, wait_ns, read, skipped, lost_before, changes) = (0, 0, 0, 0, 0, 0);
        let mut capture = Self {
            directions,
            clock,
            loaded_at,
            notification_interval_ns: wait_ns,
            read,
            skipped,
            lost_in_ended_directions: lost_before,
            interface_changes: changes,
            settings,
            options,
        };
        capture.add_interface(&capture.settings.interface.clone())?;
        Ok(capture)
    }

    /// Makes the frames that have arrived since the last call visible to [`Self::next_frame`].
    pub fn load_arrived_frames(&mut self) {
        self.clock.update();
        for direction in &mut self.directions {
            direction.attached.doorbell.drain(|_| {});
        }
        self.loaded_at = sys::clock::monotonic_ns();
        for direction in &mut self.directions {
            direction.reader.load_writer_positions();
        }
        self.forget_ended_directions();
    }

    /// Copies the oldest visible frame that `decide` accepts to the beginning of `to`, and advances
    /// to the next frame. Returns the frame and the number of copied bytes, or `None` if no frame
    /// is visible. `to` must be [`FRAME_BYTES_MAX`] bytes long.
    ///
    /// `decide` receives the first `look` bytes of a frame, and returns the number of bytes to
    /// copy, or `None` to skip the frame. If the frame is overwritten during the call, these bytes
    /// may be damaged, and the result is ignored.
    pub fn next_frame(
        &mut self,
        to: &mut [u8],
        look: usize,
        decide: impl FnMut(&CapturedFrame, &[u8]) -> Option<usize>,
    ) -> Option<(CapturedFrame, usize)> {
        self.next_frame_until(u64::MAX, to, look, decide)
    }

    /// Copies the oldest frame that `decide` accepts like [`Self::next_frame`], but examines no
    /// frame whose time is later than `until_ns`, a time of day in nanoseconds since 1970.
    pub fn next_frame_until(
        &mut self,
        until_ns: u64,
        to: &mut [u8],
        look: usize,
        mut decide: impl FnMut(&CapturedFrame, &[u8]) -> Option<usize>,
    ) -> Option<(CapturedFrame, usize)> {
        loop {
            let (number, exported) = self.oldest_frame()?;
            let time_ns = self.clock.time_of_day(exported.header.time);
            if time_ns > until_ns {
                return None;
            }
            let DirectionCapture { reader, attached, interface, .. } =
                self.directions.get_mut(number)?;
            let exit = attached.exits.get(exported.edge as usize);
            let frame = CapturedFrame {
                time_ns,
                wire_length: wire_length(&exported.header),
                captured: captured_length(&exported.header),
                segment_size: exported.header.segment_size,
                interface: interface.index,
                is_sent: exported.header.sent,
                is_undecided: exit.is_none_or(|exit| exit.is_unsure),
            };
            let examined = copy_frame_start(&attached.rings, &exported, look, to);
            let needed = decide(&frame, to.get(..examined).unwrap_or_default());
            let copied = match needed {
                Some(needed) if needed > examined => {
                    copy_frame_start(&attached.rings, &exported, needed, to)
                }
                Some(needed) => needed,
                None => 0,
            };
            let reserved = reader.reserved_position(exported.cpu);
            reader.advance_past_frame(&exported);
            if !reader.is_intact(&exported, reserved) {
                reader.count_passed_frame_as_lost(&exported);
            } else if needed.is_some() {
                self.read += 1;
                return Some((frame, copied));
            } else {
                self.skipped += 1;
            }
        }
    }

    fn oldest_frame(&mut self) -> Option<(usize, ExportedFrame)> {
        let mut oldest: Option<(usize, ExportedFrame)> = None;
        for (number, direction) in self.directions.iter_mut().enumerate() {
            let Some(front) = direction.reader.front_frame() else { continue };
            let is_older =
                |(_, other): (usize, ExportedFrame)| front.header.time < other.header.time;
            if front.header.time <= self.loaded_at && oldest.is_none_or(is_older) {
                oldest = Some((number, front));
            }
        }
        oldest
    }

    /// Returns the time of day of the last [`Self::load_arrived_frames`], in nanoseconds since
    /// 1970.
    #[must_use]
    pub const fn last_load_time(&self) -> u64 {
        self.clock.time_of_day(self.loaded_at)
    }

    /// Returns true if a frame was in the rings at the last [`Self::load_arrived_frames`] and has
    /// not been read.
    pub fn has_frames(&mut self) -> bool {
        self.directions.iter_mut().any(|direction| direction.reader.front_frame().is_some())
    }

    /// Returns the time until the next possible notification. Frames that arrive within this time
    /// cause none; the first frame after it does.
    #[must_use]
    pub fn unnotified_time_left(&self) -> Duration {
        let notified =
            self.directions.iter().map(|direction| direction.reader.last_notification_time()).max();
        let due = notified.unwrap_or(0).saturating_add(self.notification_interval_ns);
        Duration::from_nanos(due.saturating_sub(sys::clock::monotonic_ns()))
    }

    /// Returns the doorbells with which the kernel programs of the capture notify the reader of
    /// frames. Each is readable after a notification until the next [`Self::load_arrived_frames`].
    pub fn doorbells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.directions.iter().map(|direction| direction.attached.doorbell.as_fd())
    }

    /// Returns the connections to the daemon. A connection becomes readable when the state of the
    /// capture may have changed; the caller must then call [`Self::check_for_failure`]. There are
    /// no connections if this process runs the programs.
    pub fn daemon_connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let running = self.directions.iter().filter(|direction| !direction.has_ended);
        running.filter_map(|direction| direction.attached.handle.connection())
    }

    /// Returns the current numbers of frames.
    #[must_use]
    pub fn counts(&self) -> CaptureCounts {
        let Self { read, skipped, .. } = *self;
        let lost = self.lost_in_ended_directions;
        let mut counts = CaptureCounts { read, skipped, lost, unread: 0 };
        for exit in self.directions.iter().flat_map(|direction| direction.reader.exit_losses()) {
            counts.lost += exit.lost;
            counts.unread += exit.unread;
        }
        counts
    }

    /// Checks that the kernel programs of the capture are still attached.
    ///
    /// # Errors
    ///
    /// Fails if an interface has been removed, or if the daemon has ended the capture. Frames
    /// captured earlier can still be read.
    pub fn check_for_failure(&self) -> Result<(), Failure> {
        self.directions
            .iter()
            .filter(|one| !one.has_ended)
            .try_for_each(DirectionCapture::check_for_failure)
    }

    /// Detaches the kernel programs of the capture. Frames captured earlier can still be read.
    /// Blocks until the programs have ended.
    pub fn detach(&self) {
        for direction in &self.directions {
            direction.attached.handle.detach();
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.detach();
    }
}
