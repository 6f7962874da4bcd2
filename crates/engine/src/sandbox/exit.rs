//! The half of a filter apart from which blocks come: a source over a stream that its process
//! writes.
//!
//! In: messages of somebody whom nobody trusts. Out: blocks, copied before they are looked at, each
//! of them checked. A lie ends the process and nothing else. The source ends with its stream.

use super::message::{self, LONGEST, Lie};
use super::state::{Account, Gathering, Record};
use super::watch::{LOOK, Watch};
use buffer::Fault;
use buffer::stream::{Input, Piece};
use endpoint::process::Process;
use endpoint::{Failure, Given, Intake, Origins, Seen, Source, SourceProperties};
use filter::{Amount, Counts, Description};
use runtime::space::saved::Saved;
use std::any::Any;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// The node through which blocks come from the process.
#[derive(Debug)]
pub(crate) struct Exit {
    /// Until nothing more comes.
    input: Option<Input>,
    /// The message that was copied last, until it is in a pool.
    message: Vec<u8>,
    pending: Option<usize>,
    /// The origins that it may name for a block.
    origins: Origins,
    given: Amount,
    /// True if the process was notified that the reader sleeps.
    asleep: bool,
    /// Number of wake-ups since the last block.
    vain: u32,
    /// The filter's state as received so far, if it was requested.
    gathering: Option<Gathering>,
    /// Counters that its filter reports.
    account: Account,
    counts: Counts,
    description: &'static Description,
    watch: Arc<Watch>,
    process: Arc<Process>,
}

/// Interval of progress checks on a process that was idle at the last check.
const IDLE: Duration = Duration::from_secs(1);
/// Maximum number of wake-ups without a block.
const VAIN_MAX: u32 = 10_000;

impl Exit {
    pub(super) fn new(
        input: Input,
        origins: Origins,
        description: &'static Description,
        watch: Arc<Watch>,
        process: Arc<Process>,
    ) -> Self {
        let (input, message, pending) = (Some(input), vec![0; LONGEST], None);
        let (given, asleep, vain, gathering) = (Amount::default(), false, 0, None);
        let account = Account::default();
        let counts = account.counts(description);
        Self {
            input,
            message,
            pending,
            origins,
            given,
            asleep,
            vain,
            gathering,
            account,
            counts,
            description,
            watch,
            process,
        }
    }

    /// Prepares to receive the filter's state, which follows blocks in the stream.
    pub(crate) fn expect(&mut self) {
        self.watch.asks(true);
        self.gathering =
            Some(Gathering::new(self.description.state.held_max, self.origins.count()));
    }

    /// Returns the filter's state, its reported counters, and the number of blocks it gave, once
    /// all of that has arrived. Fails with the reason if nothing more will come.
    pub(crate) fn known(&mut self) -> Result<Option<(Saved, Account, u64)>, String> {
        if self.input.is_none() {
            return Err(self.watch.why());
        }
        let known = self.gathering.take_if(|gathering| gathering.is_done());
        let Some(known) = known.and_then(Gathering::done) else { return Ok(None) };
        self.watch.asks(false);
        Ok(Some((known, self.account.clone(), self.given.blocks)))
    }

    /// Waits until the process says something more. One that is not asked yet, because there is no
    /// room for the question, may take much before it does; and nobody says when there is memory
    /// again for what it has said: then only for a moment.
    pub(crate) fn rest(&self, asked: bool) {
        match &self.input {
            Some(input) if asked && self.asleep => {
                sys::poll::readable(&[input.as_fd()], Some(LOOK));
            }
            _ => self.watch.rest(),
        }
    }

    /// Nothing of what it was asked is wanted any more.
    pub(crate) fn forget(&mut self) {
        self.watch.asks(false);
        self.gathering = None;
    }

    /// Waits until the filter says that it knows what it was given.
    pub(crate) fn wait_taught(&mut self) -> Result<(), String> {
        while let Some(input) = &mut self.input {
            match input.read_block(&mut self.message) {
                Ok(Piece::Block(length)) => {
                    let message = self.message.get(..length).unwrap_or_default();
                    if Record::read(message) == Some(Ok(Record::Taught)) {
                        self.watch.asks(false);
                        return Ok(());
                    }
                    self.watch.end("was ended because it gave something before it was asked");
                }
                Ok(Piece::Nothing) => {
                    self.watch.look(true);
                    if self.watch.is_over() {
                        break;
                    }
                    if let Err(fault) = input.wait(Some(LOOK)) {
                        self.is_cut_off(fault);
                    }
                }
                Ok(Piece::End) => break,
                Err(fault) => drop(self.is_cut_off(fault)),
            }
        }
        self.ends();
        Err(self.watch.why())
    }

