//! A file that is not finished: which blocks go to it, and what the index will say about it.

use super::folder::Identity;
use crate::sink::json::Ends;
use abi::{Class, Direction};
use filter::{Amount, Block, Time};
use std::fs::File;

/// Which file a block goes to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub(super) session: u32,
    pub(super) backward: bool,
}

/// A file that is not finished.
#[derive(Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) identity: Identity,
    /// Nothing while it is closed for others.
    pub(super) file: Option<File>,
    /// When it was used last, counted in uses of any file.
    pub(super) used: u64,
    /// Whether its beginning was seen, and its end.
    pub(super) begun: bool,
    pub(super) ended: bool,
    pub(super) first: Time,
    pub(super) last: Time,
    pub(super) amount: Amount,
    pub(super) origin: u16,
    pub(super) session: u32,
    /// Which way its blocks go; nothing where both ways go to one file.
    pub(super) direction: Option<&'static str>,
    pub(super) class: Class,
    pub(super) ends: Ends,
}

impl Volume {
    /// The file of this name, whose first block is `block`.
    pub(super) fn new(
        name: String,
        identity: Identity,
        block: &Block<'_>,
        one_way: bool,
        ends: Ends,
    ) -> Self {
        let context = block.context;
        let direction = match context.flags.direction() {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        };
        Self {
            name,
            identity,
            file: None,
            used: 0,
            begun: true,
            ended: false,
            first: context.time,
            last: context.time,
            amount: Amount::default(),
            origin: context.origin,
            session: context.session,
            direction: one_way.then_some(direction),
            class: block.pointer.class,
            ends,
        }
    }

    /// Notes that a block was written.
    pub(super) fn note(&mut self, block: &Block<'_>) {
        self.first = self.first.min(block.context.time);
        self.last = self.last.max(block.context.time);
        self.amount.add(block.length());
    }
}
