//! Transmission through an AF_XDP ring. Frames that are already in the ring's memory are sent
//! without a copy. All other frames are copied into this memory. [SL §5.5: the driver's own ring;
//! FEATURES G1, E5]
//!
//! Like a packet socket, the ring reports the number of frames that the kernel accepted, and the
//! reason why it stopped ([`SendReport`]). The sink therefore treats both transmitters in the same
//! way. A frame sent in place stays pinned until its transmission has completed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::net::{Interface, RouteSocket};
use sys::packet::{SendReport, SendStopReason};
use sys::xdp::{Frames, SocketSettings, TxPacket, XdpSender};

/// Number of entries in each of the two rings of the AF_XDP socket, for transmission and for
/// completion.
const RING_ENTRIES: u32 = 4096;
/// Number of frame buffers that the ring allocates if no source lends its memory.
const FRAME_BUFFER_COUNT: u32 = 1024;
/// Interval between two queries of the interface's MTU.
const MTU_QUERY_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the sink, when it finishes, checks whether all transmissions have completed.
const COMPLETION_CHECK_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum time to wait for outstanding transmissions when the sink finishes.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Length of an Ethernet header in bytes.
const ETHERNET_HEADER_SIZE: usize = 14;
/// Length of a VLAN tag in bytes.
const TAG_SIZE: usize = 4;

const EMSGSIZE: i32 = rustix::io::Errno::MSGSIZE.raw_os_error();
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

/// An AF_XDP transmitter on one interface.
#[derive(Debug)]
pub(super) struct XdpTxRing {
    sender: XdpSender,
    links: RouteSocket,
    index: u32,
    mtu: usize,
    mtu_read_at: Instant,
    /// Number of frames that were sent in place, without a copy.
    pub(super) sent_in_place: u64,
    /// Number of frames that were copied before they were sent.
    pub(super) copied: u64,
    /// Number of sends that were repeated because the device had no room.
    pub(super) retries: u64,
    /// Number of frames queued in the ring. Frames that could not be sent stay queued between
    /// calls.
    queued: usize,
    /// A flag for each queued frame: true if the frame is sent from the memory in which it arrived,
    /// without a copy.
    in_place: VecDeque<bool>,
}

impl XdpTxRing {
    /// Opens a transmitter on an interface. It sends from the frame buffers `frames`, for example
    /// those that a source lends.
    pub(super) fn open(
        frames: &Arc<Frames>,
        found: &Interface,
        links: RouteSocket,
    ) -> sys::Result<Self> {
        // Fragments need Linux 6.6 or later. Such kernels also publish their read position.
        let settings =
            SocketSettings { fragments: true, ..SocketSettings::new(found.index, 0, RING_ENTRIES) };
        let sender = XdpSender::open(frames, settings)?;
        let (index, mtu) = (found.index, found.mtu as usize);
        let mtu_read_at = Instant::now();
        Ok(Self {
            sender,
            links,
            index,
            mtu,
            mtu_read_at,
            sent_in_place: 0,
            copied: 0,
            retries: 0,
            queued: 0,
            in_place: VecDeque::new(),
        })
    }

    /// Opens a transmitter with frame buffers of its own, for use without a source that lends
    /// memory.
    pub(super) fn open_with_own_memory(found: &Interface, links: RouteSocket) -> sys::Result<Self> {
        Self::open(&Frames::create("streamline-send", FRAME_BUFFER_COUNT)?, found, links)
    }

