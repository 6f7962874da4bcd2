//! Writing in place in two calls, for whoever cannot hand in a function: a C program.
//! [SL §5.1, reserve and commit]

use super::Output;
use crate::Fault;
use std::ptr::NonNull;

/// Says that there is room for a block of up to `length` bytes, as long as nothing else is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The address of the first byte, to be compared.
    at: usize,
    length: usize,
}

impl Room {
    /// How many bytes there are.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }
}

impl Output {
    /// Room for a block of `length` bytes, where it will lie; waits while the stream is full and
    /// its policy is to block. `None`: there is none, and the block is dropped, as the policy says.
    ///
    /// With it comes the first byte of the room. Nobody else reads or writes there until something
    /// is written by this end, or it is dropped.
    pub fn room(&mut self, length: usize) -> Result<Option<(Room, NonNull<u8>)>, Fault> {
        if self.ring.fits(length).is_none() && !self.make_room(length)? {
            return Ok(None);
        }
        let reserved = self.ring.reserve(length)?;
        Ok(reserved.map(|mut room| {
            let first = NonNull::from(&mut *room).cast::<u8>();
            (Room { at: first.addr().get(), length }, first)
        }))
    }

    /// Writes the first `used` bytes of what was put there as one block. `false`: something else
    /// was written since, and this is not.
    pub fn commit(&mut self, room: Room, used: usize) -> Result<bool, Fault> {
        if self.room(room.length)?.map(|(room, _)| room) != Some(room) {
            return Ok(false);
        }
        self.write_with(room.length, |_| used)
    }
}

#[cfg(test)]
mod tests {
    use crate::Policy;
    use crate::stream::{Config, joinable};

    #[test]
    fn what_was_put_where_room_was_given_is_written() {
        let config = Config::new(abi::DbufId::new(4).unwrap()).capacity(4096);
        let (mut output, entrance) = joinable(&config.policy(Policy::DropNew)).unwrap();
        let (_, offer) = entrance.enter().unwrap().unwrap();
        let mut input = offer.open().unwrap();
        // As it was before: bytes of this test, in the place of the next block.
        output.write(b"abcdefgh").unwrap();
        for round in 0..2000 {
            let (room, _) = output.room(8).unwrap().unwrap();
            assert_eq!(room.length(), 8);
            let used = round % 9;
            if round % 3 == 0 {
                output.write(b"between!").unwrap();
                assert_eq!(output.commit(room, used), Ok(false), "it is used now");
            } else {
                assert_eq!(output.commit(room, used), Ok(true));
            }
            output.flush();
            while input.try_read(&mut [0; 64]).unwrap().is_some() {}
        }
        assert!(output.room(5000).is_err());
    }
}
