//! The inside end of a writer: a source that emits the writer's bytes as blocks on the output of a
//! node.

use super::{DATA_PACKET_TYPE, END_PACKET_TYPE, PACKET_DATA_BYTES_MAX};
use crate::{DropReason, Failure, Intake, Source, SourceCounters, SourceStatus};
use abi::{BlockFlags, Class, Entry, Marks, RichPointer};
use filter::{Amount, Form, Time};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use wire::capture::{ReadOutcome, Reader};

/// The form of the bytes that a writer sends, which determines how they become blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriterForm {
    /// All bytes form one stream. The stream is one session.
    Stream,
    /// The bytes of each packet that the writer sends become one block.
    Blocks,
    /// Each line of text becomes a record.
    Lines,
    /// The bytes are a capture, and each of its packets becomes a frame.
    Capture,
}

impl WriterForm {
    /// Returns the form of the bytes that a program may write to a node. `output` is the form of
    /// the node's output. `capture` is true if the program writes a capture. Fails with the reason
    /// if the node does not accept such bytes.
    pub fn for_node_output(output: Form, capture: bool) -> Result<Self, String> {
        let name = output.name();
        match (output, capture) {
            (Form::Frame, true) => Ok(Self::Capture),
            (Form::Frame, false) => {
                Err("frames leave this filter: write a capture to all.pcap, or \
                                         bytes below a filter that reads them"
                    .to_owned())
            }
            (Form::Stream, false) => Ok(Self::Stream),
            (Form::Record, false) => Ok(Self::Lines),
            (Form::Bytes, false) => Ok(Self::Blocks),
            (_, true) => Err(format!(
                "a capture has frames, and {name} leaves this filter: write it to the source"
            )),
            (Form::Message, false) => Err("messages leave this filter, and bytes have no \
                                           description: write them to the stream before it"
                .to_owned()),
            (Form::Packet | Form::Segment, false) => Err(format!(
                "each {name} that leaves this filter belongs to a frame: write a capture to the \
                 source"
            )),
        }
    }
}

/// Session number of the next writer. The numbers decrease from the highest one, so that they
/// differ from the numbers that filters assign, which increase.
static NEXT_SESSION: AtomicU32 = AtomicU32::new(u32::MAX - 1);

/// Returns the session number for a new writer.
pub(crate) fn next_session_number() -> u32 {
    NEXT_SESSION.fetch_sub(1, Ordering::Relaxed)
}

/// A source that emits one writer's blocks. The source buffers received bytes until they form a
/// block.
#[derive(Debug)]
pub struct WriterSource {
    socket: OwnedFd,
    form: WriterForm,
    class: Class,
    session: u32,
    packet: Vec<u8>,
    /// Received bytes that have not been removed yet. Emitted bytes are removed once all complete
    /// blocks have been emitted.
    waiting: Vec<u8>,
    /// Number of bytes at the start of `waiting` that have been emitted.
    emitted: usize,
    capture: Reader,
    /// True if the next byte begins a line.
    line_begins: bool,
    /// Flags for the last block of the writer's session, or `None` until the writer has ended the
    /// session.
    ended: Option<BlockFlags>,
    /// Flags of the directions of the writer's session that have not ended yet, one entry per
    /// direction.
    open: Vec<BlockFlags>,
    emitted_amount: Amount,
    /// Amounts received from the writer that did not become blocks, by reason. Each packet counts
    /// as one block.
    lost: Vec<(DropReason, Amount)>,
}

/// Drop reason for bytes of a writer that are malformed, and for all bytes that follow them.
const UNREADABLE_BYTES_REASON: DropReason = DropReason::Named("unreadable");

/// Outcome of [`WriterSource::emit`].
enum EmitOutcome {
    /// All complete blocks that have been received were emitted.
    All,
    /// The batch is full, or the pool of the space has no free memory.
    Full,
}

impl WriterSource {
    /// Creates a source that emits the bytes arriving through a socket as blocks of the class
    /// `class`.
    #[must_use]
    pub fn new(socket: OwnedFd, form: WriterForm, class: Class) -> Self {
        let open = match form {
            WriterForm::Stream => vec![BlockFlags::BACKWARD, BlockFlags::NONE],
            _ => Vec::new(),
        };
        Self {
            socket,
            form,
            class,
            session: if form == WriterForm::Stream { next_session_number() } else { 0 },
            packet: vec![0; 1 + PACKET_DATA_BYTES_MAX],
            waiting: Vec::new(),
            emitted: 0,
            capture: Reader::new(),
            line_begins: true,
            ended: None,
            open,
            emitted_amount: Amount::default(),
            lost: Vec::new(),
        }
    }

