//! Taps of a running path: lookup of the node that the user names, and of its spaces.

use crate::kernel::KernelSpace;
use crate::live::PathHandle;
use crate::registry::MachineRegistry;
use endpoint::sink::json::JsonLines;
pub use endpoint::tap_ring::TapRingWriter;
use filter::{FilterKind, Form};
use pipeline::ClassSet;
use pipeline::explain;
use pipeline::graph::NodeId;
use pipeline::plan::SpaceKind;
use runtime::commands::CommandError;
use runtime::space::class_selection::SelectedClasses;
use runtime::space::tap::{OverrunPolicy, Tap, TapOrigin, TapStart, TapStopHandle};
use runtime::space::tap_form::{MessageGatherer, TapForm};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

/// Parses the start position of a tap: `-5s`, `block:100` or `oldest`. Fails with a usage message.
pub fn parse_tap_origin(text: &str) -> Result<TapOrigin, String> {
    if text == "oldest" {
        return Ok(TapOrigin::Oldest);
    }
    let block = text.strip_prefix("block:").and_then(|number| number.parse().ok());
    if let Some(block) = block {
        return Ok(TapOrigin::Block(block));
    }
    let ago = text.strip_prefix('-').map(explain::parse_time);
    let usage = || format!("`{text}` is not a start position: write -5s, block:100 or oldest");
    ago.and_then(Result::ok).map(TapOrigin::Ago).ok_or_else(usage)
}

/// A failure to tap a node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TapError {
    /// No node, or more than one node, matches the given name. The text is the message for the
    /// user.
    #[error("{0}")]
    UnresolvedNode(String),
    /// The node's output cannot be tapped. The text is the reason.
    #[error("{0}")]
    NotTappable(String),
    /// The space of the node did not respond in time, or has ended.
    #[error("{0}")]
    SpaceUnavailable(CommandError),
    /// The kernel refused to start a thread.
    #[error("{0}")]
    Machine(sys::Error),
}

/// A node to tap, by name or number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TapNode {
    /// The node, by name, mark, or number among the nodes of the same name (`tcp`, `#X`,
    /// `count:2`).
    Name(String),
    /// The node's number, which stays the same across changes to the request.
    Number(usize),
}

/// The form in which a tap writes blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StreamForm {
    /// Frames, as a pcap capture.
    #[default]
    Capture,
    /// Bytes in view; whole messages after a filter that emits messages.
    Bytes,
    /// A JSON line for each block or described message.
    Json,
}

/// A request for a tap: the node, the selection and form of its blocks, and the reader.
#[derive(Debug)]
pub struct TapRequest {
    /// The node whose output is tapped, or `None` for the first source.
    pub node: Option<TapNode>,
    /// The classes of the blocks, as after `|` in a request (`80`, `get`, empty for a plain pipe),
    /// or `None` for blocks that at least one arc accepts.
    pub classes: Option<String>,
    /// The form in which blocks are written.
    pub form: StreamForm,
    /// The start position of the tap; `None` to start with the next block.
    pub since: Option<TapOrigin>,
    /// The policy for blocks that the reader does not read in time.
    pub policy: OverrunPolicy,
    /// Time after which the tap ends if its reader has read nothing.
    pub patience: Duration,
    /// Write end of the pipe that receives the blocks or, if there is a ring, a SEQPACKET socket
    /// for notifications.
    pub pipe: OwnedFd,
    /// The ring that receives the blocks instead of the pipe, if the reader has agreed to a ring.
    pub ring: Option<TapRingWriter>,
}

/// The registration of a tap's reader with the kernel programs of a path. While it exists, the
/// programs export the output of the tapped node. Dropping the value removes the reader.
struct KernelTap {
    kernels: Weak<Mutex<Vec<KernelSpace>>>,
    number: usize,
    reader: TapStopHandle,
}

impl Drop for KernelTap {
    fn drop(&mut self) {
        let Some(kernels) = self.kernels.upgrade() else { return };
        let mut kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.iter_mut().for_each(|kernel| kernel.close_tap(self.number, &self.reader));
    }
}

