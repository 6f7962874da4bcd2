//! The emitter: an API with which a filter's kernel twin generates eBPF.
//!
//! In: twins, functions that take a [`Scope`] and the known [`Layers`] of the frame. Out: one
//! [`Program`] for a chain of neighboring filters. [SL §5.3] runs filters in the kernel as loaded
//! modules; here each request gets generated code.
//!
//! The types enforce three rules:
//! - bytes are read only through a [`Window`] (or [`DynWindow`]), which only `need` creates;
//! - a handle is valid in the scope that created it and in the arms inside, nowhere else;
//! - control flows forward and outward only, so programs terminate and each bounds check dominates
//!   the accesses that it proves.
//!
//! A twin leaves in one of three ways: with its [`Answer`]; through the exit that it was given,
//! meaning answer 0, via [`Scope::absent`] where that is counted; or through [`Scope::unsure`] when
//! it cannot decide, which hands the block to the filter's user implementation. It never guesses. A
//! request that eBPF cannot express is [`Unfit`], before anything is loaded.
//!
//! ```
//! use ebpf::emit::{self, Answer, Cmp, Emit, Exit, Finish, Layers, Scope, Unfit, be16, byte};
//! use ebpf::{FilterSpan, Hook};
//!
//! // In the filter's file: the twin, and the constant that points to it.
//! struct Args;
//! struct Description { name: &'static str, kernel: Option<Emit<Args>> }
//! const ETH: Description = Description { name: "eth", kernel: Some(eth) };
//!
//! fn eth<'s>(_: &Args, s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, Unfit>
//! {
//!     let short = s.absent("short", out);
//!     let header = s.need::<14>(on.at, short);
//!     let kind = s.load(header, be16::<12>());
//!     let at = s.advance(on.at, 14);
//!     Ok(Answer::new(kind, Layers { at, next: Some(kind), l3: Some(at), ..on }))
//! }
//!
//! // In the planner: neighbours become one program, the layers handed on.
//! let program = emit::program(Hook::Xdp, Finish::Answer, |s, on, out| {
//!     let twin = ETH.kernel.ok_or_else(|| Unfit::new("no twin"))?;
//!     s.piece(FilterSpan::new(ETH.name, 0, 3), twin, &Args, on, out)
//! })?;
//! assert_eq!(program.reach, 14);
//! # Ok::<(), Unfit>(())
//! ```
//!
//! Four misuses do not compile. Loading from a position without a bounds check:
//! ```compile_fail,E0308
//! # use ebpf::emit::*;
//! fn twin<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, Unfit>
//! {
//!     let kind = s.load(on.at, be16::<12>());
//!     Ok(Answer::new(kind, on))
//! }
//! ```
//! Loading past the checked bytes:
//! ```compile_fail,E0080
//! # use ebpf::emit::*;
//! fn twin<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, Unfit>
//! {
//!     let header = s.need::<14>(on.at, out);
//!     let kind = s.load(header, be16::<13>());
//!     Ok(Answer::new(kind, on))
//! }
//! # let emit: Emit<()> = twin;
//! # ebpf::emit::program(ebpf::Hook::Tc, Finish::Answer, |s, on, out| emit(&(), s, on, out)).ok();
//! ```
//! Keeping a proof beyond the arm that checked:
//! ```compile_fail,E0521
//! # use ebpf::emit::*;
//! fn twin<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, Unfit>
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
mod edit;
mod frame_end;
mod handle;
mod lower;
mod maps;
pub mod redirect;
mod remap;
mod ring_layout;
mod scope;
mod siphash;
mod state;
mod tail_call;
pub mod tap;
pub mod user_sockets;

use std::borrow::Cow;
use std::fmt;

use crate::program::{Hook, Program};
use builder::Builder;

pub use edit::{Checksum, SavedLayers};
pub use handle::{
    Answer, DynWindow, Exit, Field, FrameOffset, FramePos, FramePosVar, Layers, Num, Transport,
    Value, Var, Width, Window, be16, be32, byte,
};
pub use scope::{Cmp, Meta, Scope};
pub use siphash::Sip;
pub use state::{State, Wide, WideVar};

/// The class of a block that no filter recognized.
pub const NONE: u32 = 0;
/// The class that stands for the natural value 0, such as port 0.
pub const ZERO: u32 = u32::MAX - 1;
/// Return value of an exam program that is unsure. As a class this value means "held", and held
/// blocks do not travel, so no answer collides with it.
pub const UNSURE: u32 = u32::MAX;

