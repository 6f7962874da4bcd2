//! Programs that count: prologue, and end of each frame.
//!
//! In: a body that tallies and delivers. Out: a [`Program`] in which the body stands between
//! locating the per-CPU scratch memory and ending the frame: a tap passes it, a redirecting program
//! redirects or drops it. (CONTRACT 2, 29)

use super::builder::Builder;
use super::handle::{Exit, Layers};
use super::redirect::Redirect;
use super::scope::Scope;
use super::tap::{FusedTap, Scratch};
use super::user_sockets::REGIONS_PER_CPU;
use super::{Target, Unfit};
use crate::program::Program;

/// Emits a program that ends each frame in this way.
pub(super) fn program_with_end(
    target: Target,
    ending: FrameEnd,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    let asks = ending.tags().is_some();
    let (builder, out) = Builder::begin_with_end(target, ending);
    let mut scope = Scope::root(builder);
    // First, so that the body can end in another part than it begins in.
    if let Some(known) = scope.builder().begin_unsure(asks) {
        unsure(&mut scope, Layers::untouched(target.hook));
        scope.builder().begin_body(known, out.label);
    }
    body(&mut scope, Layers::untouched(target.hook), out)?;
    scope.into_builder().end_with_frame_end()
}

/// The end of each frame in a counting program.
#[derive(Clone, Debug)]
pub(super) enum FrameEnd {
    /// Copy the deliveries and pass the frame.
    Tap(FusedTap),
    /// Redirect or drop the frame.
    Redirect(Redirect),
}

impl FrameEnd {
    /// Returns the BTF id of the kfunc that reports tags.
    pub(super) const fn tags(&self) -> Option<i32> {
        match self {
            Self::Tap(_) => None,
            Self::Redirect(redirect) => redirect.tag_kfunc,
        }
    }

    /// Returns the layout of the scratch memory.
    pub(super) const fn scratch(&self) -> Scratch {
        match self {
            Self::Tap(fused) => fused.scratch,
            Self::Redirect(redirect) => redirect.scratch(),
        }
    }

    /// Returns the maximum number of processors.
    pub(super) const fn processors(&self) -> u32 {
        match self {
            Self::Tap(FusedTap { user: Some(_), cpus, .. }) => *cpus / REGIONS_PER_CPU,
            Self::Tap(fused) => fused.cpus,
            Self::Redirect(redirect) => redirect.cpus,
        }
    }
}

/// Stack slots that are reserved throughout: the scratch memory of this processor, and either the
/// region number or the frame's tag and length.
pub(super) struct FixedSlots;

impl FixedSlots {
    pub(super) const SCRATCH: i16 = -8;
    pub(super) const CPU: i16 = -16;
    pub(super) const TAG: i16 = -16;
    pub(super) const LENGTH: i16 = -24;
    /// Number of reserved slots.
    pub(super) const SLOTS: i16 = 3;
}
