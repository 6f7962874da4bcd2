//! The builder behind a scope: the state of an emission. Submodules: `frame` sets up packet
//! pointers and lengths, `arms` opens and closes arms and emits exits, `parts` ends parts and
//! programs; `lower` turns values into registers and slots.
//!
//! Input: the operations of a scope. Output: a [`Program`]. Registers: r6 context, r7 first byte of
//! the frame, r8 end of its linear part (traffic control and XDP), r9 the per-CPU region of a tap,
//! r0 to r5 scratch.

mod arms;
mod frame;
mod parts;

pub(super) use frame::{PULL_MAX, skb, xdp};

use super::config::{Delivery, FrameEnd, Scratch};
use super::handle::{Brand, Depth, Exit};
use super::maps::ProgramMap;
use super::target::{Finish, Target};
use super::unfit::Unfit;
use crate::asm::{Asm, Label};
use crate::insn::{Cond, Helper, Insn, R0, R1, R2, Size, atomic};
use crate::program::{CodeOwner, Counter, FilterSpan};
use arms::Stub;

/// The state of an emission.
#[derive(Default)]
pub(super) struct Builder {
    pub(super) target: Target,
    pub(super) asm: Asm,
    unfit: Option<Unfit>,
    /// Stack bytes in use.
    pub(super) top: Depth,
    /// High-water mark of stack bytes in this part.
    pub(super) used: Depth,
    /// Stack slots whose values r0 to r5 hold, by register; `None` for other contents.
    pub(super) held: [Option<Depth>; 6],
    stubs: Vec<Stub>,
    /// Per position variable: maximum distance from the frame's first byte, and edit count.
    pub(super) at_reach: Vec<(u32, u16)>,
    /// Number of frame edits so far.
    pub(super) epoch: u16,
    /// True if r9 may no longer hold the region of a tap.
    pub(super) region_lost: bool,
    /// The frame's end and the deliveries so far, in a program that counts.
    frame_end: Option<FrameEnd>,
    deliveries: Vec<Delivery>,
    /// True if the program redirects frames and reserves a slot for their length.
    takes: bool,
    /// True if the program sends frames by another interface.
    pub(super) sends: bool,
    /// True if the driver removed the frame's tag, at XDP.
    pub(super) is_tag_out: bool,
    /// Stack bytes that are never released.
    pub(super) floor: Depth,
    pub(super) reach: u32,
    /// Instructions whose immediate is patched to `reach`.
    reach_at: Vec<usize>,
    none: Label,
    unsure: Label,
    counters: Vec<Counter>,
    /// Map n + 1 is table n.
    tables: Vec<ProgramMap>,
    finish: Finish,
    /// Finished parts, with their source maps and `reach` patches.
    finished_parts: Vec<(Asm, Vec<CodeOwner>, Vec<usize>)>,
    /// Number of open arms and twins.
    depth: usize,
    /// Slot at which the verifier's state was last reset.
    verifier_reset_at: usize,
    edits: bool,
    filters: Vec<FilterSpan>,
    filter: Option<usize>,
    source: Vec<CodeOwner>,
}

impl Builder {
    fn new(target: Target, finish: Finish) -> Self {
        let mut asm = Asm::new();
        let (none, unsure) = (asm.label(), asm.label());
        Self { target, asm, none, unsure, finish, ..Self::default() }
    }

    /// Begins a program up to its first twin; returns the exit for unrecognized blocks.
    pub(super) fn begin(target: Target, finish: Finish) -> (Box<Self>, Exit<'static>) {
        Self::begin_with(target, finish, None)
    }

    /// Begins a program that counts, up to its first twin; returns the exit for finished frames.
    pub(super) fn begin_with_end(
        target: Target,
        frame_end: FrameEnd,
    ) -> (Box<Self>, Exit<'static>) {
        Self::begin_with(target, Finish::Answer, Some(frame_end))
    }

    fn begin_with(
        target: Target,
        finish: Finish,
        frame_end: Option<FrameEnd>,
    ) -> (Box<Self>, Exit<'static>) {
        let mut b = Box::new(Self::new(target, finish));
        b.takes = matches!(frame_end, Some(FrameEnd::Redirect(_)));
        b.frame_end = frame_end;
        b.enter();
        let out = Exit { label: b.none, brand: Brand::default() };
        (b, out)
    }

    /// Returns the layout of the program's scratch memory, empty in most programs.
    pub(super) fn scratch(&self) -> Scratch {
        self.frame_end.as_ref().map_or(Scratch::NONE, FrameEnd::scratch)
    }

    /// Records that a frame may take this delivery.
    pub(super) fn note_delivery(&mut self, delivery: Delivery) {
        if !self.deliveries.contains(&delivery) {
            self.deliveries.push(delivery);
        }
    }

    /// Attributes the code from here on to this filter.
    pub(super) fn begin_filter(&mut self, filter: FilterSpan) {
        let known = self.filters.iter().position(|known| *known == filter);
        self.filter = Some(known.unwrap_or(self.filters.len()));
        if known.is_none() {
            self.filters.push(filter);
        }
        self.line();
    }

    fn line(&mut self) {
        let line = CodeOwner { from: self.asm.here(), filter: self.filter };
        self.source.pop_if(|last| last.from == line.from);
        if self.source.last().is_none_or(|last| last.filter != line.filter) {
            self.source.push(line);
        }
    }

    pub(super) fn unsure(&self) -> Label {
        self.unsure
    }

    /// Calls a helper. Leaves as unsure if the helper returns an error.
    pub(super) fn call_or_unsure(&mut self, helper: Helper) {
        self.call(helper);
        self.asm.jump_if(Cond::Ne, R0, 0, self.unsure);
    }

    /// Redirects unsure blocks to this label from here on.
    pub(super) fn set_unsure(&mut self, unsure: Label) {
        self.unsure = unsure;
    }

    pub(super) fn counter(&mut self, name: &str) -> usize {
        let known = |c: &Counter| c.filter == self.filter && c.name == name;
        self.counters.iter().position(known).unwrap_or_else(|| {
            self.counters.push(Counter { filter: self.filter, name: name.to_owned() });
            self.counters.len() - 1
        })
    }

    pub(super) fn count(&mut self, counter: usize) {
        let offset = u32::try_from(counter * size_of::<u64>()).unwrap_or(u32::MAX);
        self.asm.push_wide(Insn::load_map_value(R1, 0, offset));
        self.asm.push(Insn::mov(R2, 1));
        self.asm.push(Insn::atomic(Size::DW, atomic::ADD, R1, 0, R2));
        self.hold(R1, None);
        self.hold(R2, None);
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.asm.bind(label);
        self.held = [None; 6];
    }

    /// Returns the map of the current filter's state.
    pub(super) fn state(&mut self, size: u16) -> u32 {
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

    /// Forgets the slots that r0 to r5 hold.
    pub(super) fn invalidate_registers(&mut self) {
        self.held = [None; 6];
    }

    /// Records the first reason why this cannot be a program.
    pub(super) fn refuse(&mut self, unfit: Unfit) {
        self.unfit.get_or_insert(unfit);
    }
}
