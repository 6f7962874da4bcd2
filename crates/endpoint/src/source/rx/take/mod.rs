//! `rx IF take`: receives frames by AF_XDP and withholds them from the host. [SL §5.5; CONTRACT 2,
//! 3, 6]
//!
//! The source emits one block per frame, without a copy, in the memory that the kernel fills. A
//! frame buffer returns to the kernel when the last filter, sink or ring reader releases it. A
//! packet that spans several buffers is reassembled by a copy into the general memory of its space.
//! Frames are received at XDP, before generic receive offload. A frame therefore has the length
//! delivered by the driver and contains its VLAN tag, and checksum offload is not reported.
//!
//! - [`device`]: sockets, memory and program of an interface, set up without loss;
//! - [`poll_pause`]: pauses between polls at high frame rates;
//! - [`routes`]: interfaces protected from accidental use;
//! - [`ssh_connection`]: protection of the user's own connection, if only some flows are taken;
//! - [`exits`]: frames classified by a program, with their exits.

mod device;
mod exits;
mod poll_pause;
mod routes;
mod ssh_connection;

use super::unpack::{TAG_SIZE, reinsert_tag_bytes};
use super::{HELD_SEGMENT_CHECK_INTERVAL_NS, LINK_DOWN_CHECK_INTERVAL_NS};
use crate::interface::{FrameCount, interface_removed_failure};
use crate::{
    DropReason, Failure, Intake, OpenArguments, Source, SourceCounters, SourceProperties,
    SourceStatus,
};
use abi::{BlockFlags, BlockMetadata, Class, DbufId, Entry, Extent, Marks, RichPointer};
pub use device::{LoadArguments, ProgramLoader};
use device::{TakeDevice, TakeParameters};
pub use exits::{
    EXIT_NUMBER_SIZE, FirstHeader, METADATA_SLOTS_MAX, METADATA_TAIL_SIZE, SLOT_SIZE,
    metadata_tail_offset,
};
use exits::{FrameMetadata, ProgramExits};
use filter::{Amount, Time};
use poll_pause::PollPause;
pub use ssh_connection::check_ssh_connection_unmatched;
use std::os::fd::{AsFd as _, BorrowedFd};
use sys::packet::layout::VlanTag;
use sys::xdp::{FrameStamp, XdpDescriptor};
use wire::link::LinkType;

struct TakeSource {
    device: TakeDevice,
    origin: u16,
    pieces: Vec<XdpDescriptor>,
    entries: Vec<Entry>,
    /// Edges on which frames leave the XDP program, with their queued blocks; `None` if the program
    /// does not classify frames but redirects all of them.
    exits: Option<ProgramExits>,
    reassembly: Reassembly,
    pause: PollPause,
    emitted: Amount,
    /// Number of frames dropped because they are longer than a block.
    too_long: u64,
    /// Number of frames left in the rings when the source was closed.
    unread: u64,
    stopped: bool,
    closed: bool,
}

/// State for reassembling a packet that spans several buffers: the bytes that have been received so
/// far.
#[derive(Debug, Default)]
struct Reassembly {
    bytes: Vec<u8>,
    time: Time,
    front: Option<FrameMetadata>,
    /// True if all bytes of the packet have been received.
    is_complete: bool,
}

/// Opens a source that takes all frames of an interface.
pub(super) fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    Ok(Box::new(TakeSource::open(opening, None)?))
}

/// Opens a source that takes the frames which an XDP program redirects. `loader` loads the program.
/// `headers` contains, for each exit of the program, the header with which its frames begin.
/// `slots` is the number of metadata slots that the program writes before each frame (see `exits`).
pub fn open_with_program(
    opening: &OpenArguments<'_>,
    (headers, slots): (Vec<FirstHeader>, usize),
    loader: ProgramLoader<'_>,
) -> Result<Box<dyn Source>, Failure> {
    let source = TakeSource::open(opening, Some(loader))?;
    Ok(Box::new(TakeSource { exits: Some(ProgramExits::new(headers, slots)), ..source }))
}