    /// Nothing more is taken of the process: its filter runs elsewhere.
    pub(crate) fn leave(&mut self) {
        self.watch.release();
        self.ends();
    }

    /// Takes what was read last if it is no block; answers whether it was none.
    fn takes_record(&mut self, length: usize) -> Result<bool, Lie> {
        let message = self.message.get(..length).unwrap_or_default();
        match (Record::read(message), &mut self.gathering) {
            // What a filter has counted is told before what it knows, and at its end.
            (Some(Ok(Record::Account(account))), _) => {
                self.counts = account.counts(self.description);
                self.account = account;
            }
            (record, Some(gathering)) if gathering.takes(record.is_some()) => {
                gathering.take(message)?;
            }
            (Some(_), _) => return Err(Lie::Record),
            (None, _) => return Ok(false),
        }
        self.pending = None;
        Ok(true)
    }

    /// Copies the next message, unless one is waiting; answers whether there is one.
    fn next(&mut self) -> Result<Piece, Fault> {
        if let Some(length) = self.pending {
            return Ok(Piece::Block(length));
        }
        let Some(input) = &mut self.input else { return Ok(Piece::End) };
        let piece = input.read_block(&mut self.message)?;
        if let Piece::Block(length) = piece {
            self.pending = Some(length);
            self.vain = 0;
            self.watch.gave();
        }
        Ok(piece)
    }

    /// Takes back that we sleep.
    fn wakes(&mut self) {
        let Some(input) = self.input.as_mut().filter(|_| self.asleep) else { return };
        self.asleep = false;
        self.vain += u32::from(input.wake(true));
        if self.vain > VAIN_MAX {
            self.watch.end("was ended because it rang without end");
        }
    }

    /// Says that we sleep until the process has something; answers whether it has.
    fn sleeps(&mut self) -> Result<bool, Fault> {
        let Some(input) = &mut self.input else { return Ok(false) };
        self.asleep = true;
        input.fall_asleep()
    }

    /// The stream cannot go on.
    fn is_cut_off(&mut self, fault: Fault) -> Given {
        match fault {
            // Whoever ends without closing its stream tells why elsewhere.
            Fault::Abandoned => self.watch.rest(),
            fault => {
                self.watch.end(format!("was ended because it lied about what it wrote: {fault}"));
            }
        }
        self.ends()
    }

    /// Nothing more comes.
    fn ends(&mut self) -> Given {
        self.input = None;
        self.pending = None;
        self.message = Vec::new();
        Given::End
    }
}

impl Source for Exit {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        let mut gave = false;
        self.wakes();
        while intake.room() > 0 {
            let length = match self.next() {
                Ok(Piece::Block(length)) => length,
                Ok(Piece::Nothing) if gave => break,
                Ok(Piece::Nothing) => match self.sleeps() {
                    Ok(false) => break,
                    Ok(true) => {
                        self.wakes();
                        continue;
                    }
                    Err(fault) => return Ok(self.is_cut_off(fault)),
                },
                Ok(Piece::End) => {
                    self.watch.is_done();
                    return Ok(self.ends());
                }
                Err(fault) => return Ok(self.is_cut_off(fault)),
            };
            match self.takes_record(length) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(lie) => {
                    self.watch.end(format!("was ended because it lied about its state: {lie}"));
                    return Ok(self.ends());
                }
            }
            let message = self.message.get(..length).unwrap_or_default();
            match message::put(message, self.origins.count(), intake) {
                Ok(Some(length)) => {
                    self.given.add(length);
                    self.pending = None;
                    gave = true;
                }
                Ok(None) => {
                    let until = Some(intake.now);
                    let wait = Given::Wait { until, readable: false };
                    return Ok(if gave { Given::Blocks } else { wait });
                }
                Err(lie) => {
                    self.watch.end(format!("was ended because it lied about a block: {lie}"));
                    return Ok(self.ends());
                }
            }
        }
        if gave {
            return Ok(Given::Blocks);
        }
        self.watch.look(true);
        let look = if self.watch.is_due() { LOOK } else { IDLE };
        let look = u64::try_from(look.as_nanos()).unwrap_or(u64::MAX);
        let until = Some(intake.now.saturating_add(look));
        Ok(Given::Wait { until, readable: true })
    }

    fn seen(&self) -> Seen {
        Seen { counts: Some(self.counts.clone()), ..Seen::all(self.given) }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.input.as_ref()?.as_fd())
    }

    fn stop(&mut self) -> bool {
        self.input.is_some()
    }

    fn close(&mut self) {
        // First, so that nobody takes what that does to it for a mistake of its own.
        if self.input.take().is_some() {
            self.watch.release();
        }
    }

    fn properties(&self) -> SourceProperties {
        let process = Some(Arc::clone(&self.process));
        SourceProperties { process, ..SourceProperties::default() }
    }

    fn as_any(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }
}
