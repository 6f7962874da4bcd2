//! Taps that observe only the sockets of one user. [CONTRACT 22, 25]
//!
//! Input: the user ([`UserSocketsConfig`]). Output: the prologue of a program at a cgroup, which
//! passes packets of other users untouched and claims a region for packets of this user. Such
//! programs run wherever a socket sends or receives: in a process, which incoming packets may
//! interrupt on the same processor, and which another process may preempt. A processor therefore
//! has several regions in every ring. A program claims a free region by compare-and-swap, and is
//! the only writer of the region until it releases the claim. To a reader, each region looks like a
//! processor.
//!
//! The kernel identifies the user's sockets by three facts that must all hold: the owner's uid; the
//! network namespace, because the same uid may be another user elsewhere; and the type of the
//! socket, because a raw socket receives the packets of all users.

use super::builder::{Builder, skb};
use super::config::FixedSlots;
pub use super::config::{REGIONS_PER_CPU, UserSocketsConfig};
use super::maps::FIRST_CALLER_MAP;
use super::tap::record;
use super::target::Verdict;
use super::unfit::UnfitReason;
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R6, R10, Size, atomic};
use crate::program::Hook;

/// Size in bytes of the claims of one processor: for each of its regions, a word that is nonzero
/// while a program has claimed the region, and a spare word.
pub const CLAIMS_STRIDE: u32 = REGIONS_PER_CPU * CLAIM_BYTES.cast_unsigned();
/// Offset in bytes, in a processor's claims, of the counter of packets for which no region was
/// free. The counter is the spare word of the first region.
pub const CLAIM_FAILURES_OFFSET: i16 = 8;

const CLAIM_BYTES: i32 = 16;
/// Byte offsets, from the start of a processor's claims, of the words in which programs claim the
/// processor's regions.
const CLAIM_WORD_OFFSETS: [i16; REGIONS_PER_CPU as usize] = [0, 16, 32, 48];

/// Fails unless the hook is tc or, for a tap on a user's sockets, a cgroup.
pub(super) fn check_hook(hook: Hook, own: Option<&UserSocketsConfig>) -> Result<(), UnfitReason> {
    let fits = match hook {
        Hook::Tc => own.is_none(),
        Hook::Cgroup => own.is_some(),
        Hook::Xdp | Hook::Socket => false,
    };
    let why = "a tap is attached at traffic control, or before the sockets of one user";
    fits.then_some(()).ok_or_else(|| UnfitReason::new(why))
}

/// Offset of the socket type in `struct bpf_sock`.
const SOCKET_TYPE_OFFSET: i16 = 8;
/// SOCK_RAW: type of raw sockets.
const SOCK_RAW: i32 = 3;

impl Builder {
    /// Emits code that passes packets of all sockets that do not belong to this user, without
    /// observing them.
    pub(super) fn pass_other_sockets(&mut self, own: &UserSocketsConfig) {
        let (other, ours) = (self.asm.new_label(), self.asm.new_label());
        let asm = &mut self.asm;
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::call(Helper::SocketUid));
        asm.push(Insn::alu32(Alu::Mov, R1, own.uid.cast_signed()));
        asm.jump_if(Cond::Ne, R0, R1, other);
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::call(Helper::NetnsCookie));
        asm.push_wide(Insn::load64(R1, own.netns));
        asm.jump_if(Cond::Ne, R0, R1, other);
        asm.push(Insn::load(Size::DW, R1, R6, skb::SOCKET));
        asm.jump_if(Cond::Eq, R1, 0, other);
        asm.push(Insn::call(Helper::FullSocket));
        asm.jump_if(Cond::Eq, R0, 0, other);
        asm.push(Insn::load(Size::W, R1, R0, SOCKET_TYPE_OFFSET));
        asm.jump_if(Cond::Ne, R1, SOCK_RAW, ours);
        asm.bind(other);
        asm.exit_with(Verdict::Pass.return_value(self.target.hook));
        asm.bind(ours);
    }

    /// Emits code that claims a region of the processor whose number is in r0, and puts the
    /// region's number into r0. `all` is the number of regions of all processors. If no region is
    /// free, the packet is counted and passes.
    pub(super) fn claim_region(&mut self, own: &UserSocketsConfig, all: u32) {
        let (claimed, known) = (self.asm.new_label(), self.asm.new_label());
        let pass = Verdict::Pass.return_value(self.target.hook);
        let asm = &mut self.asm;
        asm.push(Insn::store(Size::DW, R10, FixedSlots::REGION_NUMBER, R0));
        asm.load_map_address(R3, FIRST_CALLER_MAP + own.claims, R0, CLAIMS_STRIDE.cast_signed());
        for (region, word) in (0..).zip(CLAIM_WORD_OFFSETS) {
            let next = asm.new_label();
            asm.push(Insn::mov(R0, 0));
            asm.push(Insn::mov(R1, 1));
            asm.push(Insn::atomic(Size::DW, atomic::CMPXCHG, R3, word, R1));
            asm.jump_if(Cond::Ne, R0, 0, next);
            asm.push(Insn::mov(R2, region));
            asm.jump(claimed);
            asm.bind(next);
        }
        asm.push(Insn::mov(R1, 1));
        asm.push(Insn::atomic(Size::DW, atomic::ADD, R3, CLAIM_FAILURES_OFFSET, R1));
        asm.exit_with(pass);
        asm.bind(claimed);
        asm.push(Insn::load(Size::DW, R0, R10, FixedSlots::REGION_NUMBER));
        asm.push(Insn::alu(Alu::Mul, R0, REGIONS_PER_CPU.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R0, R2));
        // Hides the value from the verifier, which does not track context fields, so that the
        // verifier follows one path for all regions.
        asm.push(Insn::load(Size::W, R1, R6, skb::LEN));
        asm.push(Insn::alu(Alu::Xor, R0, R1));
        asm.push(Insn::alu(Alu::Xor, R0, R1));
        asm.jump_if(Cond::Lt, R0, all.cast_signed(), known);
        asm.exit_with(pass);
        asm.bind(known);
    }

    /// Emits code that releases the claimed region. Must be emitted after all writes to the region.
    pub(super) fn release_region(&mut self, own: &UserSocketsConfig) {
        self.asm.push(Insn::load(Size::DW, R1, R10, FixedSlots::REGION_NUMBER));
        self.asm.load_map_address(R2, FIRST_CALLER_MAP + own.claims, R1, CLAIM_BYTES);
        self.asm.push(Insn::store(Size::DW, R2, 0, 0));
    }

    /// Emits code that loads the flags of the packet's record into r1. The code sets the flag of
    /// sent packets if the packet has no ingress interface.
    pub(super) fn load_record_flags(&mut self) {
        let received = self.asm.new_label();
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R2, R6, skb::INGRESS_IFINDEX));
        asm.push(Insn::mov(R1, 0));
        asm.jump_if(Cond::Ne, R2, 0, received);
        asm.push(Insn::mov(R1, i32::from(record::SENT_FLAG)));
        asm.bind(received);
    }
}
