//! Program builder: the state of an emission, on which scopes operate.
//!
//! Submodules: `frame` sets up packet pointers and lengths, `arms` opens and closes arms and emits
//! exits, `parts` ends parts and programs; `lower` turns values into registers and stack slots.
//!
//! An *arm* is code that can end early, by a jump to its *exit*. A *part* is a piece of a long
//! program that is loaded separately and entered by a tail call. A *counting program* is a tap or a
//! redirecting program: its *body* counts and delivers each frame, and a final action passes,
//! redirects or drops the frame.
//!
//! Input: the operations of a scope. Output: a `Program`. Registers: r6 context, r7 first byte of
//! the frame, r8 end of its linear part (tc and XDP), r9 the per-CPU region of a tap, r0 to r5
//! scratch.

mod arms;
mod frame;
mod program_parts;

pub(super) use frame::{PULLED_BYTES_MAX, skb, xdp};

use super::config::{Delivery, FinalAction, PointerRing, ScratchLayout};
use super::handle::{Brand, Exit, SlotDepth};
use super::maps::ProgramMap;
use super::switch_layout::SwitchLayout;
use super::target::{ReturnConversion, Target};
use super::unfit::UnfitReason;
use crate::asm::{Assembler, Label};
use crate::insn::{Cond, Helper, Insn, R0, R1, R2, Size, atomic};
use crate::program::{CodeOwner, Counter, FilterSpan};
use arms::ExitStub;

/// The state of the code generation for one program.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) target: Target,
    pub(super) asm: Assembler,
    unfit: Option<UnfitReason>,
    /// Number of bytes of the program's stack that slots in use occupy.
    pub(super) stack_used: SlotDepth,
    /// Maximum number of stack bytes used so far in the current part of the program.
    pub(super) stack_max: SlotDepth,
    /// For each of r0 to r5, the stack slot whose value the register contains, or `None` if the
    /// register contains anything else.
    pub(super) slot_in_register: [Option<SlotDepth>; 6],
    stubs: Vec<ExitStub>,
    /// For each position variable, its maximum distance from the frame's first byte, and the
    /// `epoch` in which it was set.
    pub(super) position_reaches: Vec<(u32, u16)>,
    /// Number of times that computed positions have become invalid, because of an edit of the
    /// frame, a reset of the verifier's state, or a new part.
    pub(super) epoch: u16,
    /// True if r9 may no longer contain the address of this processor's region of a tap's memory.
    pub(super) is_region_lost: bool,
    /// Final action on each frame of a counting program (a tap or a redirecting program); `None`
    /// for other programs.
    frame_end: Option<FinalAction>,
    deliveries: Vec<Delivery>,
    /// True if the program redirects frames and therefore reserves a stack slot for the frame
    /// length.
    redirects: bool,
    /// True if the program redirects frames to another interface.
    pub(super) redirects_to_interface: bool,
    /// True while XDP code is emitted for frames whose tag the driver has removed.
    pub(super) is_tag_out: bool,
    /// Number of stack bytes that are never released.
    pub(super) floor: SlotDepth,
    /// End of the frame bytes that the code emitted so far may read, as an offset from the first
    /// byte.
    pub(super) reach: u32,
    /// Indices of the instructions whose immediate must be set to the final value of `reach`, the
    /// end of the frame bytes that the program may read. It is known only when the program is
    /// complete.
    reach_patches: Vec<usize>,
    none: Label,
    unsure: Label,
    counters: Vec<Counter>,
    /// Maps of the program other than the map of its counters. Entry n is map n + 1.
    tables: Vec<ProgramMap>,
    finish: ReturnConversion,
    /// Finished parts of the program, each with its code, its source map, and the indices of the
    /// instructions whose immediate must be set to `reach`, the end of the frame bytes that the
    /// program may read.
    finished_parts: Vec<(Assembler, Vec<CodeOwner>, Vec<usize>)>,
    /// Number of twins and arms (code that can end early) whose code has begun but not ended.
    depth: usize,
    /// Number of the instruction slot at which the verifier's state was last reset.
    verifier_reset_at: usize,
    edits: bool,
    filters: Vec<FilterSpan>,
    filter: Option<usize>,
    source: Vec<CodeOwner>,
}

impl Builder {
    fn new(target: Target, finish: ReturnConversion) -> Self {
        let mut asm = Assembler::new();
        let (none, unsure) = (asm.new_label(), asm.new_label());
        Self { target, asm, none, unsure, finish, ..Self::default() }
    }

    /// Emits the start of a program, up to its first twin. Returns the builder, and the exit (a
    /// jump target) for blocks that a filter does not recognize.
    pub(super) fn begin(target: Target, finish: ReturnConversion) -> (Box<Self>, Exit<'static>) {
        Self::begin_program(target, finish, None)
    }

    /// Emits the start of a counting program (a tap or a redirecting program), up to its first
    /// twin. Returns the builder, and the exit to which the body of the program jumps when it has
    /// finished with a frame.
    pub(super) fn begin_counting_program(
        target: Target,
        frame_end: FinalAction,
    ) -> (Box<Self>, Exit<'static>) {
        Self::begin_program(target, ReturnConversion::Answer, Some(frame_end))
    }

