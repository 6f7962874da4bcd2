//! Reading of frames: the thread of the program reads the rings, waits for the doorbells, and
//! passes each frame to the program.

use super::Live;
use crate::filter::Filter;
use crate::handle::{Handle, lock, status};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use streamline::capture::{Capture, CapturedFrame, FRAME_MAX};

/// Interval between two checks of the interface while no frame arrives.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A packet's header: `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketHeader {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// Microseconds or nanoseconds, depending on the precision of the handle.
    pub fraction: i64,
    /// Number of bytes captured.
    pub captured: u32,
    /// Length on the wire in bytes.
    pub length: u32,
}

/// The directions of frames that a handle reads, by `pcap_direction_t`.
pub(super) mod direction {
    pub(in crate::live) const BOTH: i32 = 0;
    pub(in crate::live) const IN: i32 = 1;
    pub(in crate::live) const OUT: i32 = 2;
}

/// A function that is called with the header of each frame and the address of its bytes.
pub(crate) type TakeFrame<'f> = &'f mut dyn FnMut(&PacketHeader, *const u8);

/// The capture, and a copy of the current frame with its header.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) capture: Capture,
    bytes: Box<[u8]>,
    header: PacketHeader,
}

impl Live {
    pub(super) fn read(
        &self,
        handle: &Handle,
        reading: &mut Reading,
        count: i32,
        take: TakeFrame<'_>,
    ) -> i32 {
        let filter = lock(&self.filter).clone();
        let begun = Instant::now();
        let (mut done, mut has_loaded) = (0, false);
        loop {
            if handle.take_break_request() {
                self.wake.clear();
                return status::BREAK;
            }
            if reading.next(self, filter.as_deref()) {
                take(&reading.header, reading.bytes.as_ptr());
                done += 1;
                if done == count || done == i32::MAX {
                    return done;
                }
            } else if done > 0 {
                return done;
            } else if !has_loaded || reading.capture.has_frames() {
                reading.capture.load();
                has_loaded = true;
            } else {
                if self.is_nonblocking() {
                    return 0;
                }
                if self.timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                    return 0;
                }
                self.store_counts(&reading.capture);
                if !self.wait(&reading.capture, begun)
                    && let Err(failure) = reading.capture.check()
                {
                    return handle.set_error(&failure.to_string());
                }
                reading.capture.load();
            }
        }
    }

    /// Blocks until a frame may be available, the read must end, a signal arrives or the timeout
    /// has passed, for at most [`CHECK_INTERVAL`]. Returns true if a descriptor is ready.
    fn wait(&self, capture: &Capture, begun: Instant) -> bool {
        let silence = capture.silence_left();
        let mut limit = if silence.is_zero() { CHECK_INTERVAL } else { silence };
        if let Some(timeout) = self.timeout {
            limit = limit.min(timeout.saturating_sub(begun.elapsed()));
        }
        let all: Vec<BorrowedFd<'_>> = capture.doorbells().chain([self.wake.as_fd()]).collect();
        // While notifications are suppressed, the interface need not be checked.
        sys::poll::readable(&all, Some(limit)).contains(&true) || !silence.is_zero()
    }
}

impl Reading {
    /// Creates the reader of a capture.
    pub(super) fn new(capture: Capture) -> Self {
        let bytes = vec![0; FRAME_MAX].into_boxed_slice();
        Self { capture, bytes, header: PacketHeader::default() }
    }

    /// Copies the next frame that matches the filter and the direction. Returns false if no frame
    /// is available.
    fn next(&mut self, live: &Live, filter: Option<&Filter>) -> bool {
        let wanted = live.direction.load(Ordering::Relaxed);
        let snapshot = live.snapshot;
        let look = filter.map_or(snapshot, |filter| filter.reach).min(FRAME_MAX);
        let decide = |frame: &CapturedFrame, bytes: &[u8]| {
            let is_other = match wanted {
                direction::IN => frame.is_sent,
                direction::OUT => !frame.is_sent,
                _ => false,
            };
            let kept = filter.map_or(snapshot, |filter| filter.run(frame, bytes));
            let is_wanted = !is_other && kept > 0;
            is_wanted.then(|| frame.captured.min(snapshot).min(kept))
        };
        let Some((frame, copied)) = self.capture.next_frame(&mut self.bytes, look, decide) else {
            return false;
        };
        let (second, rest) = (1_000_000_000, frame.time_ns % 1_000_000_000);
        self.header = PacketHeader {
            seconds: (frame.time_ns / second).cast_signed(),
            fraction: (if live.has_nanoseconds { rest } else { rest / 1000 }).cast_signed(),
            captured: u32::try_from(copied).unwrap_or(u32::MAX),
            length: frame.wire_length,
        };
        live.counts.given.fetch_add(1, Ordering::Relaxed);
        true
    }
}