impl TakeSource {
    fn open(
        opening: &OpenArguments<'_>,
        loader: Option<ProgramLoader<'_>>,
    ) -> Result<Self, Failure> {
        let arguments = opening.arguments;
        let Some(interface) = arguments.text("interface") else {
            let hint = "name the interface: `rx eth0 take`";
            return Err(Failure::new(
                "take from",
                "all interfaces",
                "frames are taken from one interface at a time",
            )
            .with_hint(hint));
        };
        if arguments.flag("both") {
            let why = "frames that the host sends cannot be taken";
            let hint = "leave `both=yes` or `take` out";
            return Err(Failure::new("take from", interface, why).with_hint(hint));
        }
        let device = TakeDevice::open(&TakeParameters {
            interface,
            netns: arguments.text("netns"),
            ring: arguments.number("ring"),
            promiscuous: arguments.flag("promisc"),
            force: opening.force,
            loader,
            steps: opening.rollback_log,
        })?;
        let room = device.frames.count() / device.queues.len().max(1);
        Ok(Self {
            pause: PollPause::new(opening.latency, room),
            device,
            origin: opening.origin,
            pieces: Vec::new(),
            entries: Vec::new(),
            exits: None,
            reassembly: Reassembly::default(),
            emitted: Amount::default(),
            too_long: 0,
            unread: 0,
            stopped: false,
            closed: false,
        })
    }
}

impl Source for TakeSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        self.device.lend_buffers()?;
        self.entries.clear();
        let clock = WallClock::measure();
        self.emit_reassembled_packet(intake);
        if self.exits.as_ref().is_none_or(|exits| exits.queued_block_count() == 0) {
            self.receive_packets(intake, &clock)?;
        }
        if self.device.queues.len() > 1 {
            // Each queue is in order, and a session stays in one queue, so sorting by time keeps
            // the order of each session (CONTRACT 16).
            self.entries.sort_by_key(|entry| entry.context.time);
            self.exits.iter_mut().for_each(ProgramExits::sort_by_time);
        }
        if let Some(exits) = &mut self.exits {
            let pools = [intake.pool, intake.own_pool.unwrap_or(intake.pool)];
            exits.take_queued_blocks(intake.room(), pools, &mut self.entries);
            intake.arc = Some(exits.edge);
        }
        let put = intake.append_block_entries(self.entries.iter().copied());
        debug_assert_eq!(put, self.entries.len(), "at most as many entries as there is room for");
        for entry in self.entries.iter().take(put) {
            self.emitted.add_block(entry.pointer.length());
        }
        self.pause.count_received_frames(put);
        if put > 0 { Ok(SourceStatus::Blocks) } else { self.status_without_frames(intake) }
    }

    fn counters(&self) -> SourceCounters {
        let (counted, lost) = self.device.counters();
        let (observed_blocks, mut dropped) = match &self.exits {
            None => {
                let dropped = self.device.losses.losses_before_socket();
                let observed_blocks =
                    dropped.iter().map(|(_, count)| *count).chain([Some(counted.redirected)]);
                (observed_blocks.sum::<Option<u64>>(), dropped)
            }
            // The program counts its own input. The owner of the program reports this count.
            Some(_) => {
                let received = self.emitted.blocks + self.too_long + self.unread;
                (lost.map(|lost| lost + received), Vec::new())
            }
        };
        dropped.push((DropReason::Ring, lost));
        let left = [("too long".into(), self.too_long), (DropReason::Unread, self.unread)];
        let left = left.into_iter().filter(|(_, count)| *count > 0);
        dropped.extend(left.map(|(why, count)| (why, Some(count))));
        // The kernel does not count the bytes of lost frames.
        let observed = observed_blocks.map(|blocks| Amount { blocks, bytes: self.emitted.bytes });
        SourceCounters {
            remark: self.device.user_note(),
            observed,
            given: self.emitted,
            dropped,
            arrived: self.exits.as_ref().map_or_else(Vec::new, ProgramExits::counts),
            ..SourceCounters::default()
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.group.as_fd())
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties {
            lender: Some(self.device.frames.clone()),
            chooses_arc: self.exits.is_some(),
            ..SourceProperties::default()
        }
    }

    fn stop(&mut self) -> bool {
        self.stopped = self.stopped || self.device.detach();
        self.stopped
    }

    fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            self.device.detach();
            self.unread = self.discard_unread_packets();
        }
    }
}

