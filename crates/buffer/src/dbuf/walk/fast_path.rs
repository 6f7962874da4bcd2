//! The fast path of reads, for records that end at or before `fast_limit`. A single comparison with
//! the expected header replaces all checks.

use super::{CheckedRecord, RecordWalk};
use abi::ring::RecordHeader;

impl RecordWalk {
    /// Copies the next block into `out` and advances past it. Does so only if the block ends at or
    /// before `fast_limit`, has the expected sequence number, and is exactly as long as `out`.
    /// Otherwise does nothing and returns false. Equivalent to the checks of [`RecordWalk::find`]
    /// in fewer instructions.
    // Inlined: saving registers for a call would cost as much as copying 64 bytes (`bench pipe`).
    #[inline(always)]
    pub(crate) fn take_block(&mut self, out: &mut [u8]) -> bool {
        let start = self.side.next;
        let end = start + RecordHeader::span_for_length(out.len());
        if end > self.fast_limit
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

    /// Returns the next record if it is a block, ends at or before `fast_limit`, and has the
    /// expected sequence number. Returns `None` in all other cases, and always if the ring
    /// overwrites.
    ///
    /// Assumes that the block is as long as the last one, and compares the header with this
    /// assumption. The processor can thus compute the address of the following record without
    /// waiting for this header, which another processor may just have written.
    ///
    /// For speed, callers should use the result directly, before merging it with a result of
    /// [`RecordWalk::find`]: a merged value is passed through memory and stalls on store forwarding
    /// (`bench peek`).
    #[inline]
    pub(crate) fn find_on_fast_path(&mut self) -> Option<CheckedRecord> {
        let (start, expected_words) = (self.side.next, [self.expected_header_word, self.expected]);
        if start >= self.fast_limit {
            return None;
        }
        let header = self.data.header(start);
        if header != expected_words && !self.adopt_expected_length(header) {
            return None;
        }
        let end = start + self.expected_record_length;
        (end <= self.fast_limit).then(|| CheckedRecord {
            at: start + RecordHeader::SIZE as u64,
            length: RecordHeader::from_words([self.expected_header_word, 0]).length,
            bytes_read: 0,
            sequence: self.expected,
            lost: 0,
            end,
        })
    }

    /// Advances past a block that [`RecordWalk::find_on_fast_path`] has returned. The block follows
    /// the last block passed, so none was lost in between.
    #[inline]
    pub(crate) fn pass_on_fast_path(&mut self, found: &CheckedRecord) {
        debug_assert!(self.is_expected_valid && found.sequence == self.expected && found.lost == 0);
        self.side.next = found.end;
        self.expected = self.expected.wrapping_add(1);
        self.side.taken.bytes += u64::from(found.length);
    }

    /// Predicts that later blocks are as long as the block of this header. Does nothing and returns
    /// false unless the header belongs to the next block.
    #[inline(never)]
    fn adopt_expected_length(&mut self, words: [u64; 2]) -> bool {
        let header = RecordHeader::from_words(words);
        let follows = header.kind == RecordHeader::KIND_BLOCK && header.sequence == self.expected;
        if follows {
            [self.expected_header_word, _] = words;
            self.expected_record_length = RecordHeader::span(header.length);
        }
        follows
    }
}
