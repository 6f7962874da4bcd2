//! Conversion of edges back to plain pipes, before calls that this library does not emulate and
//! when their descriptors are closed.

use crate::adapter;
use crate::edge_ends::{self, EdgeState, LockedEdge, SharedEdge};
use crate::reading::ReadingEnd;
use sys::preload;

/// The reason for turning an edge into a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RetireReason {
    /// The program forks, and a child process will inherit the descriptors.
    Fork,
    /// The program is about to be replaced by another one (execve(2)).
    Exec,
    /// The program queries the kernel about the pipe of an edge.
    Query,
}

/// Turns all edges into pipes permanently. Before an exec, leaves edges that the next program can
/// inherit unchanged.
pub(crate) fn retire_all_edges(why: RetireReason) {
    for shared_edge in edge_ends::shared_edges() {
        if why == RetireReason::Exec
            && shared_edge.try_lock_for_call().is_some_and(|locked| locked.is_inheritable())
        {
            continue;
        }
        retire_edge(shared_edge, why);
    }
}

/// Turns an edge into a pipe permanently, for the reason `why`. Leaves an edge unchanged that
/// another thread or an interrupted call is using. In a program with several threads, a fork also
/// leaves an edge unchanged that has a ring to read.
pub(crate) fn retire_edge(shared_edge: &'static SharedEdge, why: RetireReason) {
    shared_edge.shut_down_rendezvous();
    // If another thread is in a call, or a signal handler forks during one, that call owns the
    // state, and the edge stays as it is.
    let Some(mut locked) = shared_edge.try_lock_for_call() else { return };
    // Another thread may hold a lock that the adapter would need; and a program that reads in
    // several threads and forks still has a reader.
    if why == RetireReason::Fork && locked.has_ring_to_read() && preload::has_several_threads() {
        return;
    }
    switch_to_pipe(shared_edge, &mut locked);
}

fn switch_to_pipe(shared_edge: &'static SharedEdge, locked: &mut LockedEdge<'_>) {
    match &mut *locked.state {
        EdgeState::Writing(writing) => writing.retire(),
        EdgeState::Reading(reading) => {
            let Some(input) = reading.retire(&shared_edge.edge) else { return };
            let numbers: Vec<i32> = edge_ends::descriptor_numbers(shared_edge).collect();
            match adapter::start(input, &numbers) {
                Ok(()) => numbers.iter().for_each(|number| edge_ends::mark_not_an_end(*number)),
                Err(input) => *reading = ReadingEnd::Ring(input),
            }
        }
    }
}

/// Handles a descriptor that is about to be closed or replaced. If it is the last descriptor of its
/// edge, closes the ring.
pub(crate) fn close_descriptor(number: i32) {
    let Some(shared_edge) = edge_ends::forget_descriptor(number) else { return };
    if edge_ends::descriptor_numbers(shared_edge).any(|other| other != number) {
        return;
    }
    edge_ends::forget_descriptor(number);
    let Some(mut locked) = shared_edge.try_lock_for_call() else { return };
    match &mut *locked.state {
        EdgeState::Writing(writing) => writing.retire(),
        EdgeState::Reading(reading) => drop(reading.retire(&shared_edge.edge)),
    }
}