impl PathHandle {
    /// Starts a tap. Waits at most `limit` for each response of a space.
    ///
    /// # Errors
    ///
    /// Fails if the node is unknown or not accessible, if the request has both a start position and
    /// a class, if a space does not respond in time, or if the kernel refuses a thread.
    pub fn tap(&self, wanted: TapRequest, limit: Duration) -> Result<(Tap, TapStart), TapError> {
        let TapRequest { node, classes, form, since, policy, patience, pipe, ring } = wanted;
        let number = self.node_number(node.as_ref())?;
        // Retained output consists of blocks that reached this process, so a tap with a start
        // position does not read from a kernel program.
        let in_kernel = since.is_none() && self.has_kernel_tap(number);
        if !in_kernel {
            self.check_outside_kernel(number)?;
            self.check_blocks_leave_kernel(number)?;
        }
        let selects = classes.as_deref().is_some_and(|label| !label.is_empty());
        if since.is_some() && selects {
            let why = "the path keeps the past of all blocks of a source, not of a class: read \
                       `all` of the source with this start";
            return Err(TapError::NotTappable(why.to_owned()));
        }
        let classes = classes.map(|label| self.outgoing_classes(number, &label)).transpose()?;
        // A replicated node has one space per replica.
        let spaces: Vec<usize> = (0..self.space_names().len())
            .filter(|space| {
                let asked = self.execute(*space, limit, move |space| space.can_tap(number));
                asked.unwrap_or(false)
            })
            .collect();
        if spaces.is_empty() {
            let why = "no thread emits blocks there: the node is a sink";
            return Err(TapError::NotTappable(why.to_owned()));
        }
        let forms = spaces.iter().map(|_| self.tap_form(number, form)).collect::<Result<_, _>>()?;
        let (tap, feeds) = Tap::new((pipe, ring), policy, patience, (forms, classes))
            .map_err(TapError::Machine)?;
        let mut whole: Option<TapStart> = None;
        for (space, mut feed) in spaces.into_iter().zip(feeds) {
            if in_kernel {
                feed.set_fed_by_kernel();
            }
            let began = self.execute(space, limit, move |space| space.add_tap(number, since, feed));
            let Some(began) = began.map_err(TapError::SpaceUnavailable)? else {
                let why = "it was changed at this moment: try again".to_owned();
                return Err(TapError::NotTappable(why));
            };
            let before = whole.unwrap_or_default();
            whole = Some(TapStart {
                block: before.block + began.block,
                history_blocks: before.history_blocks + began.history_blocks,
                first_age_ns: before.first_age_ns.max(began.first_age_ns),
                has_history: before.has_history || began.has_history,
            });
        }
        // A change of the path may move the node into the kernel or out of it while it is read.
        if (in_kernel || since.is_none() && !self.is_source(number))
            && let Some(held) =
                self.open_kernel_tap((number, tap.stop_handle()), limit, in_kernel)?
        {
            tap.own_until_end(Box::new(held));
        }
        Ok((tap, whole.unwrap_or_default()))
    }

    /// Freezes the history of the source `node` (the first source if `None`) for `ns` nanoseconds
    /// from now. During this time no stored frame is evicted. If memory runs out, new frames are
    /// skipped, and the taps count them. Waits at most `limit` for each response of a space.
    ///
    /// # Errors
    ///
    /// Fails if the node is unknown, or if no space confirms in time that it retains output of the
    /// node.
    pub fn freeze_history(
        &self,
        node: Option<&TapNode>,
        ns: u64,
        limit: Duration,
    ) -> Result<(), TapError> {
        let number = self.node_number(node)?;
        self.check_outside_kernel(number)?;
        let freeze = |space| self.execute(space, limit, move |it| it.freeze_history(number, ns));
        let frozen = (0..self.space_names().len()).filter(|space| freeze(*space).unwrap_or(false));
        if frozen.count() == 0 {
            let why = "the path keeps no past of this filter: sources keep it in paths started \
                       with --history=64M";
            return Err(TapError::NotTappable(why.to_owned()));
        }
        Ok(())
    }

