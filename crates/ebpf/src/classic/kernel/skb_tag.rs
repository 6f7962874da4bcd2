//! Rewriting of loads for frames whose outermost VLAN tag is in the skb.
//!
//! Input: an instruction that expects the tag at bytes 12 to 15. Output: code that leaves the same
//! A and X for a frame without these bytes, and fails in the same cases.
//!
//! - Bytes before 12 do not move. The frame contains both addresses, so a load of these bytes never
//!   fails.
//! - Bytes from 16 on are four bytes earlier, and the frame ends four bytes earlier: a load at k
//!   fails with the tag inline if and only if the load at k - 4 fails without it.
//! - The tag itself is assembled from the skb. With the tag inline, the frame would have at least
//!   sixteen bytes, so a load within the tag never fails.
//! - A load across a boundary of the tag is assembled from its parts, of which only the last can
//!   fail.
//! - A load at X plus k is one of these cases, selected by X alone, because k is not negative and
//!   the sum does not wrap. If X is at least 16 - k, the load is after the tag. Of the smaller
//!   values of X, at most seven touch the tag, and each of these has its own code. If k is at least
//!   16, every load is after the tag.

use super::super::assemble::{
    PseudoInsn, TAX, TXA, alu_k, alu_x, load_a_from_word, load_x_from_word, non_branching, store_a,
};
use super::super::insn::{ANCILLARY_OFFSET, Instruction, code};
use super::ancillary;
use super::code_writer::CodeWriter;
use super::error::SocketFilterError;
use super::reachability::TAG_START_OFFSET;

/// Byte offset of the control information, the second half of an inline tag.
pub(super) const TCI_OFFSET: u32 = 14;
/// Offset at which an inline tag ends.
pub(super) const TAG_END_OFFSET: u32 = 16;
/// Length of an inline VLAN tag in bytes.
pub(super) const TAG_LENGTH: u32 = TAG_END_OFFSET - TAG_START_OFFSET;

impl CodeWriter {
    /// Appends an instruction, rewritten for frames whose outermost tag is in the skb. The
    /// rewritten instruction may use the scratch word `free`. Fails if it needs a scratch word and
    /// `free` is `None`.
    pub(super) fn rewrite_for_skb_tag(
        &mut self,
        instruction: Instruction,
        free: Option<u32>,
    ) -> Result<(), SocketFilterError> {
        let Instruction { code: what, k, .. } = instruction;
        let size = match what & 0x18 {
            code::B => 1,
            code::H => 2,
            _ => 4,
        };
        let free = free.ok_or(SocketFilterError::NoScratchWord);
        match (what & 0x07, what & 0xe0) {
            (code::LD, code::ABS) => self.push_absolute_load(k, size, free),
            (code::LD, code::IND) => self.push_indirect_load(k, size, free),
            (code::LD, code::LEN) => {
                self.push_all([
                    PseudoInsn::NonBranching(instruction),
                    alu_k(code::ADD, TAG_LENGTH),
                ]);
                Ok(())
            }
            (code::LDX, code::LEN) => self.push_length_to_x(code::ADD, free),
            (code::LDX, code::MSH) if (TAG_START_OFFSET..TAG_END_OFFSET).contains(&k) => {
                let free = free?;
                self.push_all([store_a(free)]);
                self.push_absolute_load(k, 1, Ok(free))?;
                let four_times = [alu_k(code::AND, 0xf), alu_k(code::LSH, 2)];
                self.push_all(four_times.into_iter().chain([TAX, load_a_from_word(free)]));
                Ok(())
            }
            (code::LDX, code::MSH) => {
                let k = if k < TAG_START_OFFSET { k } else { k - TAG_LENGTH };
                self.push_all([PseudoInsn::NonBranching(Instruction { k, ..instruction })]);
                Ok(())
            }
            _ => {
                self.push_all([PseudoInsn::NonBranching(instruction)]);
                Ok(())
            }
        }
    }

    /// Appends code that sets X to the length of the frame plus or minus the length of a tag, as
    /// `operation` selects. Preserves A by saving it in the scratch word `free`.
    pub(super) fn push_length_to_x(
        &mut self,
        operation: u16,
        free: Result<u32, SocketFilterError>,
    ) -> Result<(), SocketFilterError> {
        let free = free?;
        let length = non_branching(code::LD | code::LEN, 0);
        let changed = alu_k(operation, TAG_LENGTH);
        self.push_all([store_a(free), length, changed, TAX, load_a_from_word(free)]);
        Ok(())
    }

    /// Appends a load of `size` bytes at `k` into A. Preserves X. May use the scratch word `free`.
    fn push_absolute_load(
        &mut self,
        k: u32,
        size: u32,
        free: Result<u32, SocketFilterError>,
    ) -> Result<(), SocketFilterError> {
        self.push_load_parts(&split_load(k, size), free)
    }

    /// Appends code that assembles a value in A from the partial loads `parts`. Preserves X.
    pub(super) fn push_load_parts(
        &mut self,
        parts: &[LoadPart],
        free: Result<u32, SocketFilterError>,
    ) -> Result<(), SocketFilterError> {
        let [first, rest @ ..] = parts else { return Ok(()) };
        self.push_all(first.instructions());
        if rest.is_empty() {
            return Ok(());
        }
        let free = free?;
        self.push_all([non_branching(code::STX, free)]);
        for part in rest {
            self.push_all([alu_k(code::LSH, 8 * part.size), TAX]);
            self.push_all(part.instructions());
            self.push_all([alu_x(code::OR)]);
        }
        self.push_all([load_x_from_word(free)]);
        Ok(())
    }

