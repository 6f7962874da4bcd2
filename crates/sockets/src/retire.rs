//! Going back to pipes, before the program does what this library does not follow, and what becomes
//! of an edge whose descriptors are closed.

use crate::adapter;
use crate::ends::{self, Entered, Holder, State};
use crate::reading::Reading;
use sys::preload;

/// The reason for which an edge goes back to a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// A child will have the same descriptors.
    Fork,
    /// Another program takes the place of this one.
    Exec,
    /// The program asks the kernel about the pipe.
    Asked,
}

/// Has all edges be pipes, for ever, where that is called for.
pub(crate) fn all(why: Why) {
    for holder in ends::holders() {
        if why == Why::Exec && holder.try_enter().is_some_and(|entered| entered.is_fresh()) {
            continue;
        }
        one(holder, why);
    }
}

/// Makes an edge what it was: a pipe.
pub(crate) fn one(holder: &'static Holder, why: Why) {
    holder.shut();
    // Where another thread is in the middle of a call, or a signal handler forks, what is there
    // stays there: that call has it.
    let Some(mut entered) = holder.try_enter() else { return };
    // A thread that is not here could hold what the other process needs; and who reads in several
    // threads and forks has a reader that goes on.
    if why == Why::Fork && entered.reads_ring() && preload::has_threads() {
        return;
    }
    leave(holder, &mut entered);
}

fn leave(holder: &'static Holder, entered: &mut Entered<'_>) {
    match &mut *entered.state {
        State::Writing(writing) => writing.retire(),
        State::Reading(reading) => {
            let Some(input) = reading.retire(&holder.edge) else { return };
            let numbers: Vec<i32> = ends::numbers(holder).collect();
            match adapter::pour(input, &numbers) {
                Ok(()) => numbers.iter().for_each(|number| ends::replaced(*number)),
                Err(input) => *reading = Reading::Ring(input),
            }
        }
    }
}

/// A descriptor is about to be closed, or to become another one. The last one of an edge takes the
/// ring with it.
pub(crate) fn close(number: i32) {
    let Some(holder) = ends::closing(number) else { return };
    if ends::numbers(holder).any(|other| other != number) {
        return;
    }
    ends::closing(number);
    let Some(mut entered) = holder.try_enter() else { return };
    match &mut *entered.state {
        State::Writing(writing) => writing.retire(),
        State::Reading(reading) => drop(reading.retire(&holder.edge)),
    }
}
