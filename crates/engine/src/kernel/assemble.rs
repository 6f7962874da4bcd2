//! Assembly of the requests at an attach point into one program. [SL §5.3, §7.1; CONTRACT 18]
//!
//! Input: the fused tree of the requests. Output: the program, and the format of each exit. The
//! filters before the first fork follow one another in the code. After the fork, the code of a
//! filter is nested in the code of its predecessor, in a branch of its own. Work that several
//! branches share is therefore done once, before the branches.
//!
//! A *step* is a filter in the kernel. An *exit* is an edge over which blocks leave the kernel. A
//! *fork* is a set of edges over which some of the requests leave a step or the source.

mod forks;

use super::fused_tree::{CounterId, FusedRequest, FusedTree, LeaveReason};
use super::taps::TapEmitter;
use super::tree::RequestTree;
use ebpf::FilterSpan;
use ebpf::emit::redirect::{self, Redirect};
use ebpf::emit::tap::{self, DELIVERIES_MAX, Delivery, EXITS_MAX};
use ebpf::emit::{Answer, EmitFn, Exit, Layers, Scope, Target, UnfitReason, Value};
use endpoint::source::rx::take::FirstHeader;
use filter::general::bpf::flow_selection;
use filter::{Arguments, FilterKind};
use forks::{emit_class_test, may_contain};
use pipeline::graph::NodeId;
use std::cell::{Cell, RefCell};

/// The assembled program of several requests, before it is loaded.
#[derive(Debug)]
pub(super) struct AssembledProgram {
    /// The program that runs the requests.
    pub(super) program: ebpf::Program,
    /// For each exit, the kind of the first header of the frames that leave through it.
    pub(super) first_headers: Vec<FirstHeader>,
}

/// The final action of an assembled program on each frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameAction<'l> {
    /// Copies the frame into the rings of the requests that receive it, and passes it to the host.
    Tap(&'l tap::FusedTap),
    /// Redirects the frame, so that the host does not receive it. A frame that has passed a step in
    /// the list goes to the interface whose index is paired with this step. Any other frame goes to
    /// a socket.
    Redirect(&'l Redirect, &'l [(usize, u32)]),
}

/// A reason why requests cannot form one program. `at` identifies the request and the node at
/// fault, if they are known.
#[derive(Debug)]
pub(super) struct AssemblyError {
    pub(super) at: Option<(usize, NodeId)>,
    pub(super) why: String,
}

/// Assembles one program for the fused tree of several requests. Fails if a request has too many
/// exits, or if a filter has no code for its arguments.
pub(super) fn assemble(
    fused: &FusedTree,
    members: &[FusedRequest<'_>],
    (target, layout): (Target, FrameAction<'_>),
) -> Result<AssembledProgram, AssemblyError> {
    if members.iter().any(|member| !is_within_limits(member.tree)) {
        let why = "it has more exits from the kernel than one program can have".to_owned();
        return Err(AssemblyError { at: None, why });
    }
    let emission = Emitter {
        redirect_egress: match layout {
            FrameAction::Tap(_) => None,
            FrameAction::Redirect(_, leads) => Some(leads),
        },
        fused,
        members,
        at: Cell::new(None),
        mixed_at: Cell::new(None),
        taps: TapEmitter::new(fused),
        first_headers: RefCell::new(vec![None; fused.exits.len()]),
    };
    let made = emission.emit_program(target, layout);
    let refused =
        |unfit: UnfitReason| AssemblyError { at: emission.at.get(), why: unfit.why.into() };
    let program = made.map_err(refused)?;
    if let Some(at) = emission.mixed_at.get() {
        let why = "frames with and without a link header leave it on one edge".to_owned();
        return Err(AssemblyError { at: Some(at), why });
    }
    let headers = emission.first_headers.into_inner();
    let first_headers = headers.into_iter().map(Option::unwrap_or_default).collect();
    Ok(AssembledProgram { program, first_headers })
}

/// Returns true if the exits of a request fit the limits of one program.
pub(super) fn is_within_limits(tree: &RequestTree) -> bool {
    tree.exits.len() <= EXITS_MAX as usize && tree.sink_count() <= DELIVERIES_MAX as usize
}

struct Emitter<'t> {
    /// For an XDP redirect, the steps that send frames, each with the index of its egress
    /// interface; `None` for a tap.
    redirect_egress: Option<&'t [(usize, u32)]>,
    fused: &'t FusedTree,
    members: &'t [FusedRequest<'t>],
    /// The node whose code was emitted last, with the index of its request. If emission fails, this
    /// node is reported as the cause.
    at: Cell<Option<(usize, NodeId)>>,
    /// A node whose frames leave through one exit but begin with different headers, if there is
    /// one. The program is then refused, because the reader infers the first header of a frame from
    /// its exit.
    mixed_at: Cell<Option<(usize, NodeId)>>,
    taps: TapEmitter<'t>,
    /// First header of the frames at each exit; `None` until code for a delivery to the exit has
    /// been emitted.
    first_headers: RefCell<Vec<Option<FirstHeader>>>,
}

