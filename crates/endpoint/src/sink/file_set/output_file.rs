//! An unfinished file of a file set, with its key and the data for its line in the index.

use super::directory::FileIdentity;
use crate::sink::headers::Headers;
use crate::sink::json::EndpointFields;
use crate::sink::json::direction_word;
use crate::sink::message::MessageRecord;
use abi::{BlockFlags, Class, Direction};
use filter::{Block, Time};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use wire::Flow;
use wire::link::LinkType;
use wire::record::Field;

/// The key that identifies the file to which a block belongs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum FileKey {
    /// A file for a session, or for one direction of it. `backward` is false if both directions
    /// share the file.
    Session { number: u32, backward: bool },
    /// A file for a flow of blocks to which no filter has assigned a session.
    Flow(Flow),
    /// The file for all blocks that have neither a session nor a flow.
    Unassigned,
}

/// An unfinished output file.
#[derive(Debug, Default)]
pub(crate) struct OutputFile {
    /// The file on disk, or `None` until the first byte has been written.
    pub(super) disk: Option<DiskFile>,
    /// Time of the last use of this file, by a logical clock that counts the uses of all files.
    pub(super) last_use: u64,
    /// State of the file's two directions, forward first.
    directions: [DirectionState; 2],
    pub(super) first: Time,
    pub(super) last: Time,
    pub(super) blocks: u64,
    /// Number of bytes received for the file.
    pub(super) bytes: u64,
    pub(super) missing: u64,
    /// True if any bytes of the file have been decompressed or otherwise decoded.
    is_decoded: bool,
    /// Number of missing bytes that have been written as zeros.
    pub(super) filled: u64,
    /// Number of missing bytes that have yet to be written as zeros.
    pub(super) pending_zeros: u64,
    pub(super) origin: u16,
    pub(super) session: u32,
    /// Direction of all blocks in the file; `None` if both directions share the file, or if the
    /// file has no session.
    pub(super) direction: Option<&'static str>,
    pub(super) class: Class,
    pub(super) ends: EndpointFields,
    flow: Option<Flow>,
    /// Description record of the first message in the file.
    pub(super) record: Vec<u8>,
    pub(super) messages: u64,
    /// Link type of the frames in the file; `None` for a file that contains no frames (yet).
    pub(crate) link: Option<LinkType>,
}

/// The part of an output file that exists on disk.
pub(super) struct DiskFile {
    pub(super) name: String,
    pub(super) identity: FileIdentity,
    /// Open descriptor of the file, or `None` while the file is closed to limit the number of open
    /// files.
    pub(super) open: Option<File>,
    /// Size of the file in bytes.
    pub(super) size: u64,
    /// Digest of the file's contents, or `None` if the index needs no digest.
    pub(super) digest: Option<Sha256>,
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskFile").field("name", &self.name).field("size", &self.size).finish()
    }
}

