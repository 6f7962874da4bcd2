//! One capture for each connection, in a directory.

use super::{Frames, another};
use crate::sink::headers::Headers;
use crate::sink::shelf::{Habits, Key, Shelf, Volume};
use crate::{Failure, Opening, Sink};
use abi::{Direction, Flags};
use filter::{Amount, Batch, Block, Form, Report, Time};
use wire::capture::write;
use wire::link::LinkType;

/// Captures in a directory.
#[derive(Debug)]
pub(super) struct Split {
    shelf: Shelf,
    /// True if each direction gets a file of its own.
    one_way: bool,
    frames: Frames,
    written: Amount,
    /// The record being written, behind the header of the file if it is the first.
    record: Vec<u8>,
}

impl Split {
    /// Opens the directory.
    pub(super) fn open(
        path: &str,
        one_way: bool,
        frames: Frames,
        opening: &Opening<'_>,
    ) -> Result<Self, Failure> {
        if path == "-" {
            let why = "it holds one capture, and there is one for each connection";
            let hint = "name a directory";
            return Err(Failure::new("write", "standard output", why).hint(hint));
        }
        let habits = Habits {
            ending: ".pcap",
            digests: false,
            single: false,
            begun: opening.form == Form::Stream,
            fills: false,
        };
        let shelf = Shelf::open(path, habits, opening)?;
        Ok(Self { shelf, one_way, frames, written: Amount::default(), record: Vec::new() })
    }

    fn key(&self, block: &Block<'_>) -> Key {
        let session = block.context.session;
        if session != 0 {
            let backward = block.context.flags.direction() == Direction::Backward;
            return Key::Session { number: session, backward: backward && self.one_way };
        }
        match Headers::of(block).and_then(|headers| headers.flow) {
            Some(flow) if self.one_way => Key::Flow(flow),
            Some(flow) => Key::Flow(flow.normalized().0),
            None => Key::Rest,
        }
    }

    /// Writes the frame of a block, if it has one that is new, and notes what the block says.
    fn append(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let is_new = self.frames.is_new(block);
        let key = self.key(block);
        let mut volume = match self.shelf.take_out(key) {
            Some(volume) => volume,
            None if !is_new => return Ok(()),
            None => {
                self.shelf.make_room()?;
                Volume::new(block, self.one_way)
            }
        };
        let outcome = if is_new { self.frame(&mut volume, block) } else { Ok(()) };
        let ended = block.context.flags.has(Flags::END);
        if outcome.is_ok() {
            volume.note(block);
            if ended {
                volume.end(block);
            }
        }
        let is_over = volume.has_ended() || ended && self.one_way;
        self.shelf.put_back(key, volume);
        outcome?;
        if is_over { self.shelf.end(key) } else { Ok(()) }
    }

    fn frame(&mut self, volume: &mut Volume, block: &Block<'_>) -> Result<(), Failure> {
        let link = LinkType(block.marks.link);
        self.record.clear();
        match volume.link.replace(link) {
            None => self.record.extend_from_slice(&write::header(link)),
            Some(first) if first != link => {
                return Err(another(&self.shelf.target(), first, link));
            }
            Some(_) => {}
        }
        volume.meet(block);
        self.frames.add(block, &mut self.record);
        self.shelf.write(volume, &self.record)
    }
}

impl Sink for Split {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.append(&block)?;
            self.written.add(block.length());
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.shelf.flush()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.shelf.end_all()?;
        let mut rows = self.frames.rows(&self.shelf.target())?;
        rows.insert(0, ("files".to_owned(), self.shelf.made()));
        Ok(self.shelf.report(rows))
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }
}

#[cfg(test)]
mod tests;
