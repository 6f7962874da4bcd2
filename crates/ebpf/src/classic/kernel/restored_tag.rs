//! Rewriting of loads for frames whose outermost VLAN tag has been restored.
//!
//! Input: an instruction that expects the tag in the skb. Output: code that leaves the same A and X
//! for a frame with the tag at bytes 12 to 15, and fails in the same cases. This is the inverse of
//! [`tagged`](super::skb_tag).
//!
//! - Bytes before 12 do not move. Bytes from 12 on are four bytes later, and the frame ends four
//!   bytes later: a load at k fails without the tag if and only if the load at k + 4 fails with it.
//! - A load across byte 12 is assembled from its parts, of which only the last can fail.
//! - A load at X plus k is one of these cases, selected by X alone. Of all values of X, at most
//!   three touch both sides of byte 12, and each of these has its own code. If k is at least 12,
//!   every load is after the tag.
//! - Loads of the tag from the skb become loads from the frame.

use super::super::assemble::{PseudoInsn, TXA, alu_k, load_a_constant, non_branching};
use super::super::insn::{ANCILLARY_OFFSET, Instruction, code};
use super::ancillary;
use super::code_writer::CodeWriter;
use super::error::SocketFilterError;
use super::reachability::TAG_START_OFFSET;
use super::skb_tag::{
    LoadPart, TAG_END_OFFSET, TAG_LENGTH, TCI_OFFSET, size_code, split_frame_bytes,
};

impl CodeWriter {
    /// Appends an instruction, rewritten for frames whose outermost tag has been restored. The
    /// rewritten instruction may use the scratch word `free`. Fails if it needs a scratch word and
    /// `free` is `None`.
    pub(super) fn rewrite_for_restored_tag(
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
        let half_at = |k| non_branching(code::LD | code::ABS | code::H, k);
        match (what & 0x07, what & 0xe0) {
            (code::LD, code::ABS) if k >= ANCILLARY_OFFSET => {
                self.push_all([match k {
                    ancillary::VLAN_PRESENT_OFFSET => load_a_constant(1),
                    ancillary::VLAN_TCI_OFFSET => half_at(TCI_OFFSET),
                    ancillary::VLAN_TPID_OFFSET => half_at(TAG_START_OFFSET),
                    ancillary::PROTOCOL_OFFSET => half_at(TAG_END_OFFSET),
                    _ => PseudoInsn::NonBranching(instruction),
                }]);
                Ok(())
            }
            (code::LD, code::ABS) => self.push_load_parts(&split_at_tag(k, size), free),
            (code::LD, code::IND) => self.push_load_at_x(k, size, free),
            (code::LD, code::LEN) => {
                let shorter = alu_k(code::SUB, TAG_LENGTH);
                self.push_all([PseudoInsn::NonBranching(instruction), shorter]);
                Ok(())
            }
            (code::LDX, code::LEN) => self.push_length_to_x(code::SUB, free),
            (code::LDX, code::MSH) => {
                let k = if k < TAG_START_OFFSET { k } else { offset_with_restored_tag(k) };
                self.push_all([PseudoInsn::NonBranching(Instruction { k, ..instruction })]);
                Ok(())
            }
            _ => {
                self.push_all([PseudoInsn::NonBranching(instruction)]);
                Ok(())
            }
        }
    }

    /// Appends a load of `size` bytes at X plus `k` into A. Preserves X. May use the scratch word
    /// `free`.
    fn push_load_at_x(
        &mut self,
        k: u32,
        size: u32,
        free: Result<u32, SocketFilterError>,
    ) -> Result<(), SocketFilterError> {
        let load = |k| non_branching(code::LD | code::IND | size_code(size), k);
        if k >= TAG_START_OFFSET {
            self.push_all([load(offset_with_restored_tag(k))]);
            return Ok(());
        }
        // If X is below `first`, the load ends before byte 12; if X is at least `last`, the load
        // begins at byte 12 or later.
        let (first, last) = ((TAG_START_OFFSET + 1 - size).saturating_sub(k), TAG_START_OFFSET - k);
        let (above, below, done) = (self.new_label(), self.new_label(), self.new_label());
        self.push_all([TXA]);
        self.branch(code::JGE, last, above, below);
        self.bind(below);
        for x in first..last {
            let (this, next) = (self.new_label(), self.new_label());
            self.branch_if_equal(x, this, next);
            self.bind(this);
            self.push_load_parts(&split_at_tag(x + k, size), free)?;
            self.jump(done);
            self.bind(next);
        }
        self.push_all([load(k)]);
        self.jump(done);
        self.bind(above);
        self.push_all([load(offset_with_restored_tag(k))]);
        self.bind(done);
        Ok(())
    }
}

/// Rewrites an instruction for frames without a tag: loads of the tag from the skb yield 0.
pub(super) fn rewrite_for_absent_tag(instruction: Instruction) -> PseudoInsn {
    let tag =
        [ancillary::VLAN_PRESENT_OFFSET, ancillary::VLAN_TCI_OFFSET, ancillary::VLAN_TPID_OFFSET];
    let is_load = instruction.code & 0xe7 == code::LD | code::ABS;
    match is_load && tag.contains(&instruction.k) {
        true => load_a_constant(0),
        false => PseudoInsn::NonBranching(instruction),
    }
}

/// Returns the partial loads, in byte order, that replace a load of `size` bytes at `k`, so that
/// none of them crosses the restored tag.
fn split_at_tag(k: u32, size: u32) -> Vec<LoadPart> {
    let end = k.saturating_add(size);
    let mut parts: Vec<LoadPart> = split_frame_bytes(k.max(TAG_START_OFFSET), end).collect();
    parts.iter_mut().for_each(|part| part.from = offset_with_restored_tag(part.from));
    split_frame_bytes(k, end.min(TAG_START_OFFSET)).chain(parts).collect()
}

/// Converts an offset in the untagged frame, at byte 12 or later, to the offset in the frame with
/// its tag restored. Stays below the ancillary offsets, so that a load beyond the frame does not
/// become a load of metadata.
fn offset_with_restored_tag(k: u32) -> u32 {
    k.saturating_add(TAG_LENGTH).min(ANCILLARY_OFFSET - 1)
}
