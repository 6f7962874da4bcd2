//! A reader for blocks that are forwarded into a pipe. It ensures that the readers of the pipe can
//! map the dbufs of the blocks.

use crate::aggregate::GrantRefusal;
use crate::aggregate::holders::PeerId;
use crate::aggregate::server::GrantServer;
use crate::indirect::LentBlock;
use crate::interface::StreamReader;
use crate::view::Space;
use abi::DbufId;
use abi::access::AccessList;
use buffer::Fault;
use buffer::stream::WaitResult;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use sys::process::effective_ids;

/// An adapter that lends the blocks of `from` to a pipe that carries pointers. Before it lends the
/// first block of a dbuf, it sends the dbuf to the readers of the pipe.
#[derive(Debug)]
pub(super) struct ForwardingReader<'a, F> {
    from: &'a mut F,
    space: Option<&'a Space>,
    grants: &'a GrantServer,
    peers: &'a [PeerId],
    sent_dbufs: &'a mut Vec<DbufId>,
    /// The dbuf of the block that was lent last.
    last_dbuf: DbufId,
    /// True if the dbuf of the next block could not be sent to the readers of the pipe. The block
    /// is then not lent, and its bytes must be copied.
    is_refused: bool,
}

impl<'a, F: StreamReader> ForwardingReader<'a, F> {
    pub(super) const fn new(
        from: &'a mut F,
        space: Option<&'a Space>,
        grants: &'a GrantServer,
        (peers, sent): (&'a [PeerId], &'a mut Vec<DbufId>),
    ) -> Self {
        Self {
            from,
            space,
            grants,
            peers,
            sent_dbufs: sent,
            last_dbuf: DbufId::HOLE,
            is_refused: false,
        }
    }
}

/// Sends a dbuf to the readers of the pipe. A dbuf of another process is first requested from its
/// owner.
fn forward_dbuf(
    dbuf: DbufId,
    space: Option<&Space>,
    grants: &GrantServer,
    peers: &[PeerId],
) -> Result<(), Fault> {
    if let Some(space) = space {
        let grant = space.request_grant(dbuf)?;
        let access = AccessList::private(effective_ids());
        match grants.with_owner(|owner| owner.share_granted(grant, access)) {
            // The dbuf belongs to this process, or was forwarded before.
            Ok(()) | Err(GrantRefusal::Taken(_)) => {}
            Err(_) => return Err(Fault::UnknownDbuf(dbuf)),
        }
    }
    peers.iter().for_each(|peer| _ = grants.send_grant(*peer, dbuf));
    Ok(())
}

impl<F: StreamReader> StreamReader for ForwardingReader<'_, F> {
    fn try_read(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        self.from.try_read(out)
    }

    fn peek(&mut self) -> Result<Option<&[u8]>, Fault> {
        self.from.peek()
    }

    fn copied_read_max(&mut self) -> Result<usize, Fault> {
        self.from.copied_read_max()
    }

    fn take(&mut self, count: usize) {
        self.from.take(count);
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<WaitResult, Fault> {
        self.from.wait(limit)
    }

    #[inline]
    fn lend(&mut self, max: usize) -> Result<Option<LentBlock<'_>>, Fault> {
        let lent = self.from.lend(max)?;
        self.is_refused = false;
        if let Some(lent) = &lent
            && lent.pointer.dbuf() != self.last_dbuf
        {
            let dbuf = lent.pointer.dbuf();
            if !self.sent_dbufs.contains(&dbuf) {
                if forward_dbuf(dbuf, self.space, self.grants, self.peers).is_err() {
                    // The copy that follows reports the reason, or succeeds.
                    self.is_refused = true;
                    return Ok(None);
                }
                self.sent_dbufs.push(dbuf);
            }
            self.last_dbuf = dbuf;
        }
        Ok(lent)
    }

    #[inline]
    fn lend_adjacent_blocks(
        &mut self,
        max: usize,
    ) -> Result<Option<(LentBlock<'_>, usize)>, Fault> {
        let run = self.from.lend_adjacent_blocks(max)?;
        // Lends only runs in a dbuf that has been sent; `lend` sends a dbuf with its first block.
        Ok(run.filter(|(lent, _)| {
            lent.pointer.dbuf() == self.last_dbuf || self.sent_dbufs.contains(&lent.pointer.dbuf())
        }))
    }

    fn has_lending_ended(&mut self) -> Result<Option<bool>, Fault> {
        if self.is_refused { Ok(None) } else { self.from.has_lending_ended() }
    }

    fn release_consumed(&mut self) -> u64 {
        self.from.release_consumed()
    }

    fn wait_for_input_or_descriptors(
        &mut self,
        others: &[BorrowedFd<'_>],
    ) -> Result<WaitResult, Fault> {
        self.from.wait_for_input_or_descriptors(others)
    }
}
