//! Sending of packets to a queue.
//!
//! A sender sends packets from frames of the shared memory in place, copies other bytes into free
//! frames, and reports in order how many packets the kernel has taken. A device without room drops
//! the packet that the kernel has just passed to it (EBUSY). The sender then puts that packet back
//! before the others, so no packet is lost or reordered. This method relies on copy mode, in which
//! the kernel reads the ring only during calls by this process. A zero-copy device never drops
//! packets in this way.
//!
//! The dropped packet is identified as follows. After sending at least one packet, the kernel
//! publishes its read position (`__xsk_tx_release`, Linux 6.6), so the dropped packet is the last
//! one taken. If the kernel has sent no packet, it publishes nothing, so the dropped packet is the
//! first one waiting. In the latter case, the entry of the packet remains in the ring as a *ghost*
//! until the position advances.

use super::frames::Frames;
use super::ring::XdpDescriptor;
use super::socket::{SocketSettings, WakeOutcome, XdpSocket};
use crate::error::Result;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Maximum number of descriptors per packet (MAX_SKB_FRAGS, plus one for the head).
const FRAGMENTS_MAX: usize = 18;

/// A sender of packets to one queue of an interface.
#[derive(Debug)]
pub struct XdpSender {
    socket: XdpSocket,
    frames: Arc<Frames>,
    /// Entries in the send ring that the kernel has not taken, oldest first.
    queued: VecDeque<SendRingEntry>,
    /// Number of packets in `queued`, except ghosts, whose entries the kernel has already read.
    packets: usize,
    /// Number of sent frames, including those in `queued`, that the kernel has not yet returned
    /// through the completion ring.
    in_flight: usize,
    back: Vec<u64>,
    /// Descriptors of the packet that the kernel took last, in case the device has dropped it.
    last: Vec<XdpDescriptor>,
    fragments: bool,
}

/// An entry in the send ring: a part of a packet.
#[derive(Clone, Copy, Debug)]
struct SendRingEntry {
    at: XdpDescriptor,
    /// True if the kernel has read this entry without publishing its new read position. If the
    /// entry's packet is queued again, only the new entry counts as a packet.
    is_ghost: bool,
}

/// A packet, or a part of one, to be queued for sending.
#[derive(Clone, Copy, Debug)]
pub enum TxPacket<'a> {
    /// A part of a received frame ([`Frames::find_descriptor`]), which the sender retains until it
    /// has been sent.
    InPlace(XdpDescriptor),
    /// Bytes outside the frames, which the sender copies.
    Copied(&'a [u8]),
}

/// The result of [`XdpSender::push`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Number of packets newly taken by the kernel, counted from the oldest.
    pub taken: usize,
    /// True if the device had no room for the packet that follows the taken packets.
    pub refused: bool,
    /// Number of packets lost because the ring had no room to put them back.
    pub lost: usize,
}

impl XdpSender {
    /// Opens a sender that uses `frames`, in the calling thread's network namespace.
    pub fn open(frames: &Arc<Frames>, settings: SocketSettings) -> Result<Self> {
        // bind(2) requires a fill ring, though it stays unused.
        let settings =
            SocketSettings { fill: settings.tx.min(FILL_RING_ENTRIES), rx: 0, ..settings };
        let socket = frames.bind(settings)?;
        Ok(Self {
            socket,
            frames: Arc::clone(frames),
            queued: VecDeque::new(),
            packets: 0,
            in_flight: 0,
            back: Vec::new(),
            last: Vec::new(),
            fragments: settings.fragments,
        })
    }

    /// Returns the frames in shared memory from which this sender sends.
    #[must_use]
    pub const fn frames(&self) -> &Arc<Frames> {
        &self.frames
    }

    /// Returns the maximum length of a packet in bytes.
    #[must_use]
    pub fn packet_length_max(&self) -> usize {
        self.frames.frame_size() * if self.fragments { FRAGMENTS_MAX - 1 } else { 1 }
    }

    /// Returns the number of queued packets that the kernel has not yet taken.
    #[must_use]
    pub const fn queued_packet_count(&self) -> usize {
        self.packets
    }

