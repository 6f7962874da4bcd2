//! The half of a filter apart to which blocks go: a sink over a stream that its process reads.
//!
//! In: blocks. Out: whole blocks in a ring that the process can only read. A full ring makes the
//! space wait, as any ring does, for as long as the process gets on. What it has not taken when it
//! ends, and what comes later, is dropped.

use super::limits::{FILTER_ENDED, TOO_LONG};
use super::message::{self, LONGEST};
use super::state::{self, Record};
use super::watch::Watch;
use buffer::Fault;
use buffer::stream::Output;
use endpoint::process::Process;
use endpoint::{DropReason, Failure, Sink};
use filter::{Amount, Batch, Block, Report, Time};
use runtime::space::saved::Saved;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// The node through which blocks go to the process.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// Until nothing more is written.
    output: Option<Output>,
    watch: Arc<Watch>,
    process: Arc<Process>,
    written: Amount,
    ended: Amount,
    long: Amount,
    /// Messages it has not taken, oldest first: their numbers, and the lengths in view.
    under_way: VecDeque<(u64, u32)>,
}

impl Entrance {
    pub(super) fn new(output: Output, watch: Arc<Watch>, process: Arc<Process>) -> Self {
        let (written, ended, long) = Default::default();
        let under_way = VecDeque::new();
        Self { output: Some(output), watch, process, written, ended, long, under_way }
    }

    /// Hands one block over.
    fn give(&mut self, block: &Block<'_>) {
        let length = message::length_of(block);
        if length > LONGEST {
            self.long.add(block.length());
        } else if self.output.is_some() && self.put(block, length) {
            self.written.add(block.length());
            let number = self.output.as_ref().map_or(0, |output| output.count().blocks);
            self.under_way.push_back((number, block.length()));
        } else {
            self.ended.add(block.length());
        }
    }

    /// Waits for room; answers whether the block is in the ring.
    fn put(&mut self, block: &Block<'_>, length: usize) -> bool {
        self.put_with(length, false, &mut |room| message::write(block, room))
    }

    /// Waits for room; `has_room`: the process has some for what it gives.
    fn put_with(
        &mut self,
        length: usize,
        has_room: bool,
        write: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> bool {
        loop {
            if self.watch.is_over() {
                self.is_over();
                return false;
            }
            let Some(output) = &mut self.output else { return false };
            let put = match output.is_ready(length) {
                Ok(true) => output.write_with(length, &mut *write),
                Ok(false) => output.wait(length).map(|_| false),
                Err(fault) => Err(fault),
            };
            match put {
                Ok(true) => return true,
                Ok(false) => {
                    self.tell();
                    self.watch.look(has_room);
                }
                Err(fault) => self.is_cut_off(fault),
            }
        }
    }

    /// Asks the process for what its filter knows, behind all blocks so far. Answers false while
    /// there is no room for the question.
    pub(crate) fn ask(&mut self) -> Result<bool, String> {
        self.say(&Record::Save)
    }

    /// Cancels a request for its state: the filter goes on unchanged.
    pub(crate) fn go_on(&mut self) {
        // Without room it has something to do, and goes on by itself.
        let _ = self.say(&Record::GoOn);
    }

    fn say(&mut self, record: &Record<'_>) -> Result<bool, String> {
        let message = record.written();
        let Some(output) = self.output.as_mut().filter(|_| !self.watch.is_over()) else {
            self.is_over();
            return Err(self.watch.why());
        };
        let put = match output.is_ready(message.len()) {
            Ok(true) => output.write(&message),
            other => other,
        };
        output.flush();
        match put {
            Ok(put) => {
                self.tell();
                Ok(put)
            }
            Err(fault) => {
                self.is_cut_off(fault);
                Err(self.watch.why())
            }
        }
    }

    /// Hands over what another filter knows, as the first thing that comes.
    pub(crate) fn teach(&mut self, saved: &Saved) -> Result<(), String> {
        self.watch.asks(true);
        let told = state::tell(saved, &mut |message| self.put_whole(message).then_some(()));
        match told {
            Some(()) => {
                self.flush();
                Ok(())
            }
            None if self.watch.is_over() => Err(self.watch.why()),
            None => Err("has a session, or holds a block, that is longer than a ring takes".into()),
        }
    }

    /// Writes a message; waits for room.
    fn put_whole(&mut self, message: &[u8]) -> bool {
        // It gives nothing until it knows everything: nothing keeps it from getting on.
        self.put_with(message.len(), true, &mut |room| {
            room.copy_from_slice(message);
            message.len()
        })
    }

    fn flush(&mut self) {
        if let Some(output) = &mut self.output {
            output.flush();
        }
        self.tell();
    }

    /// Returns the number of blocks handed over, less those that were never taken.
    pub(crate) const fn handed_over(&self) -> u64 {
        self.written.blocks
    }

    /// Nothing more goes to the process, which has said what its filter knows: it runs elsewhere.
    pub(crate) fn leave(&mut self) {
        // What it said stands behind everything that it was given.
        self.under_way.clear();
        self.watch.release();
        self.is_over();
    }

    /// The ring cannot go on.
    fn is_cut_off(&mut self, fault: Fault) {
        match fault {
            // Its process ended, and says itself how.
            Fault::Abandoned => self.watch.rest(),
            fault => {
                self.watch.end(format!("was ended because it lied about what it read: {fault}"))
            }
        }
        self.is_over();
    }

    /// Says how far the process is.
    fn tell(&mut self) {
        let Some(output) = &self.output else { return };
        let put = output.count().blocks;
        let taken = output.taken(0).map_or(0, |taken| taken.blocks);
        if taken > put {
            // Who lies has taken nothing that counts.
            self.watch.end("was ended because it lied about what it read: more than there was");
            return;
        }
        while self.under_way.front().is_some_and(|(number, _)| *number <= taken) {
            self.under_way.pop_front();
        }
        self.watch.feeds(put, taken);
    }

    /// Ends the output, and counts the blocks not yet taken as dropped.
    fn is_over(&mut self) {
        self.tell();
        self.output = None;
        for (_, length) in self.under_way.drain(..) {
            self.ended.add(length);
            self.written.blocks -= 1;
            self.written.bytes -= u64::from(length);
        }
    }
}

impl Sink for Entrance {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.give(&block);
        }
        if self.output.is_some() {
            self.flush();
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.tell();
        Ok(())
    }

    /// Waits until the process has taken what is its, so that what it has not is known.
    fn finish(&mut self) -> Result<Report, Failure> {
        self.tell();
        while !self.under_way.is_empty() && self.output.is_some() {
            if self.watch.is_over() {
                self.is_over();
                break;
            }
            self.watch.look(false);
            self.watch.rest();
            self.tell();
        }
        // The end of the stream: its reader drains what it holds, and ends.
        self.watch.close();
        self.output = None;
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }

    fn dropped(&self) -> Vec<(DropReason, Amount)> {
        vec![(FILTER_ENDED.into(), self.ended), (TOO_LONG.into(), self.long)]
    }

    fn process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}
