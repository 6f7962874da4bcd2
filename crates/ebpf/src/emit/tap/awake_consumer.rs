//! Frames that a request takes from the host only while its consumer is awake. [SL §4.3]
//!
//! A doorbell interrupts the processor, which costs more than delivering a datagram. A consumer
//! that also has a socket of the host ([`WakeupTarget::Host`]) needs no doorbell. While the
//! consumer sleeps, the program leaves its frames to the host, whose socket wakes the consumer.
//! While the consumer is awake, the program copies the frames into the ring, which the consumer
//! polls.
//!
//! The consumer writes the position of the doorbell map, which is otherwise unused: 0 while it
//! sleeps, and any other value while it is awake. It must look for frames after each change to 0,
//! and must not sleep while a program writes.
//!
//! Sync point, *awake*: the program sets [`offset::WRITING`] and then reads the position; the
//! consumer sets the position to 0 and then reads `WRITING` and the number of pointers. Both have a
//! full barrier in between. So either the program finds the consumer asleep, or the consumer finds
//! the program writing, or the frame written.

use super::unread_rings::BPF_RB_CONS_POS;
use crate::emit::builder::Builder;
use crate::emit::config::WakeupTarget;
use crate::emit::handle::Exit;
use crate::emit::maps::FIRST_CALLER_MAP;
use crate::emit::ring_layout::offset;
use crate::emit::scope::Scope;
use crate::emit::unfit::UnfitReason;
use crate::insn::{Cond, Helper, Insn, R0, R1, R2, Reg, Size, atomic};

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Emits a jump to the exit `asleep` that is taken while the consumer of pointer ring `ring`
    /// sleeps without doorbells. `delivers_all` is true if every frame that passes this check is
    /// delivered to the ring. If `delivers_all` is false and the consumer may sleep, refuses the
    /// program.
    pub fn only_while_awake(&mut self, ring: u16, delivers_all: bool, asleep: Exit<'s>) {
        let b = self.builder();
        let Some(outlet) = b.pointer_ring(ring) else {
            return b.refuse_program(UnfitReason::new("its frames have no ring"));
        };
        if outlet.wake.target != WakeupTarget::Host {
            return;
        }
        if !delivers_all {
            return b.refuse_program(UnfitReason::new(
                "its reader may sleep, and other filters follow",
            ));
        }
        let awake = b.asm.new_label();
        b.restore_region_register();
        let region = b.load_region_address(outlet.map, outlet.stride, R1);
        b.asm.push(Insn::mov(R0, 1));
        // Sync point: awake.
        b.asm.push(Insn::atomic(Size::DW, atomic::XCHG, region, offset::WRITING, R0));
        b.asm.push_wide(Insn::load_map(R1, FIRST_CALLER_MAP + outlet.doorbell_map));
        b.asm.push(Insn::mov(R2, BPF_RB_CONS_POS));
        b.call_helper(Helper::RingbufQuery);
        b.asm.jump_if(Cond::Ne, R0, 0, awake);
        let region = b.load_region_address(outlet.map, outlet.stride, R1);
        b.asm.push(Insn::store(Size::DW, region, offset::WRITING, 0));
        b.asm.jump(asleep.label);
        b.bind(awake);
    }
}

impl Builder {
    /// Emits code that clears the flag [`offset::WRITING`] after all other stores, because the
    /// program has written a frame or failed to write it.
    pub(super) fn clear_writing_flag(&mut self, region: Reg) {
        self.asm.push(Insn::mov(R2, 0));
        self.asm.push(super::store_release_insn(region, offset::WRITING));
    }
}