/// The type of a twin, as stored in a filter's description. `A` is the type of the filter's
/// arguments. A plain `fn` with these parameters and elided or named lifetimes coerces to it.
pub type Emit<A> =
    for<'s, 'o> fn(&A, &mut Scope<'s, 'o>, Layers<'s>, Exit<'s>) -> Result<Answer<'s>, Unfit>;

/// The environment that a program is emitted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The hook at which it runs.
    pub hook: Hook,
    /// True if it must load without CAP_PERFMON, as programs on behalf of users do. Then it uses
    /// packet pointers at constant offsets only and copies bytes behind computed offsets.
    pub hardened: bool,
    /// True if frames were taken from the host and may be modified. Observed frames are read-only.
    pub takes: bool,
    /// True if every frame lies in one buffer: at XDP, without multi-buffer support. Then the frame
    /// length is a pointer difference and needs no helper.
    pub single: bool,
}

impl From<Hook> for Target {
    /// Targets a loader with CAP_PERFMON.
    fn from(hook: Hook) -> Self {
        Self { hook, hardened: false, takes: false, single: false }
    }
}

impl Target {
    /// Targets a loader without CAP_PERFMON.
    #[must_use]
    pub const fn hardened(hook: Hook) -> Self {
        Self { hook, hardened: true, takes: false, single: false }
    }

    /// Returns the target for frames taken from the host, which may be modified.
    #[must_use]
    pub const fn taking(self) -> Self {
        Self { takes: true, ..self }
    }

    /// Returns the target for single-buffer frames.
    #[must_use]
    pub const fn single(self) -> Self {
        Self { single: true, ..self }
    }
}

/// The use of the last answer as return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// Return the class, or [`UNSURE`]: for the exam.
    Answer,
    /// Return a verdict.
    Verdict {
        /// If the last filter recognized the frame.
        found: Verdict,
        /// If some filter did not.
        none: Verdict,
        /// If some filter was unsure.
        unsure: Verdict,
    },
}

/// The fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Continue as without the program.
    Pass,
    /// Drop.
    Drop,
}

impl Verdict {
    /// Returns the hook's return value for this verdict.
    pub const fn value(self, hook: Hook) -> i32 {
        match (self, hook) {
            (Self::Pass, Hook::Tc) => -1,
            (Self::Pass, Hook::Xdp) => 2,
            (Self::Pass, Hook::Socket) => -1,
            (Self::Pass, Hook::Cgroup) => 1,
            (Self::Drop, Hook::Tc) => 2,
            (Self::Drop, Hook::Xdp) => 1,
            (Self::Drop, Hook::Socket | Hook::Cgroup) => 0,
        }
    }
}

/// The decoded return value of an exam program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The class of the last filter; [`NONE`] if some filter did not recognize the block.
    Class(u32),
    /// The user implementation must decide.
    Unsure,
}

impl Outcome {
    /// Decodes the return value of a program finished with [`Finish::Answer`].
    pub const fn of(value: u32) -> Self {
        if value == UNSURE { Self::Unsure } else { Self::Class(value) }
    }
}

/// A filter that cannot run in the kernel with its arguments, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// Prose for `explain`.
    pub why: Cow<'static, str>,
}

impl Unfit {
    /// Creates the error with this reason.
    pub fn new(why: impl Into<Cow<'static, str>>) -> Self {
        Self { why: why.into() }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot run in the kernel: {}", self.why)
    }
}

impl std::error::Error for Unfit {}

/// Emits one program from `body`, which receives the layers of an untouched frame and the exit for
/// unrecognized blocks.
pub fn program(
    target: impl Into<Target>,
    finish: Finish,
    body: impl for<'p> FnOnce(
        &mut Scope<'p, 'static>,
        Layers<'p>,
        Exit<'p>,
    ) -> Result<Answer<'p>, Unfit>,
) -> Result<Program, Unfit> {
    let target = target.into();
    let (builder, out) = Builder::begin(target, finish);
    let mut scope = Scope::root(builder);
    let answer = body(&mut scope, Layers::untouched(target.hook), out)?;
    scope.into_builder().end(answer)
}

#[cfg(test)]
mod tests;