    /// Returns the number of frames that the kernel has not yet returned through the completion
    /// ring.
    #[must_use]
    pub const fn in_flight_frame_count(&self) -> usize {
        self.in_flight
    }

    /// Returns true if the device reads the shared memory without a copy by the kernel.
    #[must_use]
    pub const fn is_zero_copy(&self) -> bool {
        self.socket.is_zero_copy()
    }

    /// Queues a packet. Returns false if the ring or the free frames are exhausted; retry after
    /// [`XdpSender::push`]. Always returns false for an empty packet, for a packet of more than 17
    /// frames, and for a part of a frame that is free or lent to the kernel.
    pub fn enqueue(&mut self, packet: TxPacket<'_>) -> Result<bool> {
        let Some(tx) = self.socket.tx.as_mut() else { return Ok(false) };
        // Keeps room for one packet, so that a dropped one can be put back.
        if (tx.free_entries()? as usize) < 2 * FRAGMENTS_MAX {
            return Ok(false);
        }
        let mut entries = [XdpDescriptor::default(); FRAGMENTS_MAX];
        let count = match packet {
            TxPacket::InPlace(descriptor) => {
                entries[0] = XdpDescriptor { is_continued: false, ..descriptor };
                usize::from(self.frames.retain(descriptor.address))
            }
            TxPacket::Copied(bytes) => copy_into_frames(&self.frames, bytes, &mut entries),
        };
        let entries = entries.get(..count).unwrap_or_default();
        if entries.is_empty() {
            return Ok(false);
        }
        let given = tx.enqueue(entries)?;
        debug_assert_eq!(given, entries.len(), "there was room");
        self.queued.extend(entries.iter().map(|at| SendRingEntry { at: *at, is_ghost: false }));
        self.packets += 1;
        self.in_flight += entries.len();
        Ok(true)
    }

    /// Makes the kernel take as many queued packets as it can at present.
    ///
    /// Fails with ENETDOWN if the interface is down, and with ENXIO if it no longer exists.
    pub fn push(&mut self) -> Result<PushReport> {
        self.release_sent_frames()?;
        let woken = self.wake_kernel()?;
        self.last.clear();
        let mut pushed =
            PushReport { taken: self.remove_taken_entries()?, ..PushReport::default() };
        if woken == WakeOutcome::Refused && !self.is_zero_copy() {
            pushed.refused = true;
            // The dropped packet is the last packet published as taken or, if there is none, the
            // first waiting packet.
            match self.last.is_empty() {
                false => pushed.taken -= 1,
                true => self.mark_first_packet_as_ghost(),
            }
            if !self.put_back_last_packet()? {
                pushed.lost = 1;
            }
        }
        self.release_sent_frames()?;
        Ok(pushed)
    }

    /// Withdraws the packets that the kernel has not taken. Returns the number of packets
    /// withdrawn. The kernel later skips the entries of these packets.
    pub fn withdraw(&mut self) -> Result<usize> {
        let Some(tx) = self.socket.tx.as_mut() else { return Ok(0) };
        let packets = std::mem::take(&mut self.packets);
        let ghosts = self.queued.iter().take_while(|entry| entry.is_ghost).count();
        tx.skip_last(self.queued.len() - ghosts)?;
        for entry in self.queued.drain(ghosts..) {
            self.in_flight -= usize::from(self.frames.release(entry.at.address));
        }
        Ok(packets)
    }

    /// Wakes the kernel if necessary, repeatedly, because the kernel stops sending at each skipped
    /// entry.
    fn wake_kernel(&mut self) -> Result<WakeOutcome> {
        let Some(tx) = self.socket.tx.as_ref().filter(|tx| tx.needs_wakeup()) else {
            return Ok(WakeOutcome::Done);
        };
        let mut left = tx.pending_entries()?;
        while left > 0 {
            let woken = self.socket.wake_tx()?;
            let before = std::mem::replace(&mut left, tx.pending_entries()?);
            if woken != WakeOutcome::Done || left == before {
                return Ok(woken);
            }
        }
        Ok(WakeOutcome::Done)
    }

