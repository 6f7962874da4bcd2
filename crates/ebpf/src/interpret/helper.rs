//! Helpers of the interpreter: what the emitter calls, as the kernel answers it.

use super::memory::CTX;
use super::{Flow, Run, Why};
use crate::insn::{Helper, Insn, Size};
use crate::program::Place;

const EFAULT: u64 = -14_i64 as u64;
const ENOMEM: u64 = -12_i64 as u64;
const EINVAL: u64 = -22_i64 as u64;
/// The kernel gives packet helpers offsets up to this.
const OFFSET_MAX: u64 = i32::MAX as u64;

impl Run<'_, '_> {
    pub(super) fn call(&mut self, insn: Insn) -> Result<Flow, Why> {
        let unknown = Why::Helper(insn.imm);
        let helper = Helper::from_number(insn.imm).filter(|_| insn.src == 0).ok_or(unknown)?;
        let on_skb = self.memory.place() != Place::Xdp;
        let answer = match helper {
            Helper::KtimeNs => self.now_ns,
            Helper::CpuId => self.cpu.into(),
            Helper::MapLookup => self.map_lookup()?,
            Helper::SkbLoadBytes if on_skb => self.load_bytes()?,
            Helper::XdpLoadBytes if !on_skb => self.load_bytes()?,
            Helper::SkbPullData if self.memory.place() == Place::Tc => self.pull()?,
            Helper::XdpBuffLen if !on_skb => {
                self.context_argument()?;
                self.memory.frame_length() as u64
            }
            _ => return Err(unknown),
        };
        self.scratch_is_lost();
        self.set(0, answer)
    }

    fn context_argument(&self) -> Result<(), Why> {
        if self.get(1)? == CTX { Ok(()) } else { Err(Why::Argument(1)) }
    }

    fn map_lookup(&self) -> Result<u64, Why> {
        let key = self.memory.read(self.get(2)?, Size::W)?;
        self.memory.map_lookup(self.get(1)?, key as u32).ok_or(Why::Argument(1))
    }

    /// Copies from the frame, fragments included. A failing copy fills the target with zeros.
    fn load_bytes(&mut self) -> Result<u64, Why> {
        self.context_argument()?;
        let (offset, to, length) = (self.get(2)?, self.get(3)?, self.get(4)?);
        let size = usize::try_from(length).ok().filter(|size| *size > 0);
        let size = size.ok_or(Why::Argument(4))?;
        let offset = u64::from(offset as u32);
        let from = self.memory.frame_bytes(offset as i64, size).filter(|_| offset <= OFFSET_MAX);
        let to = self.memory.bytes_mut(to, size)?;
        match from {
            Some(from) => {
                to.copy_from_slice(from);
                Ok(0)
            }
            None => {
                to.fill(0);
                Ok(if self.memory.place() == Place::Xdp { EINVAL } else { EFAULT })
            }
        }
    }

    fn pull(&mut self) -> Result<u64, Why> {
        self.context_argument()?;
        let length = self.get(2)? as u32;
        Ok(if self.memory.pull(length as usize) { 0 } else { ENOMEM })
    }
}