    /// Appends a load of `size` bytes at X plus `k` into A. Preserves X. May use the scratch word
    /// `free`.
    fn push_indirect_load(
        &mut self,
        k: u32,
        size: u32,
        free: Result<u32, SocketFilterError>,
    ) -> Result<(), SocketFilterError> {
        let load = |k| non_branching(code::LD | code::IND | size_code(size), k);
        if k >= TAG_END_OFFSET {
            self.push_all([load(k - TAG_LENGTH)]);
            return Ok(());
        }
        // If X is below `first`, the load ends before the tag; if X is at least `last`, the load
        // begins after the tag.
        let (first, last) = ((TAG_START_OFFSET + 1 - size).saturating_sub(k), TAG_END_OFFSET - k);
        let (above, touching, done) = (self.new_label(), self.new_label(), self.new_label());
        self.push_all([TXA]);
        let below = self.new_label();
        self.branch(code::JGE, last, above, below);
        self.bind(below);
        if first > 0 {
            let before = self.new_label();
            self.branch(code::JGE, first, touching, before);
            self.bind(before);
            self.push_all([load(k)]);
            self.jump(done);
        }
        self.bind(touching);
        for x in first..last {
            let next = self.new_label();
            if x + 1 < last {
                let this = self.new_label();
                self.branch_if_equal(x, this, next);
                self.bind(this);
            }
            self.push_absolute_load(x + k, size, free)?;
            self.jump(done);
            self.bind(next);
        }
        self.bind(above);
        match k.checked_sub(TAG_LENGTH) {
            Some(k) => self.push_all([load(k)]),
            // X is at least `TAG_LENGTH - k`, so the subtraction does not wrap.
            None => {
                let free = free?;
                let subtract = alu_k(code::SUB, TAG_LENGTH - k);
                self.push_all([
                    non_branching(code::STX, free),
                    subtract,
                    TAX,
                    load(0),
                    load_x_from_word(free),
                ]);
            }
        }
        self.bind(done);
        Ok(())
    }
}

/// One of the partial loads that together replace a load across a boundary of the VLAN tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadPart {
    pub(super) size: u32,
    /// Offset in the frame from which this partial load reads. For a half of the tag in the skb, it
    /// is the ancillary offset of this half.
    pub(super) from: u32,
    /// The only byte that this partial load contributes, if it reads a half of the tag; `None` if
    /// it contributes all bytes that it reads.
    byte: Option<TagByte>,
}

/// One byte of a 16-bit half of a VLAN tag.
#[derive(Clone, Copy, Debug)]
enum TagByte {
    High,
    Low,
}

impl LoadPart {
    fn instructions(&self) -> impl Iterator<Item = PseudoInsn> {
        let width = if self.from < ANCILLARY_OFFSET { size_code(self.size) } else { code::W };
        let load = non_branching(code::LD | code::ABS | width, self.from);
        let cut = self.byte.map(|cut| match cut {
            TagByte::High => alu_k(code::RSH, 8),
            TagByte::Low => alu_k(code::AND, 0xff),
        });
        [load].into_iter().chain(cut)
    }
}

/// Returns the partial loads, in byte order, that replace a load of `size` bytes at `k` for a frame
/// whose tag is in the skb.
fn split_load(k: u32, size: u32) -> Vec<LoadPart> {
    let end = k + size;
    let half = |from: u32, begins: u32| {
        let (first, behind) = (k.max(begins), end.min(begins + 2));
        let cut = match (behind.saturating_sub(first), first == begins) {
            (0, _) => return None,
            (2, _) => None,
            (_, true) => Some(TagByte::High),
            (_, false) => Some(TagByte::Low),
        };
        Some(LoadPart { size: behind - first, from, byte: cut })
    };
    let tag =
        [(ancillary::VLAN_TPID_OFFSET, TAG_START_OFFSET), (ancillary::VLAN_TCI_OFFSET, TCI_OFFSET)];
    let tag = tag.into_iter().filter_map(|(from, begins)| half(from, begins));
    let (before, behind) = (
        split_frame_bytes(k, end.min(TAG_START_OFFSET)),
        split_frame_bytes(k.max(TAG_END_OFFSET), end),
    );
    let behind = behind.map(|part| LoadPart { from: part.from - TAG_LENGTH, ..part });
    before.chain(tag).chain(behind).collect()
}

/// Yields at most two loads, of one, two or four bytes each, that together cover the frame bytes
/// `from..to`.
pub(super) fn split_frame_bytes(from: u32, to: u32) -> impl Iterator<Item = LoadPart> {
    let size = to.saturating_sub(from);
    let sizes = if size == 3 { [2, 1] } else { [size, 0] };
    let places = [from, from.saturating_add(sizes[0])];
    let parts = places.into_iter().zip(sizes).filter(|(_, size)| *size > 0);
    parts.map(|(from, size)| LoadPart { size, from, byte: None })
}

/// Returns the size bits of the opcode of a load of `size` bytes.
pub(super) const fn size_code(size: u32) -> u16 {
    match size {
        1 => code::B,
        2 => code::H,
        _ => code::W,
    }
}
