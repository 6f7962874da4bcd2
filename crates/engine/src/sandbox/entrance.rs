//! The half of a filter apart to which blocks go: a sink over a stream that its process reads.
//!
//! In: blocks. Out: whole blocks in a ring that the process can only read. A full ring makes the
//! space wait, as any ring does, for as long as the process gets on. What it has not taken when it
//! ends, and what comes later, is dropped.

use super::message::{self, LONGEST};
use super::watch::Watch;
use super::{FILTER_ENDED, TOO_LONG};
use buffer::Fault;
use buffer::stream::Output;
use endpoint::process::Process;
use endpoint::{Failure, Sink};
use filter::{Amount, Batch, Block, Report, Time};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where blocks go to the process.
#[derive(Debug)]
pub(super) struct Entrance {
    /// Until nothing more is written.
    output: Option<Output>,
    watch: Arc<Watch>,
    process: Arc<Process>,
    written: Amount,
    ended: Amount,
    long: Amount,
    /// The lengths in view of what it has not taken, in order.
    under_way: VecDeque<u32>,
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
            self.under_way.push_back(block.length());
        } else {
            self.ended.add(block.length());
        }
    }

    /// Waits for room; answers whether the block is in the ring.
    fn put(&mut self, block: &Block<'_>, length: usize) -> bool {
        loop {
            if self.watch.is_over() {
                self.is_over();
                return false;
            }
            let Some(output) = &mut self.output else { return false };
            let put = match output.is_ready(length) {
                Ok(true) => output.write_with(length, |room| message::write(block, room)),
                Ok(false) => output.wait(length).map(|_| false),
                Err(fault) => Err(fault),
            };
            match put {
                Ok(true) => return true,
                Ok(false) => {
                    self.tell();
                    self.watch.look(false);
                }
                Err(fault) => self.is_cut_off(fault),
            }
        }
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
        let left = usize::try_from(put - taken).unwrap_or(usize::MAX);
        while self.under_way.len() > left {
            self.under_way.pop_front();
        }
        self.watch.feeds(put, taken);
    }

    /// What it has not taken, it never will.
    fn is_over(&mut self) {
        self.tell();
        self.output = None;
        for length in self.under_way.drain(..) {
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
        if let Some(output) = &mut self.output {
            output.flush();
            self.tell();
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

    fn dropped(&self) -> Vec<(&'static str, Amount)> {
        vec![(FILTER_ENDED, self.ended), (TOO_LONG, self.long)]
    }

    fn process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }
}
