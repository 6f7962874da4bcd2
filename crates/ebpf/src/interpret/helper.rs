//! Helper functions of the interpreter, with the results and error codes of the kernel's helpers.

use super::memory::CONTEXT_BASE;
use super::{FaultKind, InstructionOutcome, Run};
use crate::insn::{Helper, Insn, Size};
use crate::program::Hook;

const EFAULT: u64 = -14_i64 as u64;
const ENOMEM: u64 = -12_i64 as u64;
const EINVAL: u64 = -22_i64 as u64;
/// Maximum packet offset that the kernel's load and store helpers accept.
const PACKET_OFFSET_MAX: u64 = i32::MAX as u64;

impl Run<'_, '_> {
    pub(super) fn execute_call(&mut self, insn: Insn) -> Result<InstructionOutcome, FaultKind> {
        let unknown = FaultKind::UnavailableHelper(insn.imm);
        let helper = Helper::from_number(insn.imm).filter(|_| insn.src == 0).ok_or(unknown)?;
        let on_skb = self.memory.hook() != Hook::Xdp;
        if helper == Helper::TailCall {
            return self.tail_call();
        }
        let on_tc = self.memory.hook() == Hook::Tc;
        let answer = match helper {
            Helper::KtimeNs => self.now_ns,
            Helper::CpuId => self.cpu.into(),
            Helper::MapLookup => self.map_lookup()?,
            Helper::SkbLoadBytes if on_skb => self.load_bytes()?,
            Helper::XdpLoadBytes if !on_skb => self.load_bytes()?,
            Helper::SkbPullData if on_tc => self.pull_data()?,
            Helper::SkbStoreBytes if on_tc => self.store_bytes()?,
            Helper::L3ChecksumReplace if on_tc => self.replace_header_checksum()?,
            Helper::L4ChecksumReplace if on_tc => self.replace_transport_checksum()?,
            Helper::SkbVlanPop if on_tc => {
                self.check_context_argument()?;
                self.memory.pop_tag();
                0
            }
            Helper::XdpStoreBytes if !on_skb => self.store_bytes()?,
            Helper::XdpAdjustHead if !on_skb => self.adjust_head()?,
            Helper::XdpBuffLen if !on_skb => {
                self.check_context_argument()?;
                self.memory.frame_length() as u64
            }
            _ => return Err(unknown),
        };
        self.invalidate_scratch_registers();
        self.write_register(0, answer)
    }

    fn check_context_argument(&self) -> Result<(), FaultKind> {
        if self.read_register(1)? == CONTEXT_BASE {
            Ok(())
        } else {
            Err(FaultKind::InvalidArgument(1))
        }
    }

    fn tail_call(&mut self) -> Result<InstructionOutcome, FaultKind> {
        self.check_context_argument()?;
        let (map, number) = (self.read_register(2)?, self.read_register(3)?);
        self.memory.map_lookup(map, 0).ok_or(FaultKind::InvalidArgument(2))?;
        self.invalidate_scratch_registers();
        self.write_register(0, EINVAL)?;
        Ok(InstructionOutcome::Part(number))
    }

    fn map_lookup(&self) -> Result<u64, FaultKind> {
        let key = self.memory.read(self.read_register(2)?, Size::W)?;
        self.memory
            .map_lookup(self.read_register(1)?, key as u32)
            .ok_or(FaultKind::InvalidArgument(1))
    }

    /// Copies bytes from the frame, including fragments. On failure, zeroes the destination, as the
    /// kernel does.
    fn load_bytes(&mut self) -> Result<u64, FaultKind> {
        self.check_context_argument()?;
        let (offset, to, length) =
            (self.read_register(2)?, self.read_register(3)?, self.read_register(4)?);
        let size = usize::try_from(length).ok().filter(|size| *size > 0);
        let size = size.ok_or(FaultKind::InvalidArgument(4))?;
        let offset = u64::from(offset as u32);
        let from =
            self.memory.frame_bytes(offset as i64, size).filter(|_| offset <= PACKET_OFFSET_MAX);
        let from = from.map(<[u8]>::to_vec);
        let to = self.memory.bytes_mut(to, size)?;
        match from {
            Some(from) => {
                to.copy_from_slice(&from);
                Ok(0)
            }
            None => {
                to.fill(0);
                Ok(if self.memory.hook() == Hook::Xdp { EINVAL } else { EFAULT })
            }
        }
    }

    fn store_bytes(&mut self) -> Result<u64, FaultKind> {
        self.check_context_argument()?;
        let (offset, from, length) =
            (self.read_register(2)?, self.read_register(3)?, self.read_register(4)?);
        let on_tc = self.memory.hook() == Hook::Tc;
        if on_tc && self.read_register(5)? != 0 {
            return Err(FaultKind::InvalidArgument(5));
        }
        let size = usize::try_from(length).ok().filter(|size| (1..=512).contains(size));
        let size = size.ok_or(FaultKind::InvalidArgument(4))?;
        let mut bytes = vec![0; size];
        for (at, byte) in (0..).zip(&mut bytes) {
            *byte = self.memory.read(from.wrapping_add(at), Size::B)? as u8;
        }
        let offset = i64::from(offset as u32);
        Ok(match self.memory.frame_bytes_mut(offset, size) {
            Some(to) => {
                to.copy_from_slice(&bytes);
                0
            }
            None if on_tc => EFAULT,
            None => EINVAL,
        })
    }