    /// Sends frames in order until the kernel rejects one. The caller must send the rejected frame
    /// again, or drop it with [`XdpTxRing::drop_rejected_frame`].
    pub(super) fn send(&mut self, frames: &[&[u8]]) -> SendReport {
        self.refresh_mtu();
        let mut stopped = None;
        while let Some(frame) = frames.get(self.queued) {
            if frame.len() > self.frame_length_max(frame) {
                stopped = Some(SendStopReason::Refused(EMSGSIZE));
                break;
            }
            if frame.len() < ETHERNET_HEADER_SIZE {
                stopped = Some(SendStopReason::Refused(EINVAL));
                break;
            }
            match self.queue_frame(frame) {
                Ok(true) => self.queued += 1,
                Ok(false) => {
                    stopped = Some(SendStopReason::NoRoom(EAGAIN));
                    break;
                }
                Err(error) => {
                    return self.record_sent_frames(0, Some(SendStopReason::Refused(error.errno)));
                }
            }
        }
        let mut all = 0;
        loop {
            let pushed = match self.sender.push() {
                Ok(pushed) => pushed,
                Err(error) => {
                    return self
                        .record_sent_frames(all, Some(SendStopReason::Refused(error.errno)));
                }
            };
            all += pushed.taken;
            self.retries += u64::from(pushed.refused && pushed.lost == 0);
            if pushed.lost > 0 {
                // The frame is lost together with its ring entry, so it counts as dropped.
                let outcome = self.record_sent_frames(all, Some(SendStopReason::Refused(ENOBUFS)));
                self.drop_rejected_frame().ok();
                return outcome;
            }
            if self.sender.queued_packet_count() == 0 {
                return self.record_sent_frames(all, stopped);
            }
            if pushed.taken == 0 {
                return self.record_sent_frames(all, Some(SendStopReason::NoRoom(EAGAIN)));
            }
        }
    }

    /// Drops the frame that the last call to `send` could not send. The frames queued after it are
    /// removed from the ring too, and must be sent again.
    pub(super) fn drop_rejected_frame(&mut self) -> sys::Result<()> {
        self.queued = 0;
        self.in_place.clear();
        self.sender.withdraw().map(drop)
    }

    /// Blocks until the kernel has transmitted all accepted frames. Stops waiting after
    /// [`FINISH_TIMEOUT`], or when a system call fails. Returns the number of frames whose
    /// transmission has not been completed.
    pub(super) fn finish(&mut self) -> usize {
        let begin = Instant::now();
        while self.sender.in_flight_frame_count() > 0
            && begin.elapsed() < FINISH_TIMEOUT
            && self.sender.push().is_ok()
        {
            // Polling the socket would trigger transmission without reporting its errors.
            std::thread::sleep(COMPLETION_CHECK_INTERVAL);
        }
        self.sender.in_flight_frame_count()
    }

    fn record_sent_frames(&mut self, frames: usize, stopped: Option<SendStopReason>) -> SendReport {
        self.queued = self.queued.saturating_sub(frames);
        for in_place in self.in_place.drain(..frames.min(self.in_place.len())) {
            self.sent_in_place += u64::from(in_place);
            self.copied += u64::from(!in_place);
        }
        SendReport { frames, stopped }
    }

    fn queue_frame(&mut self, frame: &[u8]) -> sys::Result<bool> {
        let extent = self.sender.frames().find_descriptor(frame);
        let is_queued =
            self.sender.enqueue(extent.map_or(TxPacket::Copied(frame), TxPacket::InPlace))?;
        if is_queued {
            self.in_place.push_back(extent.is_some());
        }
        Ok(is_queued)
    }

    /// Returns the maximum length of this frame on the interface. A VLAN tag does not count towards
    /// the MTU, as described in packet(7).
    fn frame_length_max(&self, frame: &[u8]) -> usize {
        let tagged =
            frame.get(12..14).is_some_and(|kind| kind == [0x81, 0] || kind == [0x88, 0xa8]);
        let length_max = self.mtu + ETHERNET_HEADER_SIZE + if tagged { TAG_SIZE } else { 0 };
        length_max.min(self.sender.packet_length_max())
    }

    /// Queries the MTU of the interface again if [`MTU_QUERY_INTERVAL`] has passed.
    fn refresh_mtu(&mut self) {
        if self.mtu_read_at.elapsed() < MTU_QUERY_INTERVAL {
            return;
        }
        self.mtu_read_at = Instant::now();
        if let Ok(interface) = self.links.interface_by_index(self.index) {
            self.mtu = interface.mtu as usize;
        }
    }
}
