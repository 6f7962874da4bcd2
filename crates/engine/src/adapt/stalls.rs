//! Moves of sinks to separate threads when their writes delay the thread that reads a source.
//!
//! A sink that appends to a file runs in the thread of its source. Its space reports a write that
//! took a long time while blocks waited at the source ([`SinkStall`]); no thread polls for this.
//! The sink then moves by hot swap, with its open file. It never moves back, because a disk that
//! stalled once is likely to stall again.
//!
//! docs/book/decisions/0087-writers-with-readers.md, docs/book/decisions/0092-stalled-sinks.md

use super::{ObserverMessage, PathObserver, SPACE_WAIT_MAX};
use crate::change::{ChangeError, reshape};
use pipeline::explain;
use pipeline::graph::NodeId;
use pipeline::plan::{Plan, SpaceKind};
use runtime::control::{ControlEvent, SinkStall};
use std::sync::mpsc::Receiver;

impl PathObserver {
    /// Moves each sink whose writes stall to a separate thread. Blocks until the observing thread
    /// must end.
    pub(super) fn move_stalled_sinks_until_end(&mut self, wakes: &Receiver<ObserverMessage>) {
        while let Ok(ObserverMessage::SpaceEvent(event)) = wakes.recv() {
            if let ControlEvent::Stalled(stall) = event {
                self.move_stalled_sink(stall);
            }
        }
    }

    /// Moves the stalled sink to a separate thread. Does nothing if the user does not permit this
    /// change, if the sink does not share its thread with a source, or if an earlier attempt
    /// succeeded or was refused. An attempt that fails because a space was busy is repeated at the
    /// next stall.
    pub(super) fn move_stalled_sink(&mut self, stall: SinkStall) {
        let Some(live) = self.lives.first().filter(|_| self.adapt.may_move_sinks) else { return };
        let Some((plan, node)) = live.plan().zip(live.node_with_number(stall.node)) else { return };
        if !plan.sinks_in_reader_threads().contains(&node) || self.tried_sinks.contains(&stall.node)
        {
            return;
        }
        let space = new_thread_name(&plan, node);
        let (took, waited) =
            (explain::format_short_duration(stall.write_ns as f64), stall.waiting_blocks);
        let what = format!("`{}` to {space}", explain::unique_names(&plan.graph)[node.0]);
        let why = format!("a write took {took}, and {waited} blocks or more waited for its thread");
        match reshape(live, (&[(node, space)], false), &self.adapt.machine, SPACE_WAIT_MAX) {
            Ok(switched) => live.add_adaptation(format!("{what}: {why}; {switched}")),
            // Either the path is ending or a space was busy. The next stall triggers another
            // attempt.
            Err(ChangeError::SpaceUnavailable(_) | ChangeError::KernelHostRestarted(_)) => return,
            Err(refused) => live.add_adaptation(format!(
                "moving {what} was not possible: {refused} (wanted because {why})"
            )),
        }
        self.tried_sinks.insert(stall.node);
    }
}

/// Returns the name for a new thread of the connected component that contains the sink. The name is
/// `thread` and a number: one more than the highest number in use, or 0 if no thread of the
/// component has a number.
fn new_thread_name(plan: &Plan, node: NodeId) -> String {
    let part = plan.space_of(node).component;
    let threads = plan.spaces.iter().filter(|space| space.component == part);
    let threads = threads.filter(|space| space.kind == SpaceKind::Thread);
    let number = |name: &str| name.strip_prefix("thread").and_then(|number| number.parse().ok());
    let last: Option<usize> = threads.filter_map(|space| number(&space.name)).max();
    format!("thread{}", last.map_or(0, |last| last + 1))
}
