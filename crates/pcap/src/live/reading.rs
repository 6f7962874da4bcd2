//! The reader of a capture: in the thread of the program, it reads the rings, waits for the
//! doorbells, and passes each frame to the program.

use super::LiveCapture;
use crate::any::{AllInterfaces, FRAME_OFFSET, Packet};
use crate::filter::{Filter, FilterBuffer, outermost_tag};
use crate::handle::{Handle, lock, status};
use crate::report;
use ebpf::classic::LinkType;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use streamline::capture::{Capture, CapturedFrame, FRAME_BYTES_MAX};
use wire::linux_cooked::packet_type::OUTGOING;

/// Interval at which a blocked read checks that the interface still exists and is still captured,
/// while no frame arrives.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The header of a packet, laid out as `struct pcap_pkthdr` in C.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketHeader {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// Fraction of the second in microseconds or nanoseconds, depending on the precision of the
    /// handle.
    pub fraction: i64,
    /// Number of bytes captured.
    pub captured: u32,
    /// Length of the packet on the wire, in bytes.
    pub length: u32,
}

/// Maximum length of an Ethernet header with a VLAN tag, in bytes.
const ETHERNET_HEADER_MAX: usize = 18;

/// The directions of frames that a handle reads, by `pcap_direction_t`.
pub(super) mod direction {
    pub(in crate::live) const BOTH: i32 = 0;
    pub(in crate::live) const IN: i32 = 1;
    pub(in crate::live) const OUT: i32 = 2;
}

/// A function that is called with the header of each frame and the address of its bytes.
pub(crate) type FrameCallback<'f> = &'f mut dyn FnMut(&PacketHeader, *const u8);

/// The reader of a capture: the capture, and the buffer with a copy of the current packet.
#[derive(Debug)]
pub(super) struct CaptureReader {
    pub(super) capture: Capture,
    /// The interfaces of the device `any`; `None` for a single interface.
    all_interfaces: Option<AllInterfaces>,
    /// Buffer of the current packet, which begins at `offset`.
    bytes: Box<[u8]>,
    offset: usize,
    header: PacketHeader,
    buffer: FilterBuffer,
}

impl LiveCapture {
    pub(super) fn read(
        &self,
        handle: &Handle,
        reading: &mut CaptureReader,
        count: i32,
        take: FrameCallback<'_>,
    ) -> i32 {
        let filter = lock(&self.filter).clone();
        let begun = Instant::now();
        let (mut done, mut has_loaded) = (0, false);
        loop {
            if handle.take_break_request() {
                self.wake.clear();
                return status::BREAK;
            }
            if reading.copy_next_match(self, filter.as_deref()) {
                take(&reading.header, reading.packet().as_ptr());
                done += 1;
                if done == count || done == i32::MAX {
                    return done;
                }
            } else if done > 0 {
                return done;
            } else if !has_loaded || reading.has_packets() {
                reading.load_arrived_packets(self);
                has_loaded = true;
            } else {
                if self.is_nonblocking() && !reading.has_messages() {
                    return 0;
                }
                if self.timeout.is_some_and(|timeout| begun.elapsed() >= timeout) {
                    return 0;
                }
                self.store_counts(reading);
                let is_ready = self.wait_for_frames(reading, begun);
                if (!is_ready || reading.has_messages())
                    && let Err(why) = reading.check_capture(self)
                {
                    return handle.set_error(&why);
                }
                reading.load_arrived_packets(self);
            }
        }
    }

    /// Returns true if the program reads the frames of this direction.
    fn wants_direction(&self, is_sent: bool) -> bool {
        match self.direction.load(Ordering::Relaxed) {
            direction::IN => !is_sent,
            direction::OUT => is_sent,
            _ => true,
        }
    }

    /// Blocks until a frame may be available, or until the read has to end because of a break
    /// request, a signal or the timeout. Returns false if nothing has happened within the timeout
    /// or [`CHECK_INTERVAL`]; the caller must then check the interface. Returns true if a
    /// descriptor is ready. Also returns true after a short wait during which frames could arrive
    /// without a notification.
    fn wait_for_frames(&self, reading: &CaptureReader, begun: Instant) -> bool {
        let silence = reading.capture.unnotified_time_left();
        let mut limit = if silence.is_zero() { CHECK_INTERVAL } else { silence };
        if let Some(timeout) = self.timeout {
            limit = limit.min(timeout.saturating_sub(begun.elapsed()));
        }
        let all: Vec<BorrowedFd<'_>> = reading.descriptors().chain([self.wake.as_fd()]).collect();
        // While notifications are suppressed, the interface need not be checked.
        sys::poll::wait_until_readable(&all, Some(limit)).contains(&true) || !silence.is_zero()
    }
}