    /// Returns the amounts received from the writer that did not become blocks, by reason.
    #[must_use]
    pub fn losses(&self) -> &[(DropReason, Amount)] {
        &self.lost
    }

    /// Drops all bytes that have not become blocks, including those still in the socket. Counts
    /// them as lost for the reason `why`. If there are any such bytes, the session ends as broken.
    pub fn discard(&mut self, why: DropReason) {
        let mut lost = Amount::default();
        let mut rest = self.waiting.len() - self.emitted;
        loop {
            if rest > 0 {
                lost.add_block(u32::try_from(rest).unwrap_or(u32::MAX));
            }
            self.waiting.clear();
            self.emitted = 0;
            if self.ended.is_some() || !self.receive() {
                break;
            }
            rest = self.waiting.len();
        }
        if lost.blocks > 0 {
            self.lost.push((why, lost));
            self.ended = Some(BlockFlags::SESSION_END_MASK);
        }
    }

    /// Refuses further bytes from the writer, and sends it the reason. The source can still receive
    /// the bytes that are already in the socket.
    pub fn close_input(&self, why: &str) {
        let _ = sys::local_socket::send_nonblocking(&self.socket, why.as_bytes(), &[]);
        let _ = sys::local_socket::shutdown_input(&self.socket);
    }

    /// Emits all complete blocks and then, if the writer has ended the session, the last block of
    /// each direction. Fails with the reason if the bytes are invalid in this form.
    fn emit(&mut self, intake: &mut Intake<'_>) -> Result<EmitOutcome, String> {
        while let Some(block) = self.next_block(intake.pool.block_length_max())? {
            if intake.room() == 0 || !self.append_block(intake, &block) {
                return Ok(EmitOutcome::Full);
            }
            self.emitted += block.consumed;
            self.line_begins = block.flags.contains(BlockFlags::LAST);
        }
        self.waiting.drain(..self.emitted);
        self.emitted = 0;
        let Some(end) = self.ended else { return Ok(EmitOutcome::All) };
        if self.form == WriterForm::Capture && !self.waiting.is_empty() {
            self.capture.finish(self.waiting.len()).map_err(|fault| fault.to_string())?;
        }
        while let Some(direction) = self.open.last() {
            let flags = direction.with(end);
            let hole = RichPointer::hole(0).with_class(self.class);
            let context =
                abi::BlockMetadata { time: intake.now, session: self.session, origin: 0, flags };
            if intake.room() == 0
                || !intake.append_block_entry(Entry::new(hole, context, Marks::for_plain_block(0)))
            {
                return Ok(EmitOutcome::Full);
            }
            self.emitted_amount.add_block(0);
            self.open.pop();
        }
        Ok(EmitOutcome::All)
    }

