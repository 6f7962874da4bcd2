//! Frames that all lie in one segment: found when somebody looks, by where they lie.

use super::columns::Columns;
use abi::{DbufId, Marks, RichPointer};

/// The filled bytes of a segment, of which the first has the position `start`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near<'a> {
    start: u64,
    bytes: &'a [u8],
}

impl<'a> Near<'a> {
    /// The segment, if the frames of all lanes lie in it and all views in their frames.
    #[inline]
    pub(super) fn of(columns: &Columns, dbuf: DbufId, start: u64, bytes: &'a [u8]) -> Option<Self> {
        let from = i64::try_from(start).ok()?;
        let size = i64::try_from(bytes.len()).ok()?;
        // Nothing is decided per lane: what must not be below 0 is so in none if the union of all
        // is not. Positions have 44 bits, the other numbers 32.
        let (mut below, mut others) = (0, 0);
        let len = columns.len;
        for (pointer, marks) in columns.pointers.get(..len)?.iter().zip(columns.marks.get(..len)?) {
            let (view, captured) = (i64::from(marks.view), i64::from(marks.captured));
            let begin = pointer.place.position() as i64 - from - view;
            below |= begin | (size - begin - captured);
            below |= captured - view - i64::from(pointer.length());
            others |= pointer.dbuf().number() ^ dbuf.number();
        }
        let near = below >= 0 && others == 0 && from < 1 << 62;
        near.then_some(Self { start, bytes })
    }

