//! Redirecting programs. They run at XDP, withhold all frames from the host, and decide what
//! happens to them.
//!
//! Input: the memory in which a program counts, and a body like that of a tap. Output: a
//! [`Program`] that redirects a delivered frame to the socket of its queue, redirects the frame to
//! another interface if the body requests it, and drops it otherwise. Information for the consumers
//! is written before the frame ([`headroom`]); no byte is copied. [SL §5.5; CONTRACT 2, 3]
//!
//! The information tells each consumer at which *exit* the frame left the filters, that is, at
//! which numbered point of the filter tree. It is in the frame's headroom, not in XDP metadata,
//! because every driver has headroom and the bytes cannot belong to another frame.
//!
//! The caller provides three maps, numbered after the program's own: memory for counting (as for a
//! tap), an unused map, and sockets by queue.
//!
//! A frame is redirected by interface index, not through a map of devices, because a program that
//! calls a driver's kfunc for tags may not use such a map.

use super::builder::{Builder, xdp};
pub use super::config::Redirect;
use super::config::{Delivery, FinalAction, FixedSlots};
use super::counting_program::emit_counting_program;
use super::handle::{Exit, Layers};
use super::maps::FIRST_CALLER_MAP;
use super::scope::Scope;
use super::tap::{DELIVERIES_MAX, EXIT_OFFSET, SharedSlot, offset, shared_slots};
use super::target::Target;
use super::unfit::{EmitResult, UnfitReason};
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R6, R7, R8, R9, R10, Size};
use crate::program::{self, Program};

/// Layout of the bytes before a delivered frame, in order:
///
/// - [`headroom::DELIVERY_SIZE`] bytes for each delivery;
/// - [`headroom::EXIT_NUMBER_BYTES`] bytes for the exit number of each delivery, padded to a
///   multiple of 8;
/// - a bitmap of the deliveries (8 bytes);
/// - the VLAN tag that the driver removed (8 bytes): bit 32 is set, bits 16 to 31 are the protocol
///   in network byte order, bits 0 to 15 are the tag; 0 if there was no tag;
/// - the monotonic time (8 bytes).
pub mod headroom {
    /// Number of bytes that describe a delivery: four for the class, two for the offset of the
    /// view, and two for the number of frame bytes after the view.
    pub const DELIVERY_SIZE: u32 = 8;
    /// Number of bytes that hold the exit number of a delivery.
    pub const EXIT_NUMBER_BYTES: u32 = 2;
    /// Size in bytes of the fields that follow the exit numbers: the bit set, the tag and the time.
    pub const FIXED_FIELDS_SIZE: u32 = 24;

    /// Returns the offset in bytes of the fields that follow the exit numbers. It is measured from
    /// the first byte that the program writes before a frame. `deliveries` is the number of
    /// deliveries of the frame.
    #[must_use]
    pub const fn fixed_fields_offset(deliveries: u32) -> u32 {
        deliveries * DELIVERY_SIZE + (deliveries * EXIT_NUMBER_BYTES).next_multiple_of(8)
    }

    /// Returns the number of bytes that the program writes before a frame with this number of
    /// deliveries.
    #[must_use]
    pub const fn total_size(deliveries: u32) -> u32 {
        fixed_fields_offset(deliveries) + FIXED_FIELDS_SIZE
    }
}

/// Maximum number of deliveries of a redirected frame, limited by the size of the headroom.
pub const REDIRECT_DELIVERIES_MAX: u16 = 16;
const _: () = assert!((REDIRECT_DELIVERIES_MAX as u32) < DELIVERIES_MAX);

