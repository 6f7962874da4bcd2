//! Records that need no care: what was seen to be there, up to `plain`. One comparison with what
//! the next header must be stands for all checks.

use super::{FoundRecord, Walk};
use abi::ring::RecordHeader;

impl Walk {
    /// Copies the next block into `out` and passes it, if it was seen to be there, follows the one
    /// before and is exactly as long as `out`: the same checks as in [`Walk::find`], in as few
    /// instructions as there can be.
    // A call with its registers saved costs as much as the copy of 64 bytes (`bench pipe`).
    #[inline(always)]
    pub(crate) fn take(&mut self, out: &mut [u8]) -> bool {
        let start = self.side.next;
        let end = start + RecordHeader::spans(out.len());
        if end > self.plain
            || self.data.header(start) != RecordHeader::block_words(out.len(), self.expected)
        {
            return false;
        }
        self.data.copy_out(start + RecordHeader::SIZE as u64, out);
        self.side.next = end;
        self.expected = self.expected.wrapping_add(1);
        self.side.taken.bytes += out.len() as u64;
        true
    }

    /// The next record, where it is a block that was seen to be there and follows the one before.
    /// For everything else there is no answer here, and so never where the ring overwrites.
    ///
    /// It is taken to be as long as the one before, and then found to be: so where the next one
    /// begins does not wait for this header, which another processor may just have written.
    ///
    /// Who wants few instructions uses the answer before it meets that of [`Walk::find`]: where the
    /// two meet, it goes through memory, and waits there for its own stores (`bench peek`).
    #[inline]
    pub(crate) fn at_hand(&mut self) -> Option<FoundRecord> {
        let (start, likely) = (self.side.next, [self.likely, self.expected]);
        if start >= self.plain {
            return None;
        }
        let header = self.data.header(start);
        if header != likely && !self.learn(header) {
            return None;
        }
        let end = start + self.span;
        (end <= self.plain).then(|| FoundRecord {
            at: start + RecordHeader::SIZE as u64,
            length: RecordHeader::from_words([self.likely, 0]).length,
            done: 0,
            sequence: self.expected,
            lost: 0,
            end,
        })
    }

    /// Passes a block that was at hand, and was not passed since: it follows the one before, so
    /// nothing was lost.
    #[inline]
    pub(crate) fn pass_at_hand(&mut self, found: &FoundRecord) {
        debug_assert!(self.known && found.sequence == self.expected && found.lost == 0);
        self.side.next = found.end;
        self.expected = self.expected.wrapping_add(1);
        self.side.taken.bytes += u64::from(found.length);
    }

    /// Takes blocks to be as long as this header says, if it is that of the next block.
    #[inline(never)]
    fn learn(&mut self, words: [u64; 2]) -> bool {
        let header = RecordHeader::from_words(words);
        let follows = header.kind == RecordHeader::BLOCK && header.sequence == self.expected;
        if follows {
            [self.likely, _] = words;
            self.span = RecordHeader::span(header.length);
        }
        follows
    }
}
