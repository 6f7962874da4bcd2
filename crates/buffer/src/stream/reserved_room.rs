//! In-place writing in two calls, for callers that cannot pass a closure, such as C programs. [SL
//! §5.1, reserve and commit]

use super::Output;
use crate::Fault;
use std::ptr::NonNull;

/// Reserved room for one block, valid until the next write to the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservedRoom {
    /// Address of the first byte of the room. It is only compared, and never accessed.
    at: usize,
    length: usize,
}

impl ReservedRoom {
    /// Returns the length of the reserved room in bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }
}

impl Output {
    /// Reserves `length` bytes in place. Blocks while the stream is full, if the policy is to
    /// block; returns `None` if the policy drops the block.
    ///
    /// The returned pointer points to the first byte. No other party accesses the reserved bytes
    /// until this output writes or is dropped.
    pub fn reserve_room(
        &mut self,
        length: usize,
    ) -> Result<Option<(ReservedRoom, NonNull<u8>)>, Fault> {
        if self.ring.fitting_length(length).is_none() && !self.wait_for_room_if_blocking(length)? {
            return Ok(None);
        }
        let reserved = self.ring.reserve(length)?;
        Ok(reserved.map(|mut room| {
            let first = NonNull::from(&mut *room).cast::<u8>();
            (ReservedRoom { at: first.addr().get(), length }, first)
        }))
    }

    /// Writes the first `used` bytes of the room as one block. Returns false, and writes nothing,
    /// if another block was written since the reservation.
    pub fn commit(&mut self, room: ReservedRoom, used: usize) -> Result<bool, Fault> {
        if self.reserve_room(room.length)?.map(|(room, _)| room) != Some(room) {
            return Ok(false);
        }
        self.write_with(room.length, |_| used)
    }
}

#[cfg(test)]
mod tests {
    use crate::OverflowPolicy;
    use crate::stream::{Config, joinable_stream, stream};
    use abi::ring::RecordHeader;

    #[test]
    fn reserved_room_commits_unless_another_write_intervenes() {
        let config = Config::new(abi::DbufId::new(4).unwrap()).capacity(4096);
        let (mut output, admission) =
            joinable_stream(&config.policy(OverflowPolicy::DropNew)).unwrap();
        let (_, offer) = admission.admit().unwrap().unwrap();
        let mut input = offer.open().unwrap();
        // A leftover of the previous lap, at the position of the next block.
        output.write(b"abcdefgh").unwrap();
        for round in 0..2000 {
            let (room, _) = output.reserve_room(8).unwrap().unwrap();
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
        assert!(output.reserve_room(5000).is_err());
    }
    /// The writer reclaims cache lines of the next headers, but does not touch reserved room.
    #[test]
    fn reserved_room_is_untouched_by_publications() {
        const LENGTH: usize = 1008;
        let (mut output, mut input) = {
            let (output, mut offers) =
                stream(&Config::new(abi::DbufId::new(4).unwrap()).capacity(64 << 10)).unwrap();
            (output, offers.remove(0).open().unwrap())
        };
        let mut out = [0; 4 * LENGTH];
        // Writes a lap of blocks, four at a time, then four more that are not published.
        for four in 0..17 {
            (0..4).for_each(|_| assert!(output.write(&[7; LENGTH]).unwrap()));
            if four < 16 {
                output.flush();
                assert_eq!(input.try_read(&mut out), Ok(Some(out.len())));
            }
        }
        let (room, _) = output.reserve_room(3000).unwrap().unwrap();
        output.flush();
        assert_eq!(output.commit(room, 3000), Ok(true));
        output.flush();
        let (mut first, mut block) = ([0; 4 * LENGTH], [0; 3000]);
        assert_eq!(input.try_read(&mut first), Ok(Some(first.len())));
        assert_eq!(input.try_read(&mut block), Ok(Some(block.len())));
        // The room overlaps the fifth block of the last lap and the header of the sixth.
        let header = RecordHeader::block_words(LENGTH, 5).map(u64::to_ne_bytes);
        assert_eq!(block[..LENGTH], [7; LENGTH]);
        assert_eq!(block[LENGTH..LENGTH + RecordHeader::SIZE], *header.as_flattened());
    }
}
