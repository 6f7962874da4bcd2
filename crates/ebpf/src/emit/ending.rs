//! Programs with a desk: how they begin, and how they end each frame.
//!
//! In: a body that tallies and hands over. Out: a [`Program`] whose body stands between finding the
//! memory in which it counts and what becomes of the frame: a tap lets it by, a program that takes
//! has it go one way. (CONTRACT 2, 29)

use super::build::Builder;
use super::handle::{Exit, Layers};
use super::own::SEATS;
use super::scope::Scope;
use super::take::Take;
use super::tap::{Desk, Joint};
use super::{Target, Unfit};
use crate::program::Program;

/// Makes a program that ends each frame like this.
pub(super) fn made(
    target: Target,
    ending: Ending,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    let asks = ending.tags().is_some();
    let (builder, out) = Builder::begin_with_desk(target, ending);
    let mut scope = Scope::root(builder);
    // First, so that the body can end in another part than it begins in.
    if let Some(known) = scope.builder().begin_unsure(asks) {
        unsure(&mut scope, Layers::untouched(target.place));
        scope.builder().begin_body(known, out.label);
    }
    body(&mut scope, Layers::untouched(target.place), out)?;
    scope.into_builder().end_with_desk()
}

/// How a program with a desk ends each frame.
#[derive(Clone, Debug)]
pub(super) enum Ending {
    /// It copies what was handed over, and lets the frame by.
    Tap(Joint),
    /// The frame goes nowhere else.
    Take(Take),
}

impl Ending {
    /// The function that tells of tags.
    pub(super) const fn tags(&self) -> Option<i32> {
        match self {
            Self::Tap(_) => None,
            Self::Take(take) => take.tags,
        }
    }

    /// Where it notes and counts.
    pub(super) const fn desk(&self) -> Desk {
        match self {
            Self::Tap(joint) => joint.desk,
            Self::Take(take) => take.desk(),
        }
    }

    /// How many processors there are at most.
    pub(super) const fn processors(&self) -> u32 {
        match self {
            Self::Tap(Joint { own: Some(_), cpus, .. }) => *cpus / SEATS,
            Self::Tap(joint) => joint.cpus,
            Self::Take(take) => take.cpus,
        }
    }
}

/// What is on the stack all the time: where the desk of this processor is, and either which one it
/// is, or the tag of the frame and its length.
pub(super) struct Kept;

impl Kept {
    pub(super) const DESK: i16 = -8;
    pub(super) const CPU: i16 = -16;
    pub(super) const TAG: i16 = -16;
    pub(super) const LENGTH: i16 = -24;
    /// Slots that this takes.
    pub(super) const SLOTS: i16 = 3;
}