    /// Returns the next block of the received bytes, or `None` if more bytes are needed. Fails with
    /// the reason if the bytes are invalid in this form, or if they contain a frame that is longer
    /// than `block_max` bytes, the longest block of the pool.
    fn next_block(&mut self, block_max: usize) -> Result<Option<ReceivedBlock>, String> {
        let length_max = block_max.min(PACKET_DATA_BYTES_MAX);
        let rest = self.waiting.get(self.emitted..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let whole = BlockFlags::FIRST.with(BlockFlags::LAST);
        Ok(match self.form {
            WriterForm::Stream => {
                let flags = if self.emitted_amount.blocks == 0 {
                    BlockFlags::FIRST
                } else {
                    BlockFlags::NONE
                };
                Some(ReceivedBlock::without_frame(rest.len().min(length_max), flags))
            }
            WriterForm::Blocks => {
                Some(ReceivedBlock::without_frame(rest.len().min(length_max), whole))
            }
            WriterForm::Lines => {
                let first = if self.line_begins { BlockFlags::FIRST } else { BlockFlags::NONE };
                let window = rest.get(..=length_max).unwrap_or(rest);
                match memchr::memchr(b'\n', window) {
                    // A longer line is cut into fragments.
                    None if rest.len() > length_max => {
                        Some(ReceivedBlock::without_frame(length_max, first))
                    }
                    Some(end) => {
                        let line = rest.get(..end).unwrap_or_default();
                        let length = if line.ends_with(b"\r") { end - 1 } else { end };
                        let block =
                            ReceivedBlock::without_frame(length, first.with(BlockFlags::LAST));
                        Some(ReceivedBlock { consumed: end + 1, ..block })
                    }
                    None if self.ended.is_some() => {
                        Some(ReceivedBlock::without_frame(rest.len(), first.with(BlockFlags::LAST)))
                    }
                    None => None,
                }
            }
            WriterForm::Capture => match self.capture.next(rest) {
                ReadOutcome::Packet(packet) if packet.data.len() > block_max => {
                    let length = packet.data.len();
                    return Err(format!(
                        "the capture has a frame of {length} bytes, and the buffers of this path \
                         hold {block_max} bytes at most"
                    ));
                }
                ReadOutcome::Packet(packet) => Some(ReceivedBlock {
                    from: packet.data.start,
                    length: packet.data.len(),
                    consumed: packet.consumed,
                    flags: whole,
                    frame: Some((packet.link.0, packet.wire_length, packet.time_ns)),
                }),
                ReadOutcome::NeedMore { consumed, .. } => {
                    self.emitted += consumed;
                    None
                }
                ReadOutcome::Error(fault) => return Err(fault.to_string()),
            },
        })
    }

    /// Copies a block into the pool. Returns false if the pool has no free memory until the next
    /// pass.
    fn append_block(&mut self, intake: &mut Intake<'_>, block: &ReceivedBlock) -> bool {
        let from = self.emitted + block.from;
        let bytes = self.waiting.get(from..from + block.length).unwrap_or_default();
        let copied = intake.pool.append(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            bytes.len()
        });
        let Some((place, _)) = copied else { return false };
        let (marks, time): (Marks, Time) = match block.frame {
            Some((link, wire, time)) => (Marks::frame(link, place.length(), wire), time),
            None => (Marks::for_plain_block(place.length()), intake.now),
        };
        let mut entry = intake.entry(place, (time, 0), marks);
        entry.pointer = entry.pointer.with_class(self.class);
        (entry.context.session, entry.context.flags) = (self.session, block.flags);
        self.emitted_amount.add_block(place.length());
        intake.append_block_entry(entry)
    }

    /// Receives a packet. Returns false if none has arrived. An invalid packet or an error ends the
    /// session as broken.
    fn receive(&mut self) -> bool {
        match sys::descriptor::try_receive(&self.socket, &mut self.packet) {
            Ok(None) => return false,
            Ok(Some((length, _))) => match self.packet.get(..length) {
                Some([DATA_PACKET_TYPE, bytes @ ..]) => self.waiting.extend_from_slice(bytes),
                Some([END_PACKET_TYPE]) => self.ended = Some(BlockFlags::SESSION_END),
                _ => self.ended = Some(BlockFlags::SESSION_END_MASK),
            },
            Err(_) => self.ended = Some(BlockFlags::SESSION_END_MASK),
        }
        true
    }

    fn produce_blocks(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, String> {
        let before = self.emitted_amount.blocks;
        loop {
            if matches!(self.emit(intake)?, EmitOutcome::Full) {
                let has_emitted = self.emitted_amount.blocks > before;
                return Ok(match has_emitted {
                    true => SourceStatus::Blocks,
                    false => SourceStatus::retry_at(intake.now),
                });
            }
            if self.ended.is_some() {
                return Ok(SourceStatus::End);
            }
            if !self.receive() {
                let has_emitted = self.emitted_amount.blocks > before;
                return Ok(if has_emitted {
                    SourceStatus::Blocks
                } else {
                    SourceStatus::AWAITS_INPUT
                });
            }
        }
    }
}

impl Source for WriterSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        // Invalid bytes end the session of the writer, but not the path.
        self.produce_blocks(intake).or_else(|why| {
            self.close_input(&why);
            self.discard(UNREADABLE_BYTES_REASON);
            (self.ended, self.form) = (Some(BlockFlags::SESSION_END_MASK), WriterForm::Blocks);
            Ok(SourceStatus::End)
        })
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters::lossless(self.emitted_amount)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn stop(&mut self) -> bool {
        self.close_input("the path has ended");
        true
    }
}

/// A block found in the bytes that were received from a writer.
struct ReceivedBlock {
    /// Offset of the block's first byte, relative to the first received byte that has not been
    /// emitted.
    from: usize,
    length: usize,
    /// Number of received bytes that belong to the block, including its record header or line
    /// terminator.
    consumed: usize,
    flags: BlockFlags,
    /// Link type, length on the wire and time of a frame, or `None` if the block is not a frame.
    frame: Option<(u16, u32, Time)>,
}

impl ReceivedBlock {
    const fn without_frame(length: usize, flags: BlockFlags) -> Self {
        Self { from: 0, length, consumed: length, flags, frame: None }
    }
}
