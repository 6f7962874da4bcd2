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
    /// Returns the number of bytes.
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
    use crate::stream::{Config, joinable, stream};
    use abi::ring::RecordHeader;

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
    /// The writer takes lines back where it expects the next headers; not where somebody writes.
    #[test]
    fn room_that_was_given_stays_as_it_is_when_blocks_are_shown() {
        const LENGTH: usize = 1008;
        let (mut output, mut input) = {
            let (output, mut offers) =
                stream(&Config::new(abi::DbufId::new(4).unwrap()).capacity(64 << 10)).unwrap();
            (output, offers.remove(0).open().unwrap())
        };
        let mut out = [0; 4 * LENGTH];
        // A lap of blocks in fours, then four more that are not shown.
        for four in 0..17 {
            (0..4).for_each(|_| assert!(output.write(&[7; LENGTH]).unwrap()));
            if four < 16 {
                output.flush();
                assert_eq!(input.try_read(&mut out), Ok(Some(out.len())));
            }
        }
        let (room, _) = output.room(3000).unwrap().unwrap();
        output.flush();
        assert_eq!(output.commit(room, 3000), Ok(true));
        output.flush();
        let (mut first, mut block) = ([0; 4 * LENGTH], [0; 3000]);
        assert_eq!(input.try_read(&mut first), Ok(Some(first.len())));
        assert_eq!(input.try_read(&mut block), Ok(Some(block.len())));
        // In the place of the block lay the fifth one of the lap before and the header of the
        // sixth.
        let header = RecordHeader::block_words(LENGTH, 5).map(u64::to_ne_bytes);
        assert_eq!(block[..LENGTH], [7; LENGTH]);
        assert_eq!(block[LENGTH..LENGTH + RecordHeader::SIZE], *header.as_flattened());
    }
}