    /// Returns the number of the node `wanted`, or of the first source if `wanted` is `None`. Fails
    /// if there is no such node.
    pub(crate) fn node_number(&self, wanted: Option<&TapNode>) -> Result<usize, TapError> {
        let unknown = || TapError::NotTappable("this path was not built from a plan".to_owned());
        let whole = self.running_path().ok_or_else(unknown)?;
        let state = whole.lock_state();
        let plan = &state.plan;
        let at = match wanted {
            Some(TapNode::Number(number)) => {
                state.ids.nodes.iter().position(|known| known == number).map(NodeId)
            }
            Some(TapNode::Name(wanted)) => {
                let text = state.text.as_deref().ok_or_else(unknown)?;
                let span = pipeline::edit::filter_span(text, wanted);
                let span = span.map_err(|why| TapError::UnresolvedNode(why.to_string()))?;
                let mut ids = plan.graph.nodes_with_ids();
                ids.find(|(_, node)| node.span.start == span.start).map(|(id, _)| id)
            }
            None => {
                let mut sources = plan.graph.nodes_with_ids();
                sources.find(|(_, node)| node.kind() == Some(FilterKind::Source)).map(|(id, _)| id)
            }
        };
        let at = at.ok_or_else(|| TapError::UnresolvedNode("there is no such node".to_owned()))?;
        Ok(state.ids.nodes[at.0])
    }

    /// Fails if the node runs in the kernel and is not a source.
    pub(crate) fn check_outside_kernel(&self, number: usize) -> Result<(), TapError> {
        let (Some(plan), Some(at)) = (self.plan(), self.node_with_number(number)) else {
            return Ok(());
        };
        let node = plan.graph.node(at);
        let source = node.kind() == Some(FilterKind::Source);
        if !source && plan.space_of(at).kind == SpaceKind::Kernel {
            let why = "runs in the kernel: move it out first";
            return Err(TapError::NotTappable(format!(
                "`{}` {why} (`streamline set PATH move {} process`)",
                node.name(),
                node.name()
            )));
        }
        Ok(())
    }

    /// Returns true if a kernel program has a tap for the output of a node.
    fn has_kernel_tap(&self, number: usize) -> bool {
        let kernels = self.kernel_spaces().and_then(|kernels| kernels.upgrade());
        kernels.is_some_and(|kernels| {
            let kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
            kernels.iter().any(|kernel| kernel.has_tap(number))
        })
    }

    /// Returns true if a node is a source.
    fn is_source(&self, number: usize) -> bool {
        let plan = self.plan();
        let node = plan.as_ref().zip(self.node_with_number(number));
        node.is_some_and(|(plan, at)| plan.graph.node(at).kind() == Some(FilterKind::Source))
    }

    /// Registers `reader` with this path's kernel programs as a reader of the node's output, until
    /// the returned value is dropped. Returns `None` for a path that was not built from a plan. If
    /// `in_kernel` is true, the node must be in the kernel: fails if no program contains it.
    fn open_kernel_tap(
        &self,
        (number, reader): (usize, TapStopHandle),
        limit: Duration,
        in_kernel: bool,
    ) -> Result<Option<KernelTap>, TapError> {
        let Some(kernels) = self.kernel_spaces() else { return Ok(None) };
        let Some(running) = kernels.upgrade() else {
            return Err(TapError::SpaceUnavailable(CommandError::Ended));
        };
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        if in_kernel && !running.iter().any(|kernel| kernel.has_tap(number)) {
            let why = "it was changed at this moment: try again".to_owned();
            return Err(TapError::NotTappable(why));
        }
        for place in 0..running.len() {
            if let Err(why) = running[place].open_tap(number, &reader, limit) {
                let opened = running[..place].iter_mut();
                opened.for_each(|kernel| kernel.close_tap(number, &reader));
                return Err(TapError::NotTappable(why));
            }
        }
        drop(running);
        Ok(Some(KernelTap { kernels, number, reader }))
    }

    /// Returns the list of kernel programs of this path, or `None` for a path that was not built
    /// from a plan.
    fn kernel_spaces(&self) -> Option<Weak<Mutex<Vec<KernelSpace>>>> {
        let (whole, part) = self.whole_path()?;
        Some(whole.lock_state().parts.get(part)?.kernels.clone())
    }