impl CaptureReader {
    /// Creates the reader of a capture. `all` is `None` if the capture is of a single interface.
    pub(super) fn new(capture: Capture, all: Option<AllInterfaces>) -> Self {
        let bytes = vec![0; FRAME_OFFSET + FRAME_BYTES_MAX].into_boxed_slice();
        let (header, buffer) = (PacketHeader::default(), FilterBuffer::default());
        Self { capture, all_interfaces: all, bytes, offset: 0, header, buffer }
    }

    /// Returns the buffer from the beginning of the current packet on; the bytes after the packet
    /// are unused.
    fn packet(&self) -> &[u8] {
        self.bytes.get(self.offset..).unwrap_or_default()
    }

    /// Returns the descriptors that are readable when packets may be available.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let all = self.all_interfaces.iter().flat_map(AllInterfaces::descriptors);
        self.capture.doorbells().chain(self.capture.daemon_connections()).chain(all)
    }

    /// Returns true if the daemon has sent a message, or has exited, since the last check.
    fn has_messages(&self) -> bool {
        let connections: Vec<BorrowedFd<'_>> = self.capture.daemon_connections().collect();
        !connections.is_empty()
            && sys::poll::wait_until_readable(&connections, Some(Duration::ZERO)).contains(&true)
    }

    /// Returns true if a packet has arrived and has not been read.
    pub(super) fn has_packets(&mut self) -> bool {
        self.capture.has_frames()
            || self.all_interfaces.as_ref().is_some_and(AllInterfaces::has_packet)
    }

    /// Returns the number of packets that the packet socket of `any` has dropped; 0 for a single
    /// interface.
    pub(super) fn count_socket_drops(&mut self) -> u64 {
        self.all_interfaces.as_mut().map_or(0, AllInterfaces::count_drops)
    }

    /// Makes the packets that have arrived visible to [`Self::copy_next_match`].
    fn load_arrived_packets(&mut self, live: &LiveCapture) {
        if let Some(all) = &mut self.all_interfaces {
            all.load_arrived_packets();
            if all.update_interfaces(&mut self.capture) {
                live.select_new_doorbells(&self.capture);
            }
        }
        self.capture.load_arrived_frames();
    }

    /// Checks that the capture continues. If the daemon has ended the capture, continues it with
    /// kernel programs of this process, if possible, and reports the interruption. Fails with the
    /// reason if no interface can be captured any longer.
    fn check_capture(&mut self, live: &LiveCapture) -> Result<(), String> {
        let Err(failure) = self.capture.check_for_failure() else { return Ok(()) };
        let is_continued = match &mut self.all_interfaces {
            Some(all) => all.update(&mut self.capture)?,
            None => {
                self.capture.forget_failed_interfaces();
                let added = self.capture.add_interface(&live.device);
                added.map_err(|_| failure.to_string())?;
                true
            }
        };
        if is_continued {
            live.select_new_doorbells(&self.capture);
            report::report_interruption(&live.device, &failure.to_string());
        }
        Ok(())
    }

    /// Copies the next packet that matches the filter and the direction. Returns false if no packet
    /// is available.
    fn copy_next_match(&mut self, live: &LiveCapture, filter: Option<&Filter>) -> bool {
        match self.all_interfaces.is_some() {
            true => self.copy_next_packet(live, filter),
            false => self.copy_next_frame(live, filter),
        }
    }

    /// Copies the next frame of a single interface that matches the filter and the direction.
    /// Returns false if there is none.
    fn copy_next_frame(&mut self, live: &LiveCapture, filter: Option<&Filter>) -> bool {
        let snapshot = live.snapshot;
        let look = filter.map_or(snapshot, |filter| filter.examined_bytes).min(FRAME_BYTES_MAX);
        let buffer = &mut self.buffer;
        let decide = |frame: &CapturedFrame, bytes: &[u8]| {
            let kept = filter.map_or(snapshot, |filter| filter.run(frame, bytes, buffer));
            let is_wanted = live.wants_direction(frame.is_sent) && kept > 0;
            is_wanted.then(|| frame.captured.min(snapshot).min(kept))
        };
        let Some((frame, copied)) = self.capture.next_frame(&mut self.bytes, look, decide) else {
            return false;
        };
        self.finish_packet(live, frame.time_ns, (copied, frame.wire_length));
        true
    }

    /// Copies the next packet of the device `any` that matches the filter and the direction, with
    /// its cooked header. The packets of the rings and of the packet socket are merged in time
    /// order. Returns false if no packet is available.
    fn copy_next_packet(&mut self, live: &LiveCapture, filter: Option<&Filter>) -> bool {
        loop {
            let Some(all) = &mut self.all_interfaces else { return false };
            let in_socket = all.next_time();
            let until_ns = in_socket.unwrap_or(u64::MAX);
            let found = self.copy_packet_from_ring(live, (filter, until_ns)).or_else(|| {
                // Later packets must be merged with frames that may be in the rings by now.
                let is_visible =
                    in_socket.is_some_and(|time| time <= self.capture.last_load_time());
                is_visible.then(|| self.take_packet_from_socket())?
            });
            let Some(packet) = found else { return false };
            if packet.is_from_socket && !self.is_wanted(live, filter, &packet) {
                continue;
            }
            let link = LinkType(live.datalink().cast_unsigned());
            let Some(finished) = packet.write_cooked_header(link, &mut self.bytes) else {
                continue;
            };
            self.offset = finished.offset;
            let captured = finished.captured.min(live.snapshot);
            self.finish_packet(live, packet.time_ns, (captured, finished.length));
            live.counts.from_socket.fetch_add(u64::from(packet.is_from_socket), Ordering::Relaxed);
            return true;
        }
    }

    /// Copies the next matching packet in the rings. Returns `None` if there is none with a time of
    /// at most `until_ns`.
    fn copy_packet_from_ring(
        &mut self,
        live: &LiveCapture,
        (filter, until_ns): (Option<&Filter>, u64),
    ) -> Option<Packet> {
        let (all, buffer) = (self.all_interfaces.as_ref()?, &mut self.buffer);
        let snapshot = live.snapshot;
        let look = filter.map_or(snapshot, |filter| filter.examined_bytes) + ETHERNET_HEADER_MAX;
        let decide = |frame: &CapturedFrame, bytes: &[u8]| {
            let (header, at) = all.cooked_header(frame, bytes)?;
            let payload = (bytes.get(at..)?, payload_length(frame, at));
            let kept = filter
                .map_or(snapshot, |filter| buffer.run_on_cooked_packet(filter, &header, payload));
            let is_wanted = live.wants_direction(frame.is_sent) && kept > 0;
            is_wanted.then(|| frame.captured.min(snapshot + ETHERNET_HEADER_MAX))
        };
        let to = self.bytes.get_mut(FRAME_OFFSET..)?;
        let (frame, copied) =
            self.capture.next_frame_until(until_ns, to, look.min(FRAME_BYTES_MAX), decide)?;
        let bytes = to.get(..copied)?;
        let (header, at) = all.cooked_header(&frame, bytes)?;
        Some(Packet {
            header,
            vlan: outermost_tag(bytes),
            offset: FRAME_OFFSET + at,
            captured: copied.checked_sub(at)?,
            length: payload_length(&frame, at),
            time_ns: frame.time_ns,
            is_from_socket: false,
        })
    }

    /// Removes and returns the packet that was last received from the packet socket; `None` if
    /// there is none.
    fn take_packet_from_socket(&mut self) -> Option<Packet> {
        self.all_interfaces.as_mut()?.take_packet(&mut self.bytes)
    }

    /// Returns true if a packet matches the filter and the direction.
    fn is_wanted(&mut self, live: &LiveCapture, filter: Option<&Filter>, packet: &Packet) -> bool {
        let bytes = self.bytes.get(packet.offset..).unwrap_or_default();
        let payload = (bytes.get(..packet.captured).unwrap_or_default(), packet.length);
        let kept = filter
            .map_or(1, |filter| self.buffer.run_on_cooked_packet(filter, &packet.header, payload));
        kept > 0 && live.wants_direction(packet.header.kind == OUTGOING)
    }

    /// Fills in the header of the current packet, and counts the packet.
    fn finish_packet(
        &mut self,
        live: &LiveCapture,
        time_ns: u64,
        (captured, length): (usize, u32),
    ) {
        let (second, rest) = (1_000_000_000, time_ns % 1_000_000_000);
        self.header = PacketHeader {
            seconds: (time_ns / second).cast_signed(),
            fraction: (if live.has_nanoseconds { rest } else { rest / 1000 }).cast_signed(),
            captured: u32::try_from(captured).unwrap_or(u32::MAX),
            length,
        };
        live.counts.given.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the length on the wire of the packet at an offset of a frame, in bytes.
fn payload_length(frame: &CapturedFrame, at: usize) -> u32 {
    frame.wire_length.saturating_sub(u32::try_from(at).unwrap_or(u32::MAX))
}