impl DiskFile {
    /// Updates the size and the digest after bytes were appended to the file.
    pub(super) fn record_appended_bytes(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct DirectionState {
    has_input: bool,
    has_begun: bool,
    ended: bool,
    /// True if the direction ended because its session was aborted.
    is_broken: bool,
}

impl OutputFile {
    /// Creates the state for a file that starts with `block`. `one_way` is true if all blocks of
    /// the file have the same direction.
    pub(crate) fn new(block: &Block<'_>, one_way: bool) -> Self {
        let context = block.context;
        Self {
            first: context.time,
            last: context.time,
            origin: context.origin,
            session: context.session,
            direction: (one_way && context.session != 0).then(|| direction_word(block)),
            class: block.pointer.class,
            ..Self::default()
        }
    }

    /// Updates the times, the counters and the state of the direction for a block that is added to
    /// the file.
    pub(crate) fn update_for_block(&mut self, block: &Block<'_>) {
        self.first = self.first.min(block.context.time);
        self.last = self.last.max(block.context.time);
        let direction = self.direction_state(block);
        direction.has_input = true;
        direction.has_begun |= block.context.flags.contains(BlockFlags::FIRST);
        if block.marks.is_description() {
            self.store_description(block);
            return;
        }
        let present = block.bytes().len() as u64;
        self.is_decoded |= block.context.flags.contains(BlockFlags::DECODED);
        self.blocks += u64::from(!block.is_end_marker());
        self.bytes += present;
        self.missing += u64::from(block.length()).saturating_sub(present);
    }

    /// Copies addresses and ports from the headers of the block, unless an earlier block has
    /// supplied them.
    pub(crate) fn copy_addresses(&mut self, block: &Block<'_>) {
        if self.flow.is_none()
            && let Some(headers) =
                Headers::parse_frame(block).or_else(|| Headers::parse_derived_block(block))
        {
            self.ends = EndpointFields::from_headers(Some(&headers));
            self.flow = headers.flow;
        }
    }

    fn store_description(&mut self, block: &Block<'_>) {
        self.messages += 1;
        if let (1, Some(description)) = (self.messages, MessageRecord::from_block(block)) {
            self.first = description.time().map_or(self.first, |time| self.first.min(time));
            self.last = description.end_time().map_or(self.last, |time| self.last.max(time));
            self.record = block.frame.to_vec();
        }
    }

    /// Marks a direction of the file as ended: the direction to which this block belongs.
    pub(crate) fn end_direction(&mut self, block: &Block<'_>) {
        let is_broken = block.context.flags.contains(BlockFlags::SESSION_END_MASK);
        let direction = self.direction_state(block);
        direction.ended = true;
        direction.is_broken |= is_broken;
    }

    /// Returns true if the file has received a message description but no other block.
    pub(crate) fn has_only_description(&self) -> bool {
        self.messages > 0 && self.blocks == 0
    }

    /// Returns true if both directions of the file's session have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.directions.iter().all(|direction| direction.ended)
    }

    /// Returns true if the file is complete: no bytes are missing, and each direction with input
    /// has ended without being aborted. A file with a single message must also have a description
    /// that is not marked as incomplete. If `needs_beginning`, the beginning of each direction must
    /// have been observed.
    pub(super) fn is_complete(&self, needs_beginning: bool) -> bool {
        let is_direction_complete = |direction: &DirectionState| {
            !direction.has_input
                || direction.ended
                    && !direction.is_broken
                    && (direction.has_begun || !needs_beginning)
        };
        let is_incomplete = self.messages == 1
            && self
                .description()
                .is_some_and(|description| description.has_flag(Field::Incomplete));
        self.missing == 0 && !is_incomplete && self.directions.iter().all(is_direction_complete)
    }

    /// Returns true if the contents of the message in the file were decoded (for example
    /// decompressed), and false if they are still encoded. Returns `None` if the message had no
    /// content coding.
    pub(super) fn is_content_decoded(&self) -> Option<bool> {
        let coding = self.description().and_then(|record| record.text(Field::ContentEncoding));
        (coding.is_some() || self.is_decoded).then_some(self.is_decoded)
    }

    /// Returns the description of the first message, or `None` if there is no well-formed
    /// description.
    pub(super) fn description(&self) -> Option<MessageRecord<'_>> {
        MessageRecord::parse(&self.record)
    }

    /// Returns the part of the file name that contains addresses and ports; empty if they are
    /// unknown.
    pub(super) fn file_name_addresses(&self) -> String {
        let flow = self.flow.or_else(|| self.description()?.flow());
        let Some(flow) = flow else { return String::new() };
        let end = |address: std::net::IpAddr, port: Option<u16>| match port {
            Some(port) => format!("-{address}.{port}"),
            None => format!("-{address}"),
        };
        let source = end(flow.source, flow.ports.map(|ports| ports.source));
        source + &end(flow.target, flow.ports.map(|ports| ports.target))
    }

    fn direction_state(&mut self, block: &Block<'_>) -> &mut DirectionState {
        let [forward, backward] = &mut self.directions;
        match block.context.flags.direction() {
            Direction::Forward => forward,
            Direction::Backward => backward,
        }
    }
}