    /// Releases the frames that the completion ring reports as sent.
    fn release_sent_frames(&mut self) -> Result<()> {
        let Some(completion) = self.socket.completion.as_mut() else { return Ok(()) };
        loop {
            self.back.clear();
            if completion.take(&mut self.back, 256)? == 0 {
                return Ok(());
            }
            for address in &self.back {
                self.in_flight -= usize::from(self.frames.release(*address));
            }
        }
    }

    /// Removes from `queued` the entries that the kernel has taken, and keeps those of the last
    /// packet in `last`. Returns the number of packets taken, except ghosts, which have been
    /// counted before.
    fn remove_taken_entries(&mut self) -> Result<usize> {
        let Some(tx) = self.socket.tx.as_ref() else { return Ok(0) };
        let left = tx.pending_entries()? as usize;
        let mut taken = 0;
        while self.queued.len() > left {
            let Some(SendRingEntry { at, is_ghost: false }) = self.queued.pop_front() else {
                continue;
            };
            if self.last.last().is_none_or(|last| !last.is_continued) {
                self.last.clear();
            }
            self.last.push(at);
            taken += usize::from(!at.is_continued);
        }
        self.packets = self.packets.saturating_sub(taken);
        Ok(taken)
    }

    /// Makes the first waiting packet a ghost: a packet that the kernel has taken without
    /// publishing its new read position.
    fn mark_first_packet_as_ghost(&mut self) {
        for entry in self.queued.iter_mut().skip_while(|entry| entry.is_ghost) {
            entry.is_ghost = true;
            self.last.push(entry.at);
            if !entry.at.is_continued {
                self.packets -= 1;
                return;
            }
        }
    }

    /// Puts the packet in `last` back before the waiting packets, because the device has dropped
    /// it. Returns false if the ring has no room for it.
    fn put_back_last_packet(&mut self) -> Result<bool> {
        let Some(tx) = self.socket.tx.as_mut() else { return Ok(false) };
        if (tx.free_entries()? as usize) < self.last.len() {
            return Ok(false);
        }
        let ghosts = self.queued.iter().take_while(|entry| entry.is_ghost).count();
        for (number, at) in self.last.drain(..).enumerate() {
            // The frame is used once more, because its failed transmission completes separately.
            self.in_flight += usize::from(self.frames.retain(at.address));
            self.queued.insert(ghosts + number, SendRingEntry { at, is_ghost: false });
        }
        self.packets += 1;
        let all: Vec<XdpDescriptor> = self.queued.iter().map(|entry| entry.at).collect();
        tx.replace_pending_entries(&all)?;
        Ok(true)
    }
}

/// Copies bytes into free frames and returns the number of frames; 0 if too few frames are free, or
/// if 18 or more are needed.
fn copy_into_frames(
    frames: &Frames,
    bytes: &[u8],
    entries: &mut [XdpDescriptor; FRAGMENTS_MAX],
) -> usize {
    let parts = bytes.chunks(frames.frame_size());
    let count = parts.len();
    if count >= FRAGMENTS_MAX {
        return 0;
    }
    let mut done = 0;
    for (part, entry) in parts.zip(entries.iter_mut()) {
        let Some(address) = frames.take_send_frame() else { break };
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        // The frame was free, so no other code accesses it.
        let pasted = frames.umem().memory().store_bytes(at, part);
        debug_assert!(pasted, "a frame is in the memory");
        let length = u32::try_from(part.len()).unwrap_or(0);
        *entry = XdpDescriptor { address, length, is_continued: done + 1 < count };
        done += 1;
    }
    if done == count {
        return count;
    }
    for entry in entries.iter().take(done) {
        frames.release(entry.address);
    }
    0
}

impl AsFd for XdpSender {
    /// Returns the descriptor, which is writable when the send ring has room.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Number of entries of the fill ring. The kernel requires this ring alongside a completion ring,
/// although a sender receives nothing.
const FILL_RING_ENTRIES: u32 = 64;