    /// The captured bytes.
    #[inline]
    pub(super) fn frame(&self, pointer: &RichPointer, marks: &Marks) -> &'a [u8] {
        let from = self.offset(pointer).wrapping_sub(marks.view as usize);
        let rest = self.bytes.get(from..).unwrap_or_default();
        rest.get(..marks.captured as usize).unwrap_or_default()
    }

    /// The bytes in view.
    #[inline]
    pub(super) fn view(&self, pointer: &RichPointer) -> &'a [u8] {
        let from = self.offset(pointer);
        let to = from.wrapping_add(pointer.length() as usize);
        self.bytes.get(from..to).unwrap_or_default()
    }

    /// Reads the byte so many bytes behind the first in view of each lane into the column; answers
    /// whether all lanes have one.
    #[inline]
    pub(super) fn read(&self, at: usize, columns: &mut Columns) -> bool {
        let (bytes, start) = (self.bytes, self.start.wrapping_sub(at as u64));
        let Columns { pointers, column, len, .. } = columns;
        let mut all = true;
        for (pointer, byte) in pointers.iter().zip(column).take(*len) {
            let found = bytes.get(pointer.place.position().wrapping_sub(start) as usize);
            all &= at < pointer.length() as usize && found.is_some();
            *byte = found.copied().unwrap_or_default();
        }
        all
    }

    #[inline]
    fn offset(&self, pointer: &RichPointer) -> usize {
        pointer.place.position().wrapping_sub(self.start) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Batch, Block, LANES, LaneMask, Room, mask_of};
    use crate::contract::turn::Amount;
    use abi::{BlockMetadata, Class, DbufId, Entry, Marks, RichPointer};
    use testkit::Random;

    /// Faults to inject into a batch, after which it is no longer of one segment.
    const WRONG: [fn(&mut Entry); 4] = [
        |entry| entry.pointer = RichPointer::hole(entry.pointer.length()),
        |entry| entry.marks.captured += 100_000,
        |entry| entry.marks.captured = entry.marks.view,
        |entry| entry.marks.view += 100_000,
    ];

    fn entry(random: &mut Random, dbuf: DbufId, start: u64, bytes: usize) -> Entry {
        let (from, captured) = (random.within(0..bytes - 300), random.within(1..300));
        let view = random.within(0..captured);
        let length = random.within(1..captured - view + 1) as u32;
        let place = abi::Extent::new(start + (from + view) as u64, length);
        let mut marks = Marks::bare(captured as u32);
        marks.view = view as u32;
        Entry::new(RichPointer::new(dbuf, place, Class::YES), BlockMetadata::default(), marks)
    }

    fn all<'b>(batch: &Batch<'b>) -> (Vec<Block<'b>>, Vec<&'b [u8]>) {
        let mut views = Vec::new();
        batch.views(|view| views.push(view));
        (batch.blocks().map(|(_, block)| block).collect(), views)
    }

    #[test]
    fn blocks_near_each_other_are_as_those_that_were_looked_for_one_by_one() {
        let mut random = Random::new(11);
        let (dbuf, bytes) = (DbufId::new(7).unwrap(), random.bytes(5000));
        for round in 0..2000 {
            let start = [0, 1 << 20, (1 << 44) - 5000][round % 3];
            let count = random.within(1..LANES + 1);
            let mut entries: Vec<_> =
                (0..count).map(|_| entry(&mut random, dbuf, start, bytes.len())).collect();
            let room = |entries: &[Entry]| {
                let mut room = Room::default();
                assert!(entries.iter().all(|entry| room.columns.push(*entry)));
                room
            };
            let frames = |entries: Vec<Entry>| {
                let bytes = &bytes;
                Batch::new(room(&entries), move |columns, l| {
                    let from = (columns.frame(l).place.position() - start) as usize;
                    &bytes[from..from + entries[l].marks.captured as usize]
                })
            };
            let mut near = Batch::of_segment(room(&entries), dbuf, start, &bytes).unwrap();
            let mut apart = frames(entries.clone());
            let live = mask_of(count) & if round % 2 == 0 { LaneMask::MAX } else { random.next() };
            near.set_live(live);
            apart.set_live(live);
            let told = |batch: &Batch<'_>| format!("{:?}", all(batch));
            assert_eq!(told(&near), told(&apart));

            // Two offsets, so that one is asked for twice: then the bytes are known.
            let places = [random.within(0..40), random.within(0..40)];
            for _ in 0..6 {
                let (at, wanted) = (places[random.within(0..2)], random.next() as u8 & 0x1f);
                let has = |byte: u8| byte & 0x1f >= wanted;
                let mask = near.classify_byte(at, has);
                assert_eq!(mask, apart.classify_byte(at, has), "{round}");
                let not = apart.blocks().filter(|(_, b)| !b.byte(at).is_some_and(has));
                assert_eq!(mask, not.map(|(l, _)| 1 << l).sum::<LaneMask>());
                assert_eq!((near.answered(), told(&near)), (live & !mask, told(&apart)));
                match random.within(0..5) {
                    0 => {
                        let odd =
                            |view: &[u8]| view.iter().fold(0, |sum, byte| sum ^ byte) & 1 == 1;
                        let mask = near.classify_view(odd);
                        assert_eq!(mask, apart.classify_view(odd), "{round}");
                        let not = apart.blocks().filter(|(_, b)| !odd(b.bytes()));
                        assert_eq!(mask, not.map(|(l, _)| 1 << l).sum::<LaneMask>());
                        assert_eq!((near.answered(), told(&near)), (live & !mask, told(&apart)));
                    }
                    1 => {
                        let l = random.within(0..count);
                        [&mut near, &mut apart].into_iter().for_each(|b| b.set_class(l, Class(7)));
                    }
                    2 => {
                        let (to, from) = (random.within(0..count), random.within(0..count));
                        let moved = apart.block(from);
                        [&mut near, &mut apart].into_iter().for_each(|b| b.set(to, moved));
                    }
                    _ => {}
                }
            }
            let amount = |batch: &mut Batch<'_>| -> Amount { batch.amount(batch.live()) };
            assert_eq!(amount(&mut near), amount(&mut apart));

            let at = random.within(0..count);
            WRONG[random.within(0..WRONG.len())](&mut entries[at]);
            assert!(Batch::of_segment(room(&entries), dbuf, start, &bytes).is_err(), "{round}");
        }
    }
}
