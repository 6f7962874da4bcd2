//! The fused tree of all requests at an attach point. [SL §7.1, prefix sharing; FEATURES O6, O7]
//!
//! Input: the trees of the requests. Output: a tree in which the leading filters that requests
//! share are merged, so an interface has one demultiplexer for any number of requests. The counters
//! of the fused tree are converted to counters of each request. A stateful filter is never shared,
//! because a later request would find the state of an earlier one.
//!
//! Requests that take the same edges from a step share their counters there ([`Fork`]).

use super::tree::{ExitBlocks, RequestTree, TreeStep, filter_span};
use filter::{Amount, Description, StateScope};
use pipeline::ClassSet;
use pipeline::graph::{FilterUse, Graph, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A request to be fused, with its tree and its graph.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedRequest<'m> {
    pub(super) tree: &'m RequestTree,
    pub(super) graph: &'m Graph,
    /// Number of the request among all requests ever attached. It distinguishes the labels of the
    /// request's filters from those of other requests.
    pub(super) request: u32,
}

/// A tree of the filters of several requests, in which shared filters are merged.
#[derive(Clone, Debug, Default)]
pub(super) struct FusedTree {
    pub(super) steps: Vec<FusedStep>,
    pub(super) exits: Vec<FusedExit>,
    pub(super) taps: Vec<FusedTreeTap>,
    pub(super) forks: Vec<Fork>,
    /// The steps that send frames to an egress interface. The program has a mark for each of these
    /// steps ([`Self::egress_mark`]): a flag of the current frame that is set if the step must send
    /// the frame.
    pub(super) egress_steps: Vec<usize>,
    /// The gates of the requests that take frames from the host, in order of precedence. Each pair
    /// contains the index of a request and the index of its gate among the steps.
    pub(super) gates: Vec<(usize, usize)>,
    lines: Vec<RequestPositions>,
}

/// A step of a fused tree: a filter or the gate of one request. All requests that run a filter with
/// the same arguments on the same frames share its step. A filter that has state or sends frames
/// belongs to one request alone.
#[derive(Clone, Debug)]
pub(super) struct FusedStep {
    /// The preceding step, or `None` if the step follows the source.
    pub(super) from: Option<usize>,
    /// The classes of the preceding step's output that lead to this step.
    pub(super) classes: ClassSet,
    /// Indices of the requests that share the step. In messages and counters, the first request's
    /// node stands for the step.
    pub(super) requests: Vec<usize>,
    /// The number of the step in the first request's own tree. `None` for a gate, because that tree
    /// contains no gates.
    number_in_request: Option<usize>,
}

/// An exit of one request, as part of the fused tree.
#[derive(Clone, Debug)]
pub(super) struct FusedExit {
    pub(super) line: usize,
    /// The number of the exit in the request's tree.
    pub(super) number_in_request: usize,
    /// The step that the exit follows, or `None` for the source.
    pub(super) from: Option<usize>,
    pub(super) which: ExitBlocks,
}

/// A tap of one request, as part of the fused tree.
#[derive(Clone, Debug)]
pub(super) struct FusedTreeTap {
    pub(super) line: usize,
    /// The number of the tap in the request's tree.
    pub(super) number_in_request: usize,
    /// The step that is tapped, or `None` for the source.
    pub(super) from: Option<usize>,
}

/// A fork: the set of edges over which some requests leave a step or the source.
#[derive(Clone, Debug)]
pub(super) struct Fork {
    pub(super) at: Option<usize>,
    lines: Vec<usize>,
    pub(super) steps: Vec<usize>,
    /// Indices of the exits over which blocks leave the kernel at this fork. A fork with exits
    /// belongs to a single request.
    pub(super) exits: Vec<usize>,
}

/// The positions of one request's steps and exits in the fused tree.
#[derive(Clone, Debug, Default)]
struct RequestPositions {
    /// The step number of the gate that selects the request's frames; `None` if the request only
    /// observes frames.
    root: Option<usize>,
    steps: Vec<usize>,
    exits: Vec<usize>,
}

