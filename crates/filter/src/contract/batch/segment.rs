//! Frames of a batch whose blocks are all in one dbuf segment. The slice of each frame is computed
//! on demand from the position of its block.

use super::columns::Columns;
use abi::{DbufId, Marks, RichPointer};

/// The filled bytes of the dbuf segment that contains all frames of a batch. `start` is the dbuf
/// position of the first byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentFrames<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl<'a> SegmentFrames<'a> {
    /// Creates the frames of a batch from the filled bytes of one dbuf segment. Returns `None` if
    /// the frame of a lane is not within the segment, or does not contain the view of the lane. Not
    /// inlined, because the loop would cause register spills in the caller.
    #[inline(never)]
    pub(super) fn from_columns(
        columns: &Columns,
        dbuf: DbufId,
        start: u64,
        bytes: &'a [u8],
    ) -> Option<Self> {
        let from = i64::try_from(start).ok()?;
        let size = i64::try_from(bytes.len()).ok()?;
        // Branch-free: OR-ing all differences keeps the sign bit if any of them is negative.
        // Positions have 44 bits, the other numbers 32, so none overflows.
        let (mut below, mut others) = (0, 0);
        let len = columns.len;
        for (pointer, marks) in columns.pointers.get(..len)?.iter().zip(columns.marks.get(..len)?) {
            let (view, captured) = (i64::from(marks.view), i64::from(marks.captured));
            let begin = pointer.place.position() as i64 - from - view;
            below |= begin | (size - begin - captured);
            below |= captured - view - i64::from(pointer.length());
            others |= pointer.dbuf().number() ^ dbuf.number();
        }
        let segment = below >= 0 && others == 0 && from < 1 << 62;
        segment.then_some(Self { start, bytes })
    }

    /// Returns the captured bytes of the frame that contains the view `pointer`.
    #[inline]
    pub(super) fn frame(&self, pointer: &RichPointer, marks: &Marks) -> &'a [u8] {
        let from = self.frame_offset(pointer).wrapping_sub(marks.view as usize);
        let rest = self.bytes.get(from..).unwrap_or_default();
        rest.get(..marks.captured as usize).unwrap_or_default()
    }

    /// Returns the bytes of the view to which `pointer` refers.
    #[inline]
    pub(super) fn view(&self, pointer: &RichPointer) -> &'a [u8] {
        let from = self.frame_offset(pointer);
        let to = from.wrapping_add(pointer.length() as usize);
        self.bytes.get(from..to).unwrap_or_default()
    }

    /// Copies the byte at offset `at` in each view to [`Columns::byte_column`]. Returns false if a
    /// view has no byte at this offset.
    #[inline]
    pub(super) fn read_byte_column(&self, at: usize, columns: &mut Columns) -> bool {
        let (bytes, start) = (self.bytes, self.start.wrapping_sub(at as u64));
        let Columns { pointers, byte_column: column, len, .. } = columns;
        let mut all = true;
        for (pointer, byte) in pointers.iter().zip(column).take(*len) {
            let found = bytes.get(pointer.place.position().wrapping_sub(start) as usize);
            all &= at < pointer.length() as usize && found.is_some();
            *byte = found.copied().unwrap_or_default();
        }
        all
    }

    #[inline]
    fn frame_offset(&self, pointer: &RichPointer) -> usize {
        pointer.place.position().wrapping_sub(self.start) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Batch, BatchMemory, Block, LANES, LaneMask, first_lanes_mask};
    use abi::{BlockMetadata, Class, DbufId, Entry, Marks, RichPointer};
    use testkit::Random;

    /// Changes to the entry of a block. Each of them places the block outside of the segment, so
    /// that [`SegmentFrames::from_columns`] must reject the batch.
    const INVALIDATING_CHANGES: [fn(&mut Entry); 4] = [
        |entry| entry.pointer = RichPointer::hole(entry.pointer.length()),
        |entry| entry.marks.captured += 100_000,
        |entry| entry.marks.captured = entry.marks.view,
        |entry| entry.marks.view += 100_000,
    ];

    fn random_entry(random: &mut Random, dbuf: DbufId, start: u64, bytes: usize) -> Entry {
        let (from, captured) = (random.within(0..bytes - 300), random.within(1..300));
        let view = random.within(0..captured);
        let length = random.within(1..captured - view + 1) as u32;
        let place = abi::Extent::new(start + (from + view) as u64, length);
        let mut marks = Marks::for_plain_block(captured as u32);
        marks.view = view as u32;
        Entry::new(RichPointer::new(dbuf, place, Class::YES), BlockMetadata::default(), marks)
    }

    fn blocks_and_views<'b>(batch: &Batch<'b>) -> (Vec<Block<'b>>, Vec<&'b [u8]>) {
        let mut views = Vec::new();
        batch.for_each_view(|view| views.push(view));
        (batch.blocks().map(|(_, block)| block).collect(), views)
    }

    fn batch_of_resolved_frames<'b>(
        room: BatchMemory,
        entries: &[Entry],
        bytes: &'b [u8],
        start: u64,
    ) -> Batch<'b> {
        Batch::new(room, |columns, l| {
            let from = (columns.frame(l).place.position() - start) as usize;
            &bytes[from..from + entries[l].marks.captured as usize]
        })
    }

    #[test]
    fn segment_batch_equals_batch_of_resolved_frames() {
        let mut random = Random::new(11);
        let (dbuf, bytes) = (DbufId::new(7).unwrap(), random.bytes(5000));
        for round in 0..2000 {
            let start = [0, 1 << 20, (1 << 44) - 5000][round % 3];
            let count = random.within(1..LANES + 1);
            let mut entries: Vec<_> =
                (0..count).map(|_| random_entry(&mut random, dbuf, start, bytes.len())).collect();
            let room = |entries: &[Entry]| {
                let mut room = BatchMemory::default();
                assert!(entries.iter().all(|entry| room.columns.push(*entry)));
                room
            };
            let mut segment = Batch::from_segment(room(&entries), dbuf, start, &bytes).unwrap();
            let mut resolved = batch_of_resolved_frames(room(&entries), &entries, &bytes, start);
            let live = first_lanes_mask(count)
                & if round % 2 == 0 { LaneMask::MAX } else { random.next_u64() };
            segment.set_live_lanes(live);
            resolved.set_live_lanes(live);
            let printed = |batch: &Batch<'_>| format!("{:?}", blocks_and_views(batch));
            assert_eq!(printed(&segment), printed(&resolved));

            // Two offsets, so that one repeats and the cached column is used.
            let places = [random.within(0..40), random.within(0..40)];
            for _ in 0..6 {
                let (at, wanted) = (places[random.within(0..2)], random.next_u64() as u8 & 0x1f);
                let has = |byte: u8| byte & 0x1f >= wanted;
                let mask = segment.classify_byte(at, has);
                assert_eq!(mask, resolved.classify_byte(at, has), "{round}");
                let not = resolved.blocks().filter(|(_, b)| !b.byte(at).is_some_and(has));
                assert_eq!(mask, not.map(|(l, _)| 1 << l).sum::<LaneMask>());
                assert_eq!(
                    (segment.answered_lanes(), printed(&segment)),
                    (live & !mask, printed(&resolved))
                );
                match random.within(0..5) {
                    0 => {
                        let odd =
                            |view: &[u8]| view.iter().fold(0, |sum, byte| sum ^ byte) & 1 == 1;
                        let mask = segment.classify_view(odd);
                        assert_eq!(mask, resolved.classify_view(odd), "{round}");
                        let not = resolved.blocks().filter(|(_, b)| !odd(b.bytes()));
                        assert_eq!(mask, not.map(|(l, _)| 1 << l).sum::<LaneMask>());
                        assert_eq!(
                            (segment.answered_lanes(), printed(&segment)),
                            (live & !mask, printed(&resolved))
                        );
                    }
                    1 => {
                        let l = random.within(0..count);
                        segment.set_class(l, Class(7));
                        resolved.set_class(l, Class(7));
                    }
                    2 => {
                        let (to, from) = (random.within(0..count), random.within(0..count));
                        let moved = resolved.block(from);
                        segment.set_block(to, moved);
                        resolved.set_block(to, moved);
                    }
                    _ => {}
                }
            }
            let amount = |batch: &mut Batch<'_>| batch.cache_amount_in_lanes(batch.live_lanes());
            assert_eq!(amount(&mut segment), amount(&mut resolved));

            let at = random.within(0..count);
            INVALIDATING_CHANGES[random.within(0..INVALIDATING_CHANGES.len())](&mut entries[at]);
            assert!(Batch::from_segment(room(&entries), dbuf, start, &bytes).is_err(), "{round}");
        }
    }
}
