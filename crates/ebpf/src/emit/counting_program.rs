//! Counting programs: the prologue and the final action on each frame.
//!
//! Input: a body that counts and delivers frames. Output: a [`Program`] that locates the per-CPU
//! scratch memory, runs the body, and performs the final action: a tap passes the frame unless the
//! body withholds it, and a redirecting program redirects or drops the frame. (CONTRACT 2, 29)

use super::builder::Builder;
use super::config::FinalAction;
use super::handle::{Exit, Layers};
use super::scope::Scope;
use super::target::Target;
use super::unfit::{EmitResult, UnfitReason};
use crate::program::Program;

/// Emits a counting program (a tap or a redirecting program) from `body`, with the final action
/// `frame_end` on each frame. `unsure` emits the code for frames whose first bytes cannot be read.
pub(super) fn emit_counting_program(
    target: Target,
    frame_end: FinalAction,
    body: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> EmitResult,
    unsure: impl for<'p> FnOnce(&mut Scope<'p, 'static>, Layers<'p>),
) -> Result<Program, UnfitReason> {
    let tag_out = frame_end.tag_kfunc().is_some();
    let (builder, out) = Builder::begin_counting_program(target, frame_end);
    let mut scope = Scope::root(builder);
    // The code for unsure frames comes first, because the body may end in a later part of the
    // program.
    if let Some(known) = scope.builder().begin_unsure_code(tag_out) {
        unsure(&mut scope, Layers::unparsed(target.hook));
        scope.builder().begin_body(known, out.label);
    }
    body(&mut scope, Layers::unparsed(target.hook), out)?;
    scope.into_builder().finish_counting_program()
}
