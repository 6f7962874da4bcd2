//! Reading block by block, and sleeping together with others: what a reader of many streams needs.

use super::Input;
use crate::Fault;
use crate::dbuf::Visitor;
use abi::ring::reader;

/// The result of [`Input::read_block`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A block of so many bytes, which may be none.
    Block(usize),
    /// Nothing is there yet.
    Nothing,
    /// The stream has ended.
    End,
}

impl Input {
    /// Copies one block as it was written, and takes it; waits for nothing. Where `out` is too
    /// short the answer is [`Fault::TooLong`], and the block stays. Of a block that
    /// [`Input::read`] has begun, the rest.
    pub fn read_block(&mut self, out: &mut [u8]) -> Result<Piece, Fault> {
        if self.rest.is_none() && self.ring.walk().take(out) {
            return Ok(Piece::Block(out.len()));
        }
        loop {
            let taken = if self.lossy { self.ring.read(out)? } else { self.take_block(out)? };
            if let Some(length) = taken {
                return Ok(Piece::Block(length));
            }
            self.give_back();
            if !self.go_on()? {
                return Ok(if self.is_at_end()? { Piece::End } else { Piece::Nothing });
            }
        }
    }

    /// Passes over all blocks but the newest, and gives them back; answers how many, which are
    /// counted as skipped. What is left of a block that [`Input::read`] has begun is passed, too.
    pub fn skip_to_latest(&mut self) -> Result<u64, Fault> {
        self.skip(Visitor::skip_to_latest)
    }

    /// Goes on with what is written from now on, as [`Input::skip_to_latest`] does.
    pub fn skip_to_now(&mut self) -> Result<u64, Fault> {
        self.skip(Visitor::skip_to_now)
    }

    fn skip(&mut self, skip: impl Fn(&mut Visitor) -> Result<u64, Fault>) -> Result<u64, Fault> {
        if let Some(rest) = self.rest.take() {
            self.ring.walk().pass(&rest);
        }
        let before = self.ring.walk().side.released();
        let mut skipped = skip(&mut self.ring)?;
        while self.go_on()? {
            skipped += skip(&mut self.ring)?;
        }
        if self.ring.walk().side.released() != before {
            self.tell();
        }
        Ok(skipped)
    }

    fn take_block(&mut self, out: &mut [u8]) -> Result<Option<usize>, Fault> {
        let walk = self.ring.walk();
        let found = match self.rest {
            Some(rest) => Some(rest),
            None => walk.find()?,
        };
        let Some(found) = found else { return Ok(None) };
        let (length, limit) = (found.left(), out.len());
        let Some(to) = out.get_mut(..length) else {
            return Err(Fault::TooLong { length, limit });
        };
        walk.data().copy_out(found.at(), to);
        self.rest = None;
        walk.pass(&found);
        if walk.side.next - walk.side.released() >= super::often(walk) {
            self.give_back();
        }
        Ok(Some(length))
    }

    /// Says that we are about to sleep until our doorbell rings, and answers whether there is
    /// something after all. [`Input::wake`] follows, whatever the answer.
    pub fn fall_asleep(&mut self) -> Result<bool, Fault> {
        let side = &mut self.ring.walk().side;
        // Whatever comes: who reads many streams turns to others meanwhile.
        let until = side.next.saturating_add(1);
        let index = side.index;
        let Some(page) = side.store.readers.get(index) else { return Err(Fault::Abandoned) };
        self.sleeper.falls_asleep(page, reader::WAIT, until);
        self.has_something()
    }

    /// Says that we are awake; takes a ring back if there may have been one, and answers whether
    /// there was.
    pub fn wake(&mut self, rang: bool) -> bool {
        let heard = rang && self.hear();
        let index = self.ring.walk().side.index;
        if let Some(page) = self.ring.walk().side.store.readers.get(index) {
            self.sleeper.wakes(page, reader::WAIT);
        }
        heard
    }
}