/// A counter of a program. The number, if any, is the index of the step, fork, exit or gate at
/// which the program counts.
#[derive(Clone, Copy, Debug)]
pub(super) enum CounterId {
    /// Counter of all frames that the program processed.
    Ran,
    /// Counter of blocks that arrived at a step. Contains the index of the step.
    Entered(usize),
    /// Counter of blocks that took at least one edge of the fork with this index.
    Passed(usize),
    /// Counter of blocks that no edge of a fork selected. Contains the index of the fork.
    Unselected(usize),
    /// Counter of blocks that took an exit. Contains the index of the exit.
    Handed(usize),
    /// Counter of blocks that took the exit with this index but could not be copied to user space.
    Failed(usize),
    /// Counter of frames that an egress interface refused. The number is the index of the sending
    /// step in [`FusedTree::egress_steps`].
    Refused(usize),
    /// Counter of frames that a gate left to the host or to another request. Contains the index of
    /// the gate and the reason.
    Left(usize, LeaveReason),
}

/// A reason why a gate leaves a frame to the host or to another request although its expression
/// does not exclude the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaveReason {
    /// The frame is a fragment, so only a part of the datagram could be tested.
    Fragment,
    /// The program cannot read the frame's headers.
    Undecided,
    /// An earlier request took the frame.
    TakenEarlier,
}

impl LeaveReason {
    /// All reasons, in the order of the counts in [`KernelCounters::left`].
    pub(super) const ALL: [Self; 3] = [Self::Fragment, Self::Undecided, Self::TakenEarlier];
}

/// Counters of a request in the kernel, by the step numbers of the request's own tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelCounters {
    /// Number and bytes of the frames that the program processed while the request was attached.
    pub(crate) ran: Amount,
    /// Blocks that arrived at each step.
    pub(crate) entered: Vec<Amount>,
    /// Blocks that left over at least one edge: first those that left the source, then those that
    /// left each step.
    pub(crate) passed: Vec<Amount>,
    /// Blocks that no edge selected: first those at the source, then those at each step.
    pub(crate) unselected: Vec<Amount>,
    /// Blocks that took each exit of the request.
    pub(crate) handed: Vec<Amount>,
    /// Blocks that took each exit of the request but could not be copied to user space.
    pub(crate) failed: Vec<Amount>,
    /// Frames that the request's gate left to the host or to another request. There is one count
    /// for each reason in [`LeaveReason::ALL`], in that order.
    #[serde(default)]
    pub(crate) left: [u64; LeaveReason::ALL.len()],
    /// Number of blocks for which a step returned no class, by step and reason.
    pub(crate) reasons: HashMap<usize, HashMap<String, u64>>,
}

