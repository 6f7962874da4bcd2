//! A file that is not finished: which blocks go to it, and what the index will say about it.

use super::folder::Identity;
use crate::sink::headers::Headers;
use crate::sink::json::Ends;
use crate::sink::told::Told;
use abi::{Class, Direction, Flags};
use filter::{Block, Time};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use wire::Flow;
use wire::link::LinkType;
use wire::record::Field;

/// The key of a block's file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// A session: one direction, or both.
    Session { number: u32, backward: bool },
    /// A flow, where no filter tells sessions apart.
    Flow(Flow),
    /// All blocks without session and flow.
    Rest,
}

/// A file that is not finished.
#[derive(Debug)]
pub(crate) struct Volume {
    /// The file, once there are bytes for it.
    pub(super) paper: Option<Paper>,
    /// Time of the last use, counted in uses of any file.
    pub(super) used: u64,
    /// The input of each direction, the forward one first.
    ways: [Way; 2],
    pub(super) first: Time,
    pub(super) last: Time,
    pub(super) blocks: u64,
    /// Bytes that came, and bytes that must have been there and never came.
    pub(super) bytes: u64,
    pub(super) missing: u64,
    /// Missing bytes that are zeros in the file, or will be once there is a file.
    pub(super) filled: u64,
    pub(super) owed: u64,
    pub(super) origin: u16,
    pub(super) session: u32,
    /// The direction of its blocks; `None` if both go to one file.
    pub(super) direction: Option<&'static str>,
    pub(super) class: Class,
    pub(super) ends: Ends,
    flow: Option<Flow>,
    /// The description of its first message, and how many messages were described.
    pub(super) record: Vec<u8>,
    pub(super) messages: u64,
    /// The link type of its frames (captures).
    pub(crate) link: Option<LinkType>,
}

/// A file on the disk.
pub(super) struct Paper {
    pub(super) name: String,
    pub(super) identity: Identity,
    /// Nothing while it is closed for others.
    pub(super) open: Option<File>,
    /// Its size in bytes.
    pub(super) size: u64,
    /// The digest of its bytes, if the index needs one.
    pub(super) digest: Option<Sha256>,
}

impl fmt::Debug for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paper").field("name", &self.name).field("size", &self.size).finish()
    }
}

impl Paper {
    /// Adds bytes to the digest that were added to the file.
    pub(super) fn note(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    came: bool,
    begun: bool,
    ended: bool,
    /// It ended because its session broke off.
    broken: bool,
}

impl Volume {
    /// The volume whose first block is `block`; `one_way`: all its blocks go the same way.
    pub(crate) fn new(block: &Block<'_>, one_way: bool) -> Self {
        let context = block.context;
        let direction = match context.flags.direction() {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        };
        Self {
            paper: None,
            used: 0,
            ways: [Way::default(); 2],
            first: context.time,
            last: context.time,
            blocks: 0,
            bytes: 0,
            missing: 0,
            filled: 0,
            owed: 0,
            origin: context.origin,
            session: context.session,
            direction: (one_way && context.session != 0).then_some(direction),
            class: block.pointer.class,
            ends: Ends::default(),
            flow: None,
            record: Vec::new(),
            messages: 0,
            link: None,
        }
    }

    /// Notes that a block came: when, how long, and where it begins or ends what.
    pub(crate) fn note(&mut self, block: &Block<'_>) {
        self.first = self.first.min(block.context.time);
        self.last = self.last.max(block.context.time);
        let way = self.way(block);
        way.came = true;
        way.begun |= block.context.flags.has(Flags::FIRST);
        if block.marks.is_description() {
            self.describe(block);
            return;
        }
        let here = block.bytes().len() as u64;
        self.blocks += 1;
        self.bytes += here;
        self.missing += u64::from(block.length()).saturating_sub(here);
    }

    /// Notes who speaks to whom, as the headers around the first frame say.
    pub(crate) fn meet(&mut self, block: &Block<'_>) {
        if self.flow.is_none()
            && let Some(headers) = Headers::of(block)
        {
            self.ends = Ends::of(Some(&headers));
            self.flow = headers.flow;
        }
    }

    fn describe(&mut self, block: &Block<'_>) {
        self.messages += 1;
        if let (1, Some(told)) = (self.messages, Told::of(block)) {
            self.first = told.time().map_or(self.first, |time| self.first.min(time));
            self.last = told.end().map_or(self.last, |time| self.last.max(time));
            self.record = block.frame.to_vec();
        }
    }

    /// Notes that the direction of this block has ended.
    pub(crate) fn end(&mut self, block: &Block<'_>) {
        let broken = block.context.flags.has(Flags::ENDING);
        let way = self.way(block);
        way.ended = true;
        way.broken |= broken;
    }

    /// Returns true if a message has a description and nothing else so far.
    pub(crate) fn is_only_described(&self) -> bool {
        self.messages > 0 && self.blocks == 0
    }

    /// Returns true if both directions have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ways.iter().all(|way| way.ended)
    }

    /// Returns true if the end of all input was observed, and the beginning if `begun` asks for it.
    pub(super) fn is_complete(&self, begun: bool) -> bool {
        let whole = |way: &Way| !way.came || way.ended && !way.broken && (way.begun || !begun);
        let cut = self.messages == 1 && self.told().is_some_and(|told| told.is(Field::Incomplete));
        self.missing == 0 && !cut && self.ways.iter().all(whole)
    }

    /// Returns the description of the first message.
    pub(super) fn told(&self) -> Option<Told<'_>> {
        Told::read(&self.record)
    }

    /// Returns the part of its name that says who spoke to whom.
    pub(super) fn about(&self) -> String {
        let backward = self.direction == Some("backward");
        let flow = self.flow.or_else(|| self.told()?.flow(backward));
        let Some(flow) = flow else { return String::new() };
        let end = |address: std::net::IpAddr, port: Option<u16>| match port {
            Some(port) => format!("-{address}.{port}"),
            None => format!("-{address}"),
        };
        let source = end(flow.source, flow.ports.map(|ports| ports.source));
        source + &end(flow.target, flow.ports.map(|ports| ports.target))
    }

    fn way(&mut self, block: &Block<'_>) -> &mut Way {
        let [forward, backward] = &mut self.ways;
        match block.context.flags.direction() {
            Direction::Forward => forward,
            Direction::Backward => backward,
        }
    }
}