impl Emitter<'_> {
    fn emit_program(
        &self,
        target: Target,
        layout: FrameAction<'_>,
    ) -> Result<ebpf::Program, UnfitReason> {
        match layout {
            FrameAction::Tap(fused) => tap::fused_tap(
                target,
                fused,
                |s, on, done| self.emit_program_body(s, on, done),
                |s, on| self.emit_unreadable_frame(s, on),
            ),
            FrameAction::Redirect(take, _) => redirect::redirect(
                target,
                take,
                |s, on, done| self.emit_program_body(s, on, done),
                |s, on| self.emit_unreadable_frame(s, on),
            ),
        }
    }

    fn emit_program_body<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        self.emit_count(s, CounterId::Ran, on);
        self.taps.emit(s, None, on);
        match self.fused.taken_mark() {
            None => self.emit_chain(s, on, done),
            Some(mark) => self.emit_gates(s, (mark, on), done),
        }
    }

    /// Emits the gates of the requests that take frames from the host. A gate tests the expression
    /// of one request, and the steps of the request follow the gate. A frame belongs to the first
    /// request whose expression it matches; the gates of later requests count the frame. The mark
    /// with the number `mark` is set on a frame once a request has taken it.
    fn emit_gates<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        (mark, on): (u16, Layers<'s>),
        done: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        for (number, (line, step)) in self.fused.gates.iter().enumerate() {
            let left = |why| CounterId::Left(number, why);
            let arguments = self.gate_arguments(*step)?;
            s.arm(|s, next| {
                s.emit_catching_unsure(|s, _| {
                    s.arm(|s, fragment| {
                        flow_selection::emit_gate(arguments, s, fragment, next)?;
                        s.arm(|s, elsewhere| {
                            s.only_unmarked(mark, elsewhere);
                            let delivers_all = self.members[*line].tree.steps.is_empty();
                            s.only_while_awake(
                                self.pointer_ring_number(*line)?,
                                delivers_all,
                                next,
                            );
                            s.set_mark(mark, true);
                            self.emit_count(s, CounterId::Entered(*step), on);
                            self.taps.emit(s, Some(*step), on);
                            self.emit_outgoing_edges(s, Some(*step), on, next)
                        })?;
                        self.emit_count_and_leave(s, left(LeaveReason::TakenEarlier), on, next);
                        Ok::<(), UnfitReason>(())
                    })?;
                    self.emit_count_and_leave(s, left(LeaveReason::Fragment), on, next);
                    Ok::<(), UnfitReason>(())
                })?;
                self.emit_count_and_leave(s, left(LeaveReason::Undecided), on, next);
                Ok::<(), UnfitReason>(())
            })?;
        }
        s.leave(done);
        Ok(())
    }

    /// Returns the number of the ring of pointers to the frames that a request takes from the host.
    fn pointer_ring_number(&self, line: usize) -> Result<u16, UnfitReason> {
        u16::try_from(line)
            .map_err(|_| UnfitReason::new("too many requests at this interface share the program"))
    }

    /// Returns the arguments of the source with this step number. The source's gate tests the
    /// expression in these arguments.
    fn gate_arguments(&self, step: usize) -> Result<&Arguments, UnfitReason> {
        let (line, id) = self.fused.node(self.members, step);
        self.at.set(Some((line, id)));
        let used = self.members[line].graph.node(id).filter();
        used.map(|used| &used.arguments).ok_or_else(|| UnfitReason::new("it is not a source"))
    }

    /// Emits the steps up to the first fork. Their code is sequential instead of nested, so their
    /// number is unlimited. A program that is too long continues in tail calls.
    fn emit_chain<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        mut on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        let fused = self.fused;
        let mut from = None;
        while let Some((fork, step, classes)) = fused.sole_successor(from) {
            let here = on;
            s.or_else(
                |s, miss| emit_class_test(s, here.class, classes, miss),
                |s| self.emit_count_and_leave(s, CounterId::Unselected(fork), here, done),
            );
            self.emit_count(s, CounterId::Entered(step), on);
            on = s
                .end_part_if_long_with_fallback(Answer::new(on.class, on), |s| {
                    self.emit_unsure_delivery(s, step, here, done)
                })
                .layers;
            let piece = self.twin_and_arguments(step)?;
            let answer = if self.edits_frames(step) {
                // The frame may have been edited, so header offsets are looked up again.
                let kept = s.save_layers(on);
                let absent = |s: &mut Scope<'_, 's>| {
                    let on = Layers { class: Value::Const(0), ..s.restore_layers(kept) };
                    self.taps.emit(s, Some(step), on);
                    self.emit_outgoing_edges(s, Some(step), on, done)
                };
                s.emit_twin_with_exits(piece, on, absent, |s| {
                    let on = s.restore_layers(kept);
                    self.emit_unsure_delivery(s, step, on, done);
                })?
            } else {
                let (here, none) = (on, Layers { class: Value::Const(0), ..on });
                let absent = |s: &mut Scope<'_, 's>| {
                    self.taps.emit(s, Some(step), none);
                    self.emit_outgoing_edges(s, Some(step), none, done)
                };
                s.emit_twin_with_exits(piece, on, absent, |s| {
                    self.emit_unsure_delivery(s, step, here, done)
                })?
            };
            self.emit_egress_mark(s, step);
            on = answer.layers;
            self.taps.emit(s, Some(step), on);
            from = Some(step);
        }
        self.emit_outgoing_edges(s, from, on, done)
    }

    /// Returns true if the filter at a step edits frames.
    fn edits_frames(&self, step: usize) -> bool {
        let (line, id) = self.fused.node(self.members, step);
        let used = self.members[line].graph.node(id).filter();
        used.is_some_and(|used| used.description.kind == FilterKind::Editing)
    }

    /// Emits the egress of a frame, if the step sends frames. The code sets the mark that sends the
    /// frame to its egress interface or, in a redirecting program, redirects the frame to that
    /// interface.
    fn emit_egress_mark(&self, s: &mut Scope<'_, '_>, step: usize) {
        let Some((mark, _)) = self.fused.egress_mark(step) else { return };
        match self.redirect_egress.map(|leads| leads.iter().find(|(of, _)| *of == step)) {
            None => s.set_mark(mark, true),
            // A redirecting program has one request, so a step has the same number in the request's
            // tree as in the fused tree.
            Some(found) => found.iter().for_each(|(_, interface)| s.redirect_to(*interface)),
        }
    }

    /// Emits code that delivers a block that a step is unsure about.
    fn emit_unsure_delivery<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        step: usize,
        on: Layers<'s>,
        done: Exit<'s>,
    ) {
        // Each delivery gets its own branch, after which its stack space is free again.
        self.fused
            .unsure_exits(step)
            .for_each(|exit| s.arm(|t, _| self.emit_delivery(t, exit, on)));
        s.leave(done);
    }

    fn emit_count_and_leave<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        counter: CounterId,
        on: Layers<'s>,
        done: Exit<'s>,
    ) {
        self.emit_count(s, counter, on);
        s.leave(done);
    }

    /// Emits code that counts a block and its bytes in `counter`.
    fn emit_count<'s>(&self, s: &mut Scope<'s, '_>, counter: CounterId, on: Layers<'s>) {
        let length = s.view_length(on);
        s.add_to_tally(self.fused.counter_index(counter), length);
    }

    /// Emits the handling of a frame whose headers the program cannot read. The code counts the
    /// frame. It also delivers the frame, unless the program's requests take frames from the host.
    fn emit_unreadable_frame<'s>(&self, s: &mut Scope<'s, '_>, on: Layers<'s>) {
        self.emit_count(s, CounterId::Ran, on);
        self.taps.emit(s, None, on);
        for gate in 0..self.fused.gates.len() {
            self.emit_count(s, CounterId::Left(gate, LeaveReason::Undecided), on);
        }
        if self.fused.gates.is_empty() {
            self.emit_unreadable_delivery(s, on);
        }
    }

    fn delivery(&self, number: usize) -> Delivery {
        let failed = Some(self.fused.counter_index(CounterId::Failed(number)));
        let out = &self.fused.exits[number];
        let tree = self.members[out.line].tree;
        let reader = u8::try_from(tree.exits[out.number_in_request].sink).unwrap_or(u8::MAX);
        let first = u16::try_from(out.line * DELIVERIES_MAX as usize).unwrap_or(u16::MAX);
        let (number, way) =
            (first.saturating_add(reader.into()), u32::try_from(out.number_in_request));
        let way = way.unwrap_or(u32::MAX);
        Delivery {
            number,
            reader,
            exit: way,
            shared: tree.shares_sink(out.number_in_request),
            failed_tally: failed,
        }
    }

    /// Emits the code of a filter and of all steps downstream of the filter. After these steps, the
    /// emitted code continues at `end`.
    fn emit_step<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        step: usize,
        on: Layers<'s>,
        end: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        self.emit_count(s, CounterId::Entered(step), on);
        let (word, twin, arguments) = self.twin_and_arguments(step)?;
        s.emit_catching_unsure(|t, _| {
            t.arm(|u, absent| {
                let answer = u.emit_twin(word, twin, arguments, on, absent)?;
                self.emit_egress_mark(u, step);
                self.taps.emit(u, Some(step), answer.layers);
                self.emit_outgoing_edges(u, Some(step), answer.layers, end)
            })?;
            let none = Layers { class: Value::Const(0), ..on };
            self.taps.emit(t, Some(step), none);
            self.emit_outgoing_edges(t, Some(step), none, end)
        })?;
        self.emit_unsure_delivery(s, step, on, end);
        Ok(())
    }

    fn twin_and_arguments(
        &self,
        step: usize,
    ) -> Result<(FilterSpan, EmitFn<Arguments>, &Arguments), UnfitReason> {
        let (line, id) = self.fused.node(self.members, step);
        self.at.set(Some((line, id)));
        let used = self.members[line].graph.node(id).filter();
        let used = used.ok_or_else(|| UnfitReason::new("it is not a filter"))?;
        let twin = used.description.emit_twin.ok_or_else(|| UnfitReason::new("no twin"))?;
        Ok((self.fused.label(self.members, step), twin, &used.arguments))
    }

    /// Emits code that counts a block and delivers it at an exit. Records the first header of the
    /// frames at this exit.
    fn emit_delivery<'s>(&self, s: &mut Scope<'s, '_>, exit: usize, on: Layers<'s>) {
        self.emit_count(s, CounterId::Handed(exit), on);
        let first = match (on.has_link_header, on.l3) {
            (true, _) => FirstHeader::Link,
            (false, Some(_)) => FirstHeader::Packet,
            (false, None) => FirstHeader::Bytes,
        };
        if *self.first_headers.borrow_mut()[exit].get_or_insert(first) != first {
            self.mixed_at.set(self.at.get());
        }
        s.deliver(self.delivery(exit), on, on.class);
    }

    /// Emits code that delivers a frame whose headers the program cannot read. The frame is
    /// delivered at the exits of the source, and at the exits for unsure blocks of each filter
    /// after the source.
    fn emit_unreadable_delivery<'s>(&self, s: &mut Scope<'s, '_>, on: Layers<'s>) {
        let fused = self.fused;
        let length = s.view_length(on);
        for (step, _) in fused.following_steps(None).filter(|(_, set)| may_contain(on.class, set)) {
            s.add_to_tally(fused.counter_index(CounterId::Entered(step)), length);
            fused.unsure_exits(step).for_each(|exit| s.arm(|t, _| self.emit_delivery(t, exit, on)));
        }
        for (exit, _) in fused.class_exits(None).filter(|(_, set)| may_contain(on.class, set)) {
            s.arm(|t, _| self.emit_delivery(t, exit, on));
        }
        for (number, fork) in fused.forks_of_step(None) {
            match self.may_take(fork, None, on.class) {
                true if fork.has_one_edge() => {}
                true => s.add_to_tally(fused.counter_index(CounterId::Passed(number)), length),
                false => s.add_to_tally(fused.counter_index(CounterId::Unselected(number)), length),
            }
        }
    }
}