/// Emits a redirecting program. `body` and `unsure` have the same meaning as in
/// [`tap`](super::tap::tap). Frames whose tag the driver removed are handled by `unsure`.
pub fn redirect(
    target: impl Into<Target>,
    redirect: &Redirect,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> EmitResult,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, UnfitReason> {
    let target = target.into();
    if target.hook != program::Hook::Xdp || !target.redirects {
        return Err(UnfitReason::new("frames can be taken only at XDP"));
    }
    if redirect.deliveries > REDIRECT_DELIVERIES_MAX {
        return Err(UnfitReason::new("taken frames have too many exits from the kernel"));
    }
    emit_counting_program(target, FinalAction::Redirect(*redirect), body, unsure)
}

/// Number of the map that holds the sockets by queue. The caller provides this map.
const SOCKET_MAP_NUMBER: u32 = FIRST_CALLER_MAP + 2;

/// XDP_DROP: drop the frame.
const XDP_DROP: i32 = 1;
/// XDP_REDIRECT: redirect the frame.
const XDP_REDIRECT: i32 = 4;

impl Scope<'_, '_> {
    /// Emits code that marks the frame to be redirected to the interface with this index, instead
    /// of to its consumers.
    pub fn redirect_to(&mut self, interface: u32) {
        let target = self.builder().target;
        if target.hook != program::Hook::Xdp || !target.redirects {
            let why = "only a frame that was taken (`take`) can be sent through another interface";
            return self.builder().refuse_program(UnfitReason::new(why));
        }
        let b = self.builder();
        b.restore_region_register();
        b.redirects_to_interface = true;
        b.asm.push(Insn::store(Size::W, R9, offset::INTERFACE, interface.cast_signed()));
    }
}

impl Builder {
    /// Emits code that loads the VLAN tag that the driver removed, if there is one, into its
    /// reserved stack slot. A frame with such a tag takes the `unsure` exit.
    pub(super) fn load_driver_tag(&mut self, function: i32) {
        const SCRATCH: i16 = FixedSlots::LENGTH;
        let none = self.asm.new_label();
        let asm = &mut self.asm;
        asm.push(Insn::store(Size::DW, R10, FixedSlots::TAG, 0));
        asm.push(Insn::store(Size::DW, R10, SCRATCH, 0));
        asm.push(Insn::mov(R1, R6));
        for (to, at) in [(R2, SCRATCH + 6), (R3, SCRATCH + 4)] {
            asm.compute(to, R10, Alu::Add, i32::from(at));
        }
        asm.push(Insn::call_kfunc(function));
        asm.jump_if(Cond::Ne, R0, 0, none);
        asm.push(Insn::load(Size::H, R1, R10, SCRATCH + 6));
        asm.push(Insn::alu(Alu::Shl, R1, 16));
        asm.push(Insn::load(Size::H, R2, R10, SCRATCH + 4));
        asm.push(Insn::alu(Alu::Or, R1, R2));
        asm.push(Insn::mov(R2, 1));
        asm.push(Insn::alu(Alu::Shl, R2, 32));
        asm.push(Insn::alu(Alu::Or, R1, R2));
        asm.push(Insn::store(Size::DW, R10, FixedSlots::TAG, R1));
        self.store_frame_length();
        let unsure = self.unsure_label();
        self.asm.jump(unsure);
        self.bind(none);
    }

    /// Emits code that stores the frame length in its reserved stack slot, if only a helper can
    /// determine the length.
    pub(super) fn store_frame_length(&mut self) {
        if self.is_length_stored() {
            self.asm.push(Insn::mov(R1, R6));
            self.call_helper(Helper::XdpBuffLen);
            self.asm.push(Insn::store(Size::DW, R10, FixedSlots::LENGTH, R0));
        }
    }

    /// Emits the final action of a redirecting program: redirects the frame to the interface that
    /// the body named, else to the socket of its queue if the body delivered the frame, else drops
    /// it. A failed redirect to the socket is counted as a failed delivery.
    pub(super) fn emit_redirect_end(&mut self, redirect: &Redirect, deliveries: &[Delivery]) {
        let (drop, failed) = (self.asm.new_label(), self.asm.new_label());
        self.restore_region_register();
        if self.redirects_to_interface {
            self.emit_interface_redirect();
        }
        if !deliveries.is_empty() {
            self.asm.push(Insn::load(Size::DW, R1, R9, offset::DELIVERY_BITS));
            self.asm.jump_if(Cond::Eq, R1, 0, drop);
            self.write_headroom(redirect, deliveries, failed);
            self.asm.push_wide(Insn::load_map(R1, SOCKET_MAP_NUMBER));
            self.asm.push(Insn::load(Size::W, R2, R6, xdp::QUEUE));
            self.asm.push(Insn::mov(R3, XDP_DROP));
            self.asm.push(Insn::call(Helper::RedirectMap));
            self.asm.jump_if(Cond::Ne, R0, XDP_REDIRECT, failed);
            self.asm.push(Insn::exit());
            self.asm.bind(failed);
            self.add_to_word(R9, offset::FAILED_COPIES, 1);
            self.count_failed_deliveries(
                redirect.scratch_layout(),
                offset::DELIVERY_BITS,
                deliveries,
            );
        }
        self.asm.bind(drop);
        self.asm.exit_with(XDP_DROP);
    }

    /// Emits the redirect to the interface that the body has named. If the body has named none,
    /// execution continues after this code.
    fn emit_interface_redirect(&mut self) {
        let here = self.asm.new_label();
        self.asm.push(Insn::load(Size::W, R1, R9, offset::INTERFACE));
        self.asm.jump_if(Cond::Eq, R1, 0, here);
        self.asm.push(Insn::mov(R2, 0));
        self.asm.push(Insn::call(Helper::Redirect));
        self.asm.push(Insn::exit());
        self.asm.bind(here);
    }

    /// Emits code that extends the frame into its headroom, and writes the deliveries, exit
    /// numbers, tag and time there.
    fn write_headroom(
        &mut self,
        redirect: &Redirect,
        deliveries: &[Delivery],
        failed: crate::asm::Label,
    ) {
        let count = u32::from(redirect.deliveries);
        let bytes = headroom::total_size(count).cast_signed();
        let place = |at: u32| i16::try_from(at).unwrap_or(i16::MAX);
        self.emit_frame_length();
        let inside = self.asm.new_label();
        let asm = &mut self.asm;
        if redirect.tag_kfunc.is_some() {
            // The consumer puts the tag back inline.
            asm.push(Insn::load(Size::DW, R1, R10, FixedSlots::TAG));
            asm.jump_if(Cond::Eq, R1, 0, inside);
            asm.push(Insn::alu(Alu::Add, R0, 4));
            asm.bind(inside);
        }
        asm.push(Insn::store(Size::DW, R10, FixedSlots::LENGTH, R0));
        asm.push(Insn::call(Helper::KtimeNs));
        asm.push(Insn::store(Size::DW, R10, FRAME_TIME_SLOT, R0));
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::mov(R2, -bytes));
        asm.push(Insn::call(Helper::XdpAdjustHead));
        asm.jump_if(Cond::Ne, R0, 0, failed);
        asm.push(Insn::load(Size::W, R7, R6, 0));
        asm.push(Insn::load(Size::W, R2, R6, 4));
        asm.compute(R3, R7, Alu::Add, bytes);
        asm.jump_if(Cond::Gt, R3, R2, failed);
        asm.push(Insn::load(Size::DW, R8, R10, FixedSlots::LENGTH));
        for SharedSlot { first: delivery, .. } in shared_slots(deliveries) {
            if delivery.number >= redirect.deliveries {
                continue;
            }
            let view = offset::VIEWS + 16 * delivery.number.cast_signed();
            let to = place(u32::from(delivery.number) * headroom::DELIVERY_SIZE);
            asm.push(Insn::load(Size::W, R1, R9, view + 4));
            asm.push(Insn::store(Size::W, R7, to, R1));
            asm.push(Insn::load(Size::W, R1, R9, view + 8));
            asm.push(Insn::store(Size::H, R7, to + 4, R1));
            asm.push(Insn::load(Size::W, R2, R9, view));
            asm.push(Insn::alu(Alu::Add, R1, R2));
            asm.compute(R2, R8, Alu::Sub, R1);
            asm.push(Insn::store(Size::H, R7, to + 6, R2));
            let way = place(
                count * headroom::DELIVERY_SIZE
                    + u32::from(delivery.number) * headroom::EXIT_NUMBER_BYTES,
            );
            asm.push(Insn::load(Size::W, R1, R9, view + EXIT_OFFSET));
            asm.push(Insn::store(Size::H, R7, way, R1));
        }
        let rest = place(headroom::fixed_fields_offset(count));
        asm.push(Insn::load(Size::DW, R1, R9, offset::DELIVERY_BITS));
        asm.push(Insn::store(Size::DW, R7, rest, R1));
        match redirect.tag_kfunc {
            Some(_) => asm.push(Insn::load(Size::DW, R1, R10, FixedSlots::TAG)),
            None => asm.push(Insn::mov(R1, 0)),
        }
        asm.push(Insn::store(Size::DW, R7, rest + 8, R1));
        asm.push(Insn::load(Size::DW, R1, R10, FRAME_TIME_SLOT));
        asm.push(Insn::store(Size::DW, R7, rest + 16, R1));
    }
}

/// Stack slot for the frame's time, used only after the body, when the slot is free again.
const FRAME_TIME_SLOT: i16 = -32;