    /// Fails if all filters downstream of a source run in the kernel, because no block then reaches
    /// a thread.
    fn check_blocks_leave_kernel(&self, number: usize) -> Result<(), TapError> {
        let (Some(plan), Some(source)) = (self.plan(), self.node_with_number(number)) else {
            return Ok(());
        };
        let in_kernel = |node: NodeId| plan.space_of(node).kind == SpaceKind::Kernel;
        let (mut open, mut last) = (vec![source], None);
        let mut known: HashSet<NodeId> = HashSet::from([source]);
        while let Some(node) = open.pop() {
            for to in plan.graph.outputs(node).map(|edge| edge.to) {
                if !in_kernel(to) {
                    return Ok(());
                }
                last = Some(to);
                open.extend(known.insert(to).then_some(to));
            }
        }
        let Some(last) = last else { return Ok(()) };
        let (source, last) = (plan.graph.node(source).name(), plan.graph.node(last).name());
        Err(TapError::NotTappable(format!(
            "all blocks of `{source}` stay in the kernel, where `{last}` runs: move it out first \
             (`streamline set PATH move {last} process`)"
        )))
    }

    /// Returns the name of a direct successor of a node, if one of the successors runs in the
    /// kernel.
    pub(crate) fn kernel_successor(&self, number: usize) -> Option<String> {
        let (plan, node) = (self.plan()?, self.node_with_number(number)?);
        let mut following = plan.graph.outputs(node).map(|edge| edge.to);
        let found = following.find(|to| plan.space_of(*to).kind == SpaceKind::Kernel)?;
        Some(plan.graph.node(found).name().to_owned())
    }

    /// Returns the classes that a label selects among the blocks that leave a node. Some nodes
    /// assign certain classes only if an arc names them. Fails if the label selects such a class
    /// and no arc names it.
    fn outgoing_classes(&self, number: usize, label: &str) -> Result<SelectedClasses, TapError> {
        let classes = self.outgoing_class_set(number, label)?;
        let (plan, at) = (self.plan(), self.node_with_number(number));
        let node = plan.as_ref().zip(at).map(|(plan, at)| (&plan.graph, at));
        let used = node.and_then(|(graph, at)| graph.node(at).filter());
        let on_request = used.and_then(|used| used.description.classes_on_request);
        if let (Some((graph, at)), Some(used), Some(made)) = (node, used, on_request)
            && classes.names_class_within(made)
            && !graph.outputs(at).any(|edge| graph.names_class_within(edge, made))
        {
            let name = used.description.name;
            return Err(TapError::NotTappable(format!(
                "`{name}` emits `{label}` only while an arc of the request selects it: add one, \
                 such as `streamline set PATH add discard below {name}/{label}`"
            )));
        }
        Ok(SelectedClasses::from_ranges(
            classes.without_unrequested_classes(on_request).ranges().to_vec(),
        ))
    }

    /// Returns the classes that a label selects among the blocks that leave a node, as ranges.
    pub(crate) fn outgoing_class_ranges(
        &self,
        number: usize,
        label: &str,
    ) -> Result<Vec<(u32, u32)>, TapError> {
        self.outgoing_class_set(number, label).map(|classes| classes.ranges().to_vec())
    }

    fn outgoing_class_set(&self, number: usize, label: &str) -> Result<ClassSet, TapError> {
        let (Some(plan), Some(at)) = (self.plan(), self.node_with_number(number)) else {
            return Err(TapError::UnresolvedNode("there is no such node".to_owned()));
        };
        let classes =
            pipeline::resolve_output_label(&plan.graph, at, label, &MachineRegistry::Local);
        classes.map_err(TapError::UnresolvedNode)
    }

    /// Returns the form in which a tap writes the blocks that leave a node.
    fn tap_form(&self, number: usize, form: StreamForm) -> Result<TapForm, TapError> {
        let (Some(whole), Some(at)) = (self.running_path(), self.node_with_number(number)) else {
            return Err(TapError::UnresolvedNode("there is no such node".to_owned()));
        };
        let state = whole.lock_state();
        let graph = &state.plan.graph;
        let leaving = explain::node_facts(graph, at.0).form.unwrap_or(Form::Bytes);
        Ok(match form {
            StreamForm::Capture => TapForm::Capture,
            StreamForm::Bytes if leaving == Form::Message => {
                TapForm::Bytes(Some(MessageGatherer::default()))
            }
            StreamForm::Bytes => TapForm::Bytes(None),
            StreamForm::Json => {
                let classes = graph.output_classes(at);
                let origins = state.origins.published.clone();
                TapForm::Json(Box::new(JsonLines::new(leaving, &classes, origins)))
            }
        })
    }
}