impl TakeSource {
    /// Receives packets from all queues in turn. Each queue gets at most an equal share of the
    /// intake's room; only the remaining buffers of a packet that has been received in part may
    /// exceed it. Stops at a reassembled packet that cannot be emitted yet.
    fn receive_packets(&mut self, intake: &Intake<'_>, clock: &WallClock) -> Result<(), Failure> {
        let room = intake.room().saturating_sub(self.pending_block_count());
        let share = room.div_ceil(self.device.queues.len().max(1));
        let mut left = room;
        for number in 0..self.device.queues.len() {
            if self.reassembly.is_complete {
                return Ok(());
            }
            self.pieces.clear();
            self.receive_from_queue(number, share.min(left))?;
            left -= self.pieces.len();
            let pieces = std::mem::take(&mut self.pieces);
            for piece in &pieces {
                self.add_packet_buffer(*piece, intake, clock)?;
            }
            self.pieces = pieces;
            // The remaining buffers of a packet are in the same queue.
            while !self.reassembly.bytes.is_empty() && !self.reassembly.is_complete {
                self.pieces.clear();
                if self.receive_from_queue(number, 1)? == 0 {
                    return Err(self.broken_packet_failure("a packet ends in the middle"));
                }
                if let Some(piece) = self.pieces.first().copied() {
                    self.add_packet_buffer(piece, intake, clock)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the number of received blocks that have not been emitted yet.
    fn pending_block_count(&self) -> usize {
        self.entries.len() + self.exits.as_ref().map_or(0, ProgramExits::queued_block_count)
    }

    fn receive_from_queue(&mut self, number: usize, count_max: usize) -> Result<usize, Failure> {
        let Some(queue) = self.device.queues.get_mut(number) else { return Ok(0) };
        queue
            .receive(&mut self.pieces, count_max)
            .map_err(|error| Failure::new("take from", &self.device.name, error))
    }

    /// Adds one received buffer: as a frame, if the buffer holds an entire packet, which is usual,
    /// and otherwise as a part of the packet that is being reassembled.
    fn add_packet_buffer(
        &mut self,
        piece: XdpDescriptor,
        intake: &Intake<'_>,
        clock: &WallClock,
    ) -> Result<(), Failure> {
        let located = self.device.frames.locate_address(piece.address);
        let arrived =
            located.and_then(|(slot, at)| Some((intake.pool.draft_arrived_slot(slot)?, at)));
        let Some((mut draft, at)) = arrived else {
            return Err(self.broken_packet_failure("a frame arrived a second time"));
        };
        let end = at + piece.length as usize;
        let first = self.reassembly.bytes.is_empty();
        let mut at = at;
        if first {
            let stamp = match &self.exits {
                None => read_stamp(draft.get_mut(at.saturating_sub(FrameStamp::BYTES)..at)),
                Some(exits) => {
                    let Some((front, stamp)) = draft.get(at..end).and_then(|b| exits.read(b))
                    else {
                        drop(draft);
                        return Err(
                            self.broken_packet_failure("a frame lacks the header of its program")
                        );
                    };
                    at += exits.metadata_size();
                    self.reassembly.front = Some(front);
                    stamp
                }
            };
            self.reassembly.time = clock.time_of_day(stamp.time);
            at -= reinsert_vlan_tag(stamp.tag, at, &mut draft);
        }
        if first && !piece.is_continued {
            let head = [draft.get(at).copied().unwrap_or_default()];
            let place = draft.commit(end).subrange(to_page_offset(at), to_page_offset(end - at));
            self.add_frame((intake.pool.id(), place), &head);
            return Ok(());
        }
        self.reassembly.bytes.extend_from_slice(draft.get(at..end).unwrap_or_default());
        drop(draft);
        if !piece.is_continued {
            self.reassembly.is_complete = true;
            self.emit_reassembled_packet(intake);
        }
        Ok(())
    }

    /// Emits a reassembled packet if one is complete, and there is room and memory for it. A packet
    /// that is longer than a block of the pool is counted and dropped.
    fn emit_reassembled_packet(&mut self, intake: &Intake<'_>) {
        if !self.reassembly.is_complete || intake.room() <= self.pending_block_count() {
            return;
        }
        let pool = intake.own_pool.unwrap_or(intake.pool);
        let bytes = &self.reassembly.bytes;
        if bytes.len() > pool.block_length_max() {
            self.too_long += 1;
        } else {
            let copied = pool.append(bytes.len(), |room| {
                room.copy_from_slice(bytes);
                bytes.len()
            });
            // Without memory, the next `produce` tries again.
            let Some((place, _)) = copied else { return };
            let head = [bytes.first().copied().unwrap_or_default()];
            self.add_frame((pool.id(), place), &head);
        }
        self.reassembly.bytes.clear();
        self.reassembly.is_complete = false;
    }

    /// Converts a complete frame at `at` into one block. If the XDP program classifies frames,
    /// converts the frame into one block for each edge on which the frame leaves the program.
    /// `head` contains the first bytes of the frame.
    fn add_frame(&mut self, at: (DbufId, Extent), head: &[u8]) {
        let stamped = (self.origin, self.reassembly.time);
        match (&mut self.exits, &self.reassembly.front) {
            (Some(exits), Some(front)) => exits.queue_frame(front, at, head, stamped),
            _ => self.entries.push(self.entry(at)),
        }
    }

    fn entry(&self, (dbuf, place): (DbufId, Extent)) -> Entry {
        let (origin, time) = (self.origin, self.reassembly.time);
        let context = BlockMetadata { time, session: 0, origin, flags: BlockFlags::NONE };
        let marks = Marks::frame(LinkType::ETHERNET.0, place.length(), place.length());
        Entry::new(RichPointer::new(dbuf, place, Class::YES), context, marks)
    }

    /// Returns the status for a call to `produce` that has emitted no frames.
    fn status_without_frames(&mut self, intake: &Intake<'_>) -> Result<SourceStatus, Failure> {
        let soon = Some(intake.now + HELD_SEGMENT_CHECK_INTERVAL_NS);
        if self.reassembly.is_complete {
            // The queues may contain more frames, which must wait for this packet.
            return Ok(SourceStatus::Wait { until: soon, readable: false });
        }
        if self.stopped {
            return Ok(SourceStatus::End);
        }
        if self.device.is_gone() {
            let frames = self.emitted.blocks;
            // If a program classifies the frames before the source, the program may have dropped
            // frames that are not counted here.
            let counts = match self.exits {
                None => FrameCount::All(frames),
                Some(_) => FrameCount::Passed(frames),
            };
            return Err(interface_removed_failure("take from", &self.device.name, counts));
        }
        if let Some(until) = self.pause.begin_pause(intake.now) {
            return Ok(SourceStatus::retry_at(until));
        }
        // Holders release frames without notification, and an AF_XDP socket does not wake its
        // poller when the interface is removed, so the wait is bounded.
        let until = soon
            .filter(|_| intake.pool.outstanding_segments() > 0)
            .or(Some(intake.now + LINK_DOWN_CHECK_INTERVAL_NS));
        Ok(SourceStatus::Wait { until, readable: true })
    }

    /// Discards all packets that have not been emitted: those in the rings, the queued blocks, and
    /// a reassembled packet. Counts each packet as unread on every edge on which it left the XDP
    /// program. Returns the number of discarded packets and blocks.
    fn discard_unread_packets(&mut self) -> u64 {
        let mut packets = u64::from(self.reassembly.is_complete);
        if let Some(exits) = &mut self.exits {
            packets += exits.queued_block_count() as u64;
            exits.discard_queued_blocks();
            if let Some(front) = self.reassembly.front.filter(|_| self.reassembly.is_complete) {
                exits.count_frame_as_unread(&front);
            }
        }
        for queue in &mut self.device.queues {
            self.pieces.clear();
            // Unreadable frames are not counted. The ledger then does not balance, which reveals
            // their loss.
            let _ = queue.receive(&mut self.pieces, usize::MAX);
            packets += self.pieces.iter().filter(|piece| !piece.is_continued).count() as u64;
            let Some(exits) = &mut self.exits else { continue };
            let mut begins = true;
            for piece in &self.pieces {
                let mut bytes = vec![0; exits.metadata_size()];
                if begins && self.device.frames.copy(piece.address, &mut bytes) {
                    let read = exits.read(&bytes);
                    read.iter().for_each(|(front, _)| exits.count_frame_as_unread(front));
                }
                begins = !piece.is_continued;
            }
        }
        packets
    }

    fn broken_packet_failure(&self, what: &str) -> Failure {
        Failure::new("take from", &self.device.name, format!("the kernel's rings: {what}"))
    }
}

/// A converter from monotonic time to the time of day.
struct WallClock {
    real: Time,
    /// Time of day minus monotonic time, modulo 2⁶⁴.
    offset: Time,
}

impl WallClock {
    fn measure() -> Self {
        let real = sys::clock::realtime_ns();
        Self { real, offset: real.wrapping_sub(sys::clock::monotonic_ns()) }
    }

    /// Converts a monotonic time to the time of day. For `None`, returns the time of day at which
    /// this converter was created.
    fn time_of_day(&self, stamp: Option<Time>) -> Time {
        stamp.map_or(self.real, |stamp| stamp.wrapping_add(self.offset))
    }
}

/// Reads the stamp that an XDP program has written to the bytes before a frame. Returns the default
/// stamp if there are no such bytes, or too few.
fn read_stamp(before: Option<&mut [u8]>) -> FrameStamp {
    before.and_then(|bytes| bytes.first_chunk_mut()).map(FrameStamp::take).unwrap_or_default()
}

/// Reinserts the VLAN tag of the frame at `at`. Returns the number of bytes added to the frame.
fn reinsert_vlan_tag(tag: Option<VlanTag>, at: usize, frame: &mut [u8]) -> usize {
    tag.and_then(|tag| reinsert_tag_bytes(tag, at, frame)).map_or(0, |()| TAG_SIZE)
}

/// Converts an offset within a page to 32 bits, where it always fits.
fn to_page_offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