impl FusedTree {
    /// Creates the fused tree of the requests in `members`.
    pub(super) fn fuse(members: &[FusedRequest<'_>]) -> Self {
        let mut fused = Self::default();
        for (line, member) in members.iter().enumerate() {
            let root = member.tree.gate.map(|_| fused.add_gate(line));
            let mut own = RequestPositions { root, ..RequestPositions::default() };
            for number in 0..member.tree.steps.len() {
                own.steps.push(fused.find_or_add_step(members, line, number, &own));
            }
            for (number, exit) in member.tree.exits.iter().enumerate() {
                let from = own.position(exit.from);
                own.exits.push(fused.exits.len());
                fused.exits.push(FusedExit {
                    line,
                    number_in_request: number,
                    from,
                    which: exit.which.clone(),
                });
            }
            for (number_in_request, tap) in member.tree.taps.iter().enumerate() {
                let from = own.position(tap.from);
                fused.taps.push(FusedTreeTap { line, number_in_request, from });
            }
            fused.lines.push(own);
            fused.add_forks(line);
        }
        // Earlier requests take precedence, whatever the order of the members.
        fused.gates.sort_by_key(|(line, _)| members[*line].request);
        fused
    }

    /// Adds the gate of a request; returns the number of its step.
    fn add_gate(&mut self, line: usize) -> usize {
        let step = self.steps.len();
        self.gates.push((line, step));
        self.steps.push(FusedStep {
            from: None,
            classes: ClassSet::all(),
            requests: vec![line],
            number_in_request: None,
        });
        step
    }

    /// Finds a step of an earlier request that runs the same filter on the same frames, or adds a
    /// step; returns its number.
    fn find_or_add_step(
        &mut self,
        members: &[FusedRequest<'_>],
        line: usize,
        own: usize,
        before: &RequestPositions,
    ) -> usize {
        let step = &members[line].tree.steps[own];
        let from = before.position(step.from);
        let same = |shared: &FusedStep| {
            let first = shared.requests[0];
            let Some(other) = shared.number_in_request.map(|own| &members[first].tree.steps[own])
            else {
                return false;
            };
            let both = step_use(&members[first], other).zip(step_use(&members[line], step));
            let place = shared.from == from && shared.classes == step.classes;
            place && first != line && both.is_some_and(|(one, other)| can_share_filter(one, other))
        };
        if let Some(known) = self.steps.iter().position(same) {
            self.steps[known].requests.push(line);
            return known;
        }
        if step_use(&members[line], step).is_some_and(|used| used.endpoint.outlet.is_some()) {
            self.egress_steps.push(self.steps.len());
        }
        let (classes, own) = (step.classes.clone(), Some(own));
        self.steps.push(FusedStep { from, classes, requests: vec![line], number_in_request: own });
        self.steps.len() - 1
    }

    /// Adds the forks of the latest request, which has the index `line`. If an existing fork leads
    /// to the same steps, and neither leads to an exit, the request shares that fork.
    fn add_forks(&mut self, line: usize) {
        let places: Vec<Option<usize>> = self.lines[line].fork_positions().collect();
        for at in places {
            let here = |step: &usize| self.steps[*step].from == at;
            let steps: Vec<usize> = self.lines[line].steps.iter().copied().filter(here).collect();
            let out = |exit: &usize| {
                let exit = &self.exits[*exit];
                exit.from == at && matches!(exit.which, ExitBlocks::Classes(_))
            };
            let exits: Vec<usize> = self.lines[line].exits.iter().copied().filter(out).collect();
            let alike = |fork: &&mut Fork| {
                fork.at == at && fork.steps == steps && fork.exits.is_empty() && exits.is_empty()
            };
            match self.forks.iter_mut().find(alike) {
                _ if steps.is_empty() && exits.is_empty() => {}
                Some(fork) => fork.lines.push(line),
                None => self.forks.push(Fork { at, lines: vec![line], steps, exits }),
            }
        }
    }

    /// Returns the index of a counter among the program's counters.
    pub(super) fn counter_index(&self, counter: CounterId) -> u16 {
        let (steps, forks, exits) = (self.steps.len(), self.forks.len(), self.exits.len());
        let number = match counter {
            CounterId::Ran => 0,
            CounterId::Entered(step) => 1 + step,
            CounterId::Passed(fork) => 1 + steps + fork,
            CounterId::Unselected(fork) => 1 + steps + forks + fork,
            CounterId::Handed(exit) => 1 + steps + 2 * forks + exit,
            CounterId::Failed(exit) => 1 + steps + 2 * forks + exits + exit,
            CounterId::Refused(lead) => 1 + steps + 2 * (forks + exits) + lead,
            CounterId::Left(gate, why) => {
                let place = LeaveReason::ALL.len() * gate + why as usize;
                1 + steps + 2 * (forks + exits) + self.egress_steps.len() + place
            }
        };
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// Returns the number of counters that the program needs.
    pub(super) fn counter_count(&self) -> usize {
        let left = LeaveReason::ALL.len() * self.gates.len();
        1 + self.steps.len()
            + 2 * (self.forks.len() + self.exits.len())
            + self.egress_steps.len()
            + left
    }

    /// Returns the steps after `from` (the source if `None`), with the classes that lead to each.
    pub(super) fn following_steps(
        &self,
        from: Option<usize>,
    ) -> impl Iterator<Item = (usize, &ClassSet)> {
        let steps = self.steps.iter().enumerate();
        steps.filter(move |(_, step)| step.from == from).map(|(at, step)| (at, &step.classes))
    }

    /// Returns the exits of `from` (the source if `None`), each with its classes, except the exits
    /// for blocks that `from` is unsure about.
    pub(super) fn class_exits(
        &self,
        from: Option<usize>,
    ) -> impl Iterator<Item = (usize, &ClassSet)> {
        let exits = self.exits.iter().enumerate().filter(move |(_, exit)| exit.from == from);
        exits.filter_map(|(at, exit)| match &exit.which {
            ExitBlocks::Classes(classes) => Some((at, classes)),
            ExitBlocks::Unsure => None,
        })
    }

    /// Returns the sole edge after the step `at` (the source if `None`), if it leads to another
    /// step: the number of the fork, the number of the following step, and the classes that lead to
    /// it. Returns `None` if other steps or exits also follow `at`.
    pub(super) fn sole_successor(&self, at: Option<usize>) -> Option<(usize, usize, &ClassSet)> {
        let mut forks = self.forks_of_step(at);
        let (number, fork) = forks.next().filter(|(_, fork)| fork.has_one_edge())?;
        let alone = forks.next().is_none() && fork.exits.is_empty();
        let step = fork.steps.first().filter(|_| alone)?;
        Some((number, *step, &self.steps.get(*step)?.classes))
    }

    /// Returns the number of requests.
    pub(super) fn request_count(&self) -> usize {
        self.lines.len()
    }

    /// Returns the taps of the step `at` (the source if `None`), each with its index.
    pub(super) fn taps_of_step(
        &self,
        at: Option<usize>,
    ) -> impl Iterator<Item = (usize, &FusedTreeTap)> {
        self.taps.iter().enumerate().filter(move |(_, tap)| tap.from == at)
    }

    /// Returns the exits for blocks that a step is unsure about.
    pub(super) fn unsure_exits(&self, step: usize) -> impl Iterator<Item = usize> {
        let exits = self.exits.iter().enumerate();
        let here = exits.filter(move |(_, exit)| exit.from == Some(step));
        here.filter(|(_, exit)| matches!(exit.which, ExitBlocks::Unsure)).map(|(at, _)| at)
    }

    /// Returns the mark for frames that a step sends: its number, and the index of the step among
    /// the steps that send frames. Returns `None` if the step sends no frames.
    pub(super) fn egress_mark(&self, step: usize) -> Option<(u16, usize)> {
        let number = self.egress_steps.iter().position(|lead| *lead == step)?;
        Some((u16::try_from(self.forks.len() + number).unwrap_or(u16::MAX), number))
    }

    /// Returns the number of the mark that the program sets on a frame when a request takes it from
    /// the host. Returns `None` if no request takes frames.
    pub(super) fn taken_mark(&self) -> Option<u16> {
        let number = self.forks.len() + self.egress_steps.len();
        (!self.gates.is_empty()).then(|| u16::try_from(number).unwrap_or(u16::MAX))
    }

    /// Returns the number of marks that the program needs: one for each fork and each step that
    /// sends frames, and one if a request takes frames.
    pub(super) fn mark_count(&self) -> usize {
        self.forks.len() + self.egress_steps.len() + usize::from(!self.gates.is_empty())
    }

    /// Returns the forks at a step, or at the source if `at` is `None`, each with its number.
    pub(super) fn forks_of_step(&self, at: Option<usize>) -> impl Iterator<Item = (usize, &Fork)> {
        self.forks.iter().enumerate().filter(move |(_, fork)| fork.at == at)
    }

    /// Returns the node that a step implements, in the first request that uses the step. The first
    /// value is the index of that request.
    pub(super) fn node(&self, members: &[FusedRequest<'_>], step: usize) -> (usize, NodeId) {
        let shared = &self.steps[step];
        let line = shared.requests[0];
        let tree = members[line].tree;
        let own = shared.number_in_request.map(|own| tree.steps[own].nodes[0]);
        (line, own.or(tree.gate).unwrap_or(NodeId(0)))
    }

    /// Returns the label of a step: the text position of its filter, and the number of the first
    /// request that uses it.
    pub(super) fn label(&self, members: &[FusedRequest<'_>], step: usize) -> ebpf::FilterSpan {
        let (line, node) = self.node(members, step);
        filter_span(members[line].graph, node).with_request_number(members[line].request)
    }

    /// Returns the number of a step in the own tree of the request with the index `line`. Returns
    /// `None` if the request does not use the step.
    pub(super) fn request_step_number(&self, line: usize, step: usize) -> Option<usize> {
        self.lines.get(line)?.steps.iter().position(|known| *known == step)
    }

    /// Returns the counters of a request; `read_counter` reads a counter of the program by its
    /// number.
    pub(super) fn request_counters(
        &self,
        line: usize,
        read_counter: impl Fn(u16) -> Amount,
    ) -> KernelCounters {
        let read = |one: CounterId| read_counter(self.counter_index(one));
        let Some(own) = self.lines.get(line) else {
            return KernelCounters::default();
        };
        let places = || own.fork_positions();
        let gate = self.gates.iter().position(|(of, _)| *of == line);
        let left = |why| gate.map_or(0, |gate| read(CounterId::Left(gate, why)).blocks);
        let fork =
            |at: Option<usize>| self.forks_of_step(at).find(|(_, fork)| fork.lines.contains(&line));
        let passed = |at: Option<usize>| match fork(at) {
            None => Amount::default(),
            Some((number, fork)) if fork.has_one_edge() => {
                let step = fork.steps.first().map(|step| read(CounterId::Entered(*step)));
                let exit = fork.exits.first().map(|exit| read(CounterId::Handed(*exit)));
                step.or(exit).unwrap_or_else(|| read(CounterId::Passed(number)))
            }
            Some((number, _)) => read(CounterId::Passed(number)),
        };
        let unselected = |at: Option<usize>| {
            fork(at).map_or_else(Amount::default, |(number, _)| read(CounterId::Unselected(number)))
        };
        let mut counted = KernelCounters {
            ran: read(own.root.map_or(CounterId::Ran, CounterId::Entered)),
            left: LeaveReason::ALL.map(left),
            entered: own.steps.iter().map(|step| read(CounterId::Entered(*step))).collect(),
            passed: places().map(passed).collect(),
            unselected: places().map(unselected).collect(),
            handed: own.exits.iter().map(|exit| read(CounterId::Handed(*exit))).collect(),
            failed: own.exits.iter().map(|exit| read(CounterId::Failed(*exit))).collect(),
            reasons: HashMap::new(),
        };
        for (number, step) in self.egress_steps.iter().enumerate() {
            let blocks = read(CounterId::Refused(number)).blocks;
            if let Some(own) = self.request_step_number(line, *step).filter(|_| blocks > 0) {
                counted.add_unanswered_count(own, REFUSED_COUNTER, blocks);
            }
        }
        counted
    }
}

/// The name of the counter for frames that the egress interface refused.
pub(super) const REFUSED_COUNTER: &str = "refused";

impl RequestPositions {
    /// Converts a step number in the request's own tree to the number in the fused tree. For the
    /// source (`None`), returns the number of the request's gate, if it has one.
    fn position(&self, from: Option<usize>) -> Option<usize> {
        from.map_or(self.root, |from| self.steps.get(from).copied())
    }

    /// Returns the positions in the fused tree where the request may fork: its beginning, and each
    /// of its steps.
    fn fork_positions(&self) -> impl Iterator<Item = Option<usize>> {
        std::iter::once(self.root).chain(self.steps.iter().copied().map(Some))
    }
}

impl Fork {
    /// Returns true if the fork has a single edge. The step or exit to which this edge leads
    /// already counts the blocks.
    pub(super) fn has_one_edge(&self) -> bool {
        self.steps.len() + self.exits.len() == 1
    }
}

impl KernelCounters {
    /// Adds the counters that another program collected for the same request to these counters.
    pub(super) fn add(&mut self, more: &Self) {
        self.ran += more.ran;
        for (to, from) in [
            (&mut self.entered, &more.entered),
            (&mut self.passed, &more.passed),
            (&mut self.unselected, &more.unselected),
            (&mut self.handed, &more.handed),
            (&mut self.failed, &more.failed),
        ] {
            to.resize(from.len().max(to.len()), Amount::default());
            to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
        }
        self.left.iter_mut().zip(more.left).for_each(|(to, from)| *to += from);
        for (step, reasons) in &more.reasons {
            reasons.iter().for_each(|(name, count)| self.add_unanswered_count(*step, name, *count));
        }
    }

    fn add_unanswered_count(&mut self, step: usize, name: &str, count: u64) {
        *self.reasons.entry(step).or_default().entry(name.to_owned()).or_default() += count;
    }

    /// Returns the number of blocks that a step left unanswered for this reason.
    pub(super) fn unanswered_count(&self, step: usize, name: &str) -> u64 {
        self.reasons.get(&step).and_then(|reasons| reasons.get(name)).copied().unwrap_or(0)
    }

    /// Adds the numbers of blocks for which filters returned no class, as a program has counted
    /// them in its memory. `own` maps the label of a step to the step's number in the request. It
    /// returns `None` if the request does not use the step.
    pub(super) fn add_unanswered_counts(
        &mut self,
        code: &ebpf::Program,
        values: &[u8],
        own: impl Fn(&ebpf::FilterSpan) -> Option<usize>,
    ) {
        let (values, _) = values.as_chunks::<8>();
        for (counter, value) in code.counters.iter().zip(values) {
            let word = counter.filter.and_then(|word| code.filters.get(word));
            if let Some(own) = word.and_then(&own) {
                self.add_unanswered_count(own, &counter.name, u64::from_ne_bytes(*value));
            }
        }
    }

    /// Returns the number of blocks and bytes that left a step (the source if `at` is `None`) over
    /// at least one edge.
    pub(crate) fn passed_amount(&self, at: Option<usize>) -> Amount {
        self.passed.get(at.map_or(0, |step| step + 1)).copied().unwrap_or_default()
    }

    /// Returns the number of blocks and bytes at a step (the source if `at` is `None`) that no edge
    /// selected.
    pub(crate) fn unselected_amount(&self, at: Option<usize>) -> Amount {
        self.unselected.get(at.map_or(0, |step| step + 1)).copied().unwrap_or_default()
    }
}

fn step_use<'m>(member: &FusedRequest<'m>, step: &TreeStep) -> Option<&'m FilterUse> {
    step.nodes.first().and_then(|id| member.graph.node(*id).filter())
}

/// Returns true if a step of one request and a step of another are the same filter with the same
/// arguments, as defined by [`FilterUse::is_same`]. The state of one filter can then be loaded into
/// the other.
pub(super) fn is_same_filter(
    one: (&FusedRequest<'_>, usize),
    other: (&FusedRequest<'_>, usize),
) -> bool {
    fn filter<'m>((member, step): (&FusedRequest<'m>, usize)) -> Option<&'m FilterUse> {
        step_use(member, member.tree.steps.get(step)?)
    }
    filter(one).zip(filter(other)).is_some_and(|(one, other)| one.is_same(other))
}

/// Returns true if two requests can share the filter: the filters are identical, send no blocks,
/// and have no state through which one request would affect the other.
fn can_share_filter(one: &FilterUse, other: &FilterUse) -> bool {
    let same = one.description.is_same_entry(other.description);
    // If two requests each send a frame, two frames must be sent.
    let plain = is_stateless(one.description) && one.endpoint.outlet.is_none();
    same && one.arguments == other.arguments && plain
}

/// Returns true if the kernel twin of a filter has no state. Sessions do not count, because the
/// user implementation assigns them.
fn is_stateless(description: &Description) -> bool {
    matches!(description.state.scope, StateScope::Nothing | StateScope::Sessions)
}
