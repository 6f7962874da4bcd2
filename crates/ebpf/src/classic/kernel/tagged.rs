//! What the loads of a program become where the outermost VLAN tag is in the skb.
//!
//! In: an instruction that expects the tag at bytes 12 to 15; out: lines that leave in A and X what
//! it would have left, from a frame without these bytes, and that fail where it would have failed.
//!
//! - Before byte 12 nothing moves. The frame has its addresses, so that no such load fails, with
//!   the tag or without.
//! - From byte 16 on everything stands four bytes earlier, and the frame ends four bytes earlier: a
//!   load at k fails in the one exactly if the load at k - 4 does in the other.
//! - The tag itself is put together from the skb. With it in place the frame would have sixteen
//!   bytes, so that no load within it fails.
//! - A load over a border is put together from its parts, of which only the last can fail.
//! - A load at X plus k is one of these, depending on X alone, because k is not negative and the
//!   sum does not wrap: X of 16 - k and more leads behind the tag; below that there are at most
//!   seven values for which the load touches the tag, each with lines of its own. With k of 16 or
//!   more, no X leads elsewhere than behind the tag.

use super::super::insn::{ANCILLARY, Instruction, code};
use super::super::lines::{Line, TAX, TXA, alu_k, alu_x, line, memory_to_a, memory_to_x, store_a};
use super::write::Lines;
use super::{Refusal, known};

/// The types of the tags that the kernel takes out: 802.1Q and 802.1ad.
pub(super) const TPIDS: [u32; 2] = [0x8100, 0x88a8];
/// Where the tag would begin.
pub(super) const TAG: u32 = 12;
/// Where its second half would begin.
const TCI: u32 = 14;
/// Where it would end.
const BEHIND: u32 = 16;
/// How long it is.
const LENGTH: u32 = BEHIND - TAG;

impl Lines {
    /// Appends what the instruction becomes; `free` is a scratch word for it to use.
    pub(super) fn tagged(
        &mut self,
        instruction: Instruction,
        free: Option<u32>,
    ) -> Result<(), Refusal> {
        let Instruction { code: what, k, .. } = instruction;
        let size = match what & 0x18 {
            code::B => 1,
            code::H => 2,
            _ => 4,
        };
        let free = free.ok_or(Refusal::Scratch);
        match (what & 0x07, what & 0xe0) {
            (code::LD, code::ABS) => self.absolute(k, size, free),
            (code::LD, code::IND) => self.indirect(k, size, free),
            (code::LD, code::LEN) => {
                self.put([Line::Plain(instruction), alu_k(code::ADD, LENGTH)]);
                Ok(())
            }
            (code::LDX, code::LEN) => {
                let free = free?;
                let length = line(code::LD | code::LEN, 0);
                let longer = alu_k(code::ADD, LENGTH);
                self.put([store_a(free), length, longer, TAX, memory_to_a(free)]);
                Ok(())
            }
            (code::LDX, code::MSH) if (TAG..BEHIND).contains(&k) => {
                let free = free?;
                self.put([store_a(free)]);
                self.absolute(k, 1, Ok(free))?;
                let four_times = [alu_k(code::AND, 0xf), alu_k(code::LSH, 2)];
                self.put(four_times.into_iter().chain([TAX, memory_to_a(free)]));
                Ok(())
            }
            (code::LDX, code::MSH) => {
                let k = if k < TAG { k } else { k - LENGTH };
                self.put([Line::Plain(Instruction { k, ..instruction })]);
                Ok(())
            }
            _ => {
                self.put([Line::Plain(instruction)]);
                Ok(())
            }
        }
    }

    /// Loads `size` bytes at `k` into A; X stays.
    fn absolute(&mut self, k: u32, size: u32, free: Result<u32, Refusal>) -> Result<(), Refusal> {
        let parts = parts(k, size);
        let [first, rest @ ..] = parts.as_slice() else { return Ok(()) };
        self.put(first.load());
        if rest.is_empty() {
            return Ok(());
        }
        let free = free?;
        self.put([line(code::STX, free)]);
        for part in rest {
            self.put([alu_k(code::LSH, 8 * part.size), TAX]);
            self.put(part.load());
            self.put([alu_x(code::OR)]);
        }
        self.put([memory_to_x(free)]);
        Ok(())
    }

