//! Programs that count: the prologue, and the end of each frame.
//!
//! Input: a body that tallies and delivers. Output: a [`Program`] that locates the per-CPU scratch
//! memory, runs the body, and ends the frame: a tap passes it, a redirecting program redirects or
//! drops it. (CONTRACT 2, 29)

use super::builder::Builder;
use super::config::FrameEnd;
use super::handle::{Exit, Layers};
use super::scope::Scope;
use super::target::Target;
use super::unfit::Unfit;
use crate::program::Program;

/// Emits a program that ends each frame in this way.
pub(super) fn program_with_end(
    target: Target,
    frame_end: FrameEnd,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<(), Unfit>,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, Unfit> {
    let asks = frame_end.tags().is_some();
    let (builder, out) = Builder::begin_with_end(target, frame_end);
    let mut scope = Scope::root(builder);
    // First, so that the body can end in another part than it begins in.
    if let Some(known) = scope.builder().begin_unsure(asks) {
        unsure(&mut scope, Layers::untouched(target.hook));
        scope.builder().begin_body(known, out.label);
    }
    body(&mut scope, Layers::untouched(target.hook), out)?;
    scope.into_builder().end_with_frame_end()
}
