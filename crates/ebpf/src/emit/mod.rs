//! The emitter: an API with which a filter's kernel twin generates eBPF.
//!
//! Input: twins, functions that take a [`Scope`] and the known [`Layers`] of the frame. Output: one
//! [`Program`] for a chain of neighboring filters. [SL §5.3] runs filters in the kernel as loaded
//! modules; here each request gets generated code.
//!
//! The types enforce three rules:
//! - bytes are read only through a [`Window`] (or [`DynWindow`]), which only `need` creates;
//! - a handle is valid only in the scope that created it and in the arms inside;
//! - control flows forward and outward only, so programs terminate and each bounds check dominates
//!   the accesses that it proves.
//!
//! A twin leaves in one of three ways: with its [`Answer`]; through its exit argument, which means
//! answer 0, via [`Scope::absent`] if that is counted; or through [`Scope::unsure`] if it cannot
//! decide, which passes the block to the filter's user implementation. It never guesses. A request
//! that eBPF cannot express fails with [`UnfitReason`] before anything is loaded.
//!
//! ```
//! use ebpf::emit::{self, Answer, Cmp, EmitFn, Exit, Layers, ReturnConversion, Scope};
//! use ebpf::emit::{UnfitReason, be16, byte};
//! use ebpf::{FilterSpan, Hook};
//!
//! // In the filter's file: the twin, and the constant that points to it.
//! struct Args;
//! struct Description { name: &'static str, kernel: Option<EmitFn<Args>> }
//! const ETH: Description = Description { name: "eth", kernel: Some(eth) };
//!
//! fn eth<'s>(_: &Args, s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, UnfitReason>
//! {
//!     let short = s.absent("short", out);
//!     let header = s.need::<14>(on.at, short);
//!     let kind = s.load(header, be16::<12>());
//!     let at = s.advance(on.at, 14);
//!     Ok(Answer::new(kind, Layers { at, next: Some(kind), l3: Some(at), ..on }))
//! }
//!
//! // In the planner: neighboring twins become one program, and pass on the layers.
//! let program = emit::program(Hook::Xdp, ReturnConversion::Answer, |s, on, out| {
//!     let twin = ETH.kernel.ok_or_else(|| UnfitReason::new("no twin"))?;
//!     s.emit_twin(FilterSpan::new(ETH.name, 0, 3), twin, &Args, on, out)
//! })?;
//! assert_eq!(program.read_end, 14);
//! # Ok::<(), UnfitReason>(())
//! ```
//!
//! Four misuses do not compile. Loading from a position without a bounds check:
//! ```compile_fail,E0308
//! # use ebpf::emit::*;
//! fn twin<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, UnfitReason>
//! {
//!     let kind = s.load(on.at, be16::<12>());
//!     Ok(Answer::new(kind, on))
//! }
//! ```
//! Loading past the checked bytes:
//! ```compile_fail,E0080
//! # use ebpf::emit::*;
//! fn twin<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, UnfitReason>
//! {
//!     let header = s.need::<14>(on.at, out);
//!     let kind = s.load(header, be16::<13>());
//!     Ok(Answer::new(kind, on))
//! }
//! # let emit: EmitFn<()> = twin;
//! # let hook = ebpf::Hook::Tc;
//! # ebpf::emit::program(hook, ReturnConversion::Answer, |s, on, out| emit(&(), s, on, out)).ok();
//! ```
//! Keeping a proof beyond the arm that checked:
//! ```compile_fail,E0521
//! # use ebpf::emit::*;
//! fn twin<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, UnfitReason>
//! {
//!     let mut kept = None;
//!     s.arm(|t, skip| kept = Some(t.need::<14>(on.at, skip)));
//!     let kind = s.load(kept.unwrap(), be16::<12>());
//!     Ok(Answer::new(kind, on))
//! }
//! ```
//! Forging a proof:
//! ```compile_fail,E0451
//! # use ebpf::emit::*;
//! fn proof<'s>(s: &Scope<'s, '_>) -> Window<'s, 14> {
//!     Window { bytes: panic!() }
//! }
//! ```

mod builder;
mod classic;
mod config;
mod counting_program;
mod edit;
mod handle;
mod lower;
mod maps;
pub mod redirect;
mod remap;
mod ring_layout;
mod scope;
mod siphash;
mod state;
mod switch_layout;
mod tail_call;
pub mod tap;
mod target;
mod unfit;
pub mod user_sockets;

use crate::program::Program;
use builder::Builder;

pub use edit::{ChecksumCoverage, SavedLayers};
pub use handle::{
    Answer, DynWindow, Exit, Field, FrameOffset, FramePos, FramePosVar, Layers, Num, Transport,
    Value, Var, Width, Window, be16, be32, byte,
};
pub use scope::{Cmp, EmitFn, MetadataField, Scope};
pub use siphash::SiphashState;
pub use state::{TwinState, WideNum, WideVar};
pub use target::{
    NATURAL_ZERO_CLASS, NO_ANSWER_CLASS, Outcome, ReturnConversion, Target, UNSURE_RETURN_VALUE,
    Verdict,
};
pub use unfit::{EmitResult, UnfitReason};

/// Emits one program from `body`, which receives the layers of an unparsed frame and the exit for
/// blocks that a filter does not recognize.
pub fn program(
    target: impl Into<Target>,
    finish: ReturnConversion,
    body: impl for<'p> FnOnce(
        &mut Scope<'p, 'static>,
        Layers<'p>,
        Exit<'p>,
    ) -> Result<Answer<'p>, UnfitReason>,
) -> Result<Program, UnfitReason> {
    let target = target.into();
    let (builder, out) = Builder::begin(target, finish);
    let mut scope = Scope::root(builder);
    let answer = body(&mut scope, Layers::unparsed(target.hook), out)?;
    scope.into_builder().finish_program(answer)
}

#[cfg(test)]
mod tests;