    fn begin_program(
        target: Target,
        finish: ReturnConversion,
        frame_end: Option<FinalAction>,
    ) -> (Box<Self>, Exit<'static>) {
        let mut b = Box::new(Self::new(target, finish));
        b.redirects = matches!(frame_end, Some(FinalAction::Redirect(_)));
        b.frame_end = frame_end;
        if b.frame_end.is_some() {
            b.pass_copies_for_this_host();
        }
        b.emit_prologue();
        let out = Exit { label: b.none, brand: Brand::default() };
        (b, out)
    }

    /// Returns the layout of the program's scratch memory. Most programs have no scratch memory.
    pub(super) fn scratch_layout(&self) -> ScratchLayout {
        self.frame_end.as_ref().map_or(ScratchLayout::NONE, FinalAction::scratch_layout)
    }

    /// Returns the pointer ring with this number, or `None` if the program is not a tap or has no
    /// such ring.
    pub(super) fn pointer_ring(&self, number: u16) -> Option<PointerRing> {
        match &self.frame_end {
            Some(FinalAction::Tap(fused)) => fused.pointer_ring(number),
            _ => None,
        }
    }

    /// Returns the layout of the memory words with which user space opens and closes switched
    /// exits, or `None` if the program has no switched exits.
    pub(super) fn switches(&self) -> Option<SwitchLayout> {
        self.frame_end.as_ref().and_then(FinalAction::switches)
    }

    /// Adds a delivery to the list of all deliveries that the program may make to readers.
    pub(super) fn record_delivery(&mut self, delivery: Delivery) {
        if !self.deliveries.contains(&delivery) {
            self.deliveries.push(delivery);
        }
    }

    /// Attributes the code that is emitted from now on to this filter.
    pub(super) fn begin_filter(&mut self, filter: FilterSpan) {
        let known = self.filters.iter().position(|known| *known == filter);
        self.filter = Some(known.unwrap_or(self.filters.len()));
        if known.is_none() {
            self.filters.push(filter);
        }
        self.record_code_owner();
    }

    fn record_code_owner(&mut self) {
        let line = CodeOwner { from: self.asm.next_slot(), filter: self.filter };
        self.source.pop_if(|last| last.from == line.from);
        if self.source.last().is_none_or(|last| last.filter != line.filter) {
            self.source.push(line);
        }
    }

    pub(super) fn unsure_label(&self) -> Label {
        self.unsure
    }

    /// Emits a call of a helper. If the helper returns an error, the block is unsure: the user
    /// implementation decides about it.
    pub(super) fn call_helper_or_unsure(&mut self, helper: Helper) {
        self.call_helper(helper);
        self.asm.jump_if(Cond::Ne, R0, 0, self.unsure);
    }

    /// Sets the label for unsure blocks, which are left to the user implementation, for all code
    /// emitted after the call.
    pub(super) fn set_unsure_label(&mut self, unsure: Label) {
        self.unsure = unsure;
    }

    pub(super) fn counter_index(&mut self, name: &str) -> usize {
        let known = |c: &Counter| c.filter == self.filter && c.name == name;
        self.counters.iter().position(known).unwrap_or_else(|| {
            self.counters.push(Counter { filter: self.filter, name: name.to_owned() });
            self.counters.len() - 1
        })
    }

    pub(super) fn increment_counter(&mut self, counter: usize) {
        let offset = u32::try_from(counter * size_of::<u64>()).unwrap_or(u32::MAX);
        self.asm.push_wide(Insn::load_map_value(R1, 0, offset));
        self.asm.push(Insn::mov(R2, 1));
        self.asm.push(Insn::atomic(Size::DW, atomic::ADD, R1, 0, R2));
        self.set_register_slot(R1, None);
        self.set_register_slot(R2, None);
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.asm.bind(label);
        self.slot_in_register = [None; 6];
    }

    /// Returns the number of the map for the current filter's state of `size` bytes. Adds the map
    /// to the program if it is missing.
    pub(super) fn state_map_number(&mut self, size: u16) -> u32 {
        // A filter that appears at two places of a program has one state.
        let own = |table: &ProgramMap| match table {
            ProgramMap::State(word, bytes) => (*word, *bytes) == (self.filter, size),
            _ => false,
        };
        let known = self.tables.iter().position(own).filter(|_| self.filter.is_some());
        let at = known.unwrap_or_else(|| {
            self.tables.push(ProgramMap::State(self.filter, size));
            self.tables.len() - 1
        });
        u32::try_from(at + 1).unwrap_or(u32::MAX)
    }

    /// Marks the contents of r0 to r5 as unknown.
    pub(super) fn invalidate_registers(&mut self) {
        self.slot_in_register = [None; 6];
    }

    /// Records the reason why the request cannot become a program, unless one is already recorded.
    pub(super) fn refuse_program(&mut self, unfit: UnfitReason) {
        self.unfit.get_or_insert(unfit);
    }
}