    /// Loads `size` bytes at X plus `k` into A; X stays.
    fn indirect(&mut self, k: u32, size: u32, free: Result<u32, Refusal>) -> Result<(), Refusal> {
        let load = |k| line(code::LD | code::IND | width(size), k);
        if k >= BEHIND {
            self.put([load(k - LENGTH)]);
            return Ok(());
        }
        // Below the first value the load ends before the tag, from the last on it begins behind.
        let (first, last) = ((TAG + 1 - size).saturating_sub(k), BEHIND - k);
        let (far, touching, done) = (self.label(), self.label(), self.label());
        self.put([TXA]);
        let below = self.label();
        self.compare(code::JGE, last, far, below);
        self.place(below);
        if first > 0 {
            let before = self.label();
            self.compare(code::JGE, first, touching, before);
            self.place(before);
            self.put([load(k)]);
            self.go(done);
        }
        self.place(touching);
        for x in first..last {
            let next = self.label();
            if x + 1 < last {
                let this = self.label();
                self.equal(x, this, next);
                self.place(this);
            }
            self.absolute(x + k, size, free)?;
            self.go(done);
            self.place(next);
        }
        self.place(far);
        match k.checked_sub(LENGTH) {
            Some(k) => self.put([load(k)]),
            // X is large enough to give what k lacks.
            None => {
                let free = free?;
                let less = alu_k(code::SUB, LENGTH - k);
                self.put([line(code::STX, free), less, TAX, load(0), memory_to_x(free)]);
            }
        }
        self.place(done);
        Ok(())
    }
}

/// Bytes that one load gives, with what follows it.
#[derive(Clone, Copy, Debug)]
struct Part {
    size: u32,
    /// Where they are loaded from: a place in the frame, or a half of the tag.
    from: u32,
    /// How far they are shifted down, and what is kept of them.
    cut: Option<Cut>,
}

/// Which byte of a half of the tag is meant.
#[derive(Clone, Copy, Debug)]
enum Cut {
    High,
    Low,
}

impl Part {
    fn load(&self) -> impl Iterator<Item = Line> {
        let width = if self.from < ANCILLARY { width(self.size) } else { code::W };
        let load = line(code::LD | code::ABS | width, self.from);
        let cut = self.cut.map(|cut| match cut {
            Cut::High => alu_k(code::RSH, 8),
            Cut::Low => alu_k(code::AND, 0xff),
        });
        [load].into_iter().chain(cut)
    }
}

/// The parts of `size` bytes at `k`, first byte first.
fn parts(k: u32, size: u32) -> Vec<Part> {
    let end = k + size;
    let half = |from: u32, begins: u32| {
        let (first, behind) = (k.max(begins), end.min(begins + 2));
        let cut = match (behind.saturating_sub(first), first == begins) {
            (0, _) => return None,
            (2, _) => None,
            (_, true) => Some(Cut::High),
            (_, false) => Some(Cut::Low),
        };
        Some(Part { size: behind - first, from, cut })
    };
    let tag = [(known::VLAN_TPID, TAG), (known::VLAN_TCI, TCI)];
    let tag = tag.into_iter().filter_map(|(from, begins)| half(from, begins));
    let (before, behind) = (of_frame(k, end.min(TAG)), of_frame(k.max(BEHIND), end));
    let behind = behind.map(|part| Part { from: part.from - LENGTH, ..part });
    before.chain(tag).chain(behind).collect()
}

/// The loads of a frame's bytes from `from` on, up to but without `to`; none has three bytes.
fn of_frame(from: u32, to: u32) -> impl Iterator<Item = Part> {
    let size = to.saturating_sub(from);
    let sizes = if size == 3 { [2, 1] } else { [size, 0] };
    let places = [from, from.saturating_add(sizes[0])];
    let parts = places.into_iter().zip(sizes).filter(|(_, size)| *size > 0);
    parts.map(|(from, size)| Part { size, from, cut: None })
}

/// The code of a size in bytes.
const fn width(size: u32) -> u16 {
    match size {
        1 => code::B,
        2 => code::H,
        _ => code::W,
    }
}