    /// Applies `change` to the 16-bit checksum at the offset in r2.
    fn replace_checksum(&mut self, change: impl FnOnce(u16) -> u16) -> Result<u64, FaultKind> {
        let offset = i64::from(self.read_register(2)? as u32);
        let Some(at) = self.memory.frame_bytes_mut(offset, 2) else { return Ok(EFAULT) };
        let was = at.first_chunk::<2>().map_or(0, |word| u16::from_ne_bytes(*word));
        at.copy_from_slice(&change(was).to_ne_bytes());
        Ok(0)
    }

    fn replace_header_checksum(&mut self) -> Result<u64, FaultKind> {
        self.check_context_argument()?;
        let (old, new) = (self.read_register(3)? as u32, self.read_register(4)? as u32);
        match self.read_register(5)? {
            2 => self.replace_checksum(|sum| update_checksum_16(sum, old as u16, new as u16)),
            4 => self.replace_checksum(|sum| update_checksum_32(sum, old, new)),
            _ => Err(FaultKind::InvalidArgument(5)),
        }
    }

    fn replace_transport_checksum(&mut self) -> Result<u64, FaultKind> {
        const PSEUDO_HEADER_FLAG: u64 = 0x10;
        const MARK_MANGLED_ZERO_FLAG: u64 = 0x20;
        self.check_context_argument()?;
        let (old, new, flags) =
            (self.read_register(3)? as u32, self.read_register(4)? as u32, self.read_register(5)?);
        let (old, new) = match flags & 0xf {
            2 => (old & 0xffff, new & 0xffff),
            4 => (old, new),
            _ => return Err(FaultKind::InvalidArgument(5)),
        };
        if flags & !(PSEUDO_HEADER_FLAG | MARK_MANGLED_ZERO_FLAG | 0xf) != 0 {
            return Err(FaultKind::InvalidArgument(5));
        }
        let is_unfilled = self.memory.has_unfilled_checksum();
        let may_be_absent = flags & MARK_MANGLED_ZERO_FLAG != 0;
        self.replace_checksum(|sum| {
            let new = match is_unfilled {
                _ if may_be_absent && sum == 0 => 0,
                true if flags & PSEUDO_HEADER_FLAG == 0 => sum,
                true => !fold_sum(add_with_carry(add_with_carry(sum.into(), !old), new)),
                false => update_checksum_32(sum, old, new),
            };
            if may_be_absent && new == 0 && sum != 0 { 0xffff } else { new }
        })
    }

    fn adjust_head(&mut self) -> Result<u64, FaultKind> {
        const FRAME_BYTES_MIN: usize = 14;
        self.check_context_argument()?;
        // Negative deltas, which extend the frame into its headroom, are not supported, because
        // they depend on the driver.
        let by = usize::try_from(self.read_register(2)? as i32)
            .map_err(|_| FaultKind::InvalidArgument(2))?;
        if by + FRAME_BYTES_MIN > self.memory.linear_length() {
            return Ok(EINVAL);
        }
        self.memory.remove_frame_start(by);
        Ok(0)
    }

    fn pull_data(&mut self) -> Result<u64, FaultKind> {
        self.check_context_argument()?;
        let length = self.read_register(2)? as u32;
        Ok(if !self.lacks_memory && self.memory.linearize(length as usize) { 0 } else { ENOMEM })
    }
}

/// Updates a checksum for a change to a 16-bit number, like the kernel's `csum_replace2`.
fn update_checksum_16(sum: u16, old: u16, new: u16) -> u16 {
    let add = |left: u16, right: u16| {
        let (sum, carry) = left.overflowing_add(right);
        sum + u16::from(carry)
    };
    !add(add(!sum, !old), new)
}

/// Updates a checksum for a change to a 32-bit number, like the kernel's `csum_replace4`.
fn update_checksum_32(sum: u16, old: u32, new: u32) -> u16 {
    fold_sum(add_with_carry(add_with_carry(!u32::from(sum), !old), new))
}

/// Adds two numbers with end-around carry, like the kernel's `csum_add`.
fn add_with_carry(left: u32, right: u32) -> u32 {
    let (sum, carry) = left.overflowing_add(right);
    sum + u32::from(carry)
}

/// Folds a sum to 16 bits and complements the result, like the kernel's `csum_fold`.
fn fold_sum(sum: u32) -> u16 {
    !((add_with_carry(sum, sum.rotate_right(16)) >> 16) as u16)
}
