//! The emitter: how a filter says its decision as eBPF.
//!
//! In: twins, functions that take a [`Scope`] and what is known about the frame ([`Layers`]). Out:
//! one [`Program`] for a chain of neighbouring filters. [SL §5.3] runs filters in the kernel by
//! loading modules; here each request gets code of its own.
//!
//! Rules, all kept by the types:
//! - bytes are read only through a [`Window`] (or [`Span`]), which only `need` gives;
//! - a handle is valid in the scope that made it and in the arms inside, nowhere else;
//! - control goes forward and outward, so programs end and every proof dominates its use.
//!
//! A piece leaves in one of three ways: by its [`Answer`]; by the exit that it was given (the
//! filter answers 0), through [`Scope::absent`] if that is to be counted; or by [`Scope::unsure`],
//! when it cannot tell: then the block goes to the filter's user implementation. It never guesses.
//! What cannot be expressed is [`Unfit`], before anything is loaded.
//!
//! ```
//! use ebpf::emit::{self, Answer, Cmp, Emit, Exit, Finish, Layers, Scope, Unfit, be16, byte};
//! use ebpf::{Place, Word};
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
//! let program = emit::program(Place::Xdp, Finish::Answer, |s, on, out| {
//!     let twin = ETH.kernel.ok_or_else(|| Unfit::new("no twin"))?;
//!     s.piece(Word::new(ETH.name, 0, 3), twin, &Args, on, out)
//! })?;
//! assert_eq!(program.reach, 14);
//! # Ok::<(), Unfit>(())
//! ```
//!
//! Four misuses do not compile. Loading from a place that nobody has checked:
//! ```compile_fail,E0308
//! # use ebpf::emit::*;
//! fn twin<'s>(_: &(), s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>)
//!     -> Result<Answer<'s>, Unfit>
//! {
//!     let kind = s.load(on.at, be16::<12>());
//!     Ok(Answer::new(kind, on))
//! }
//! ```
//! Loading past the bytes that were checked:
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
//! # ebpf::emit::program(ebpf::Place::Tc, Finish::Answer, |s, on, out| emit(&(), s, on, out)).ok();
//! ```
//! Keeping a proof longer than the arm that checked:
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
//! Making up a proof:
//! ```compile_fail,E0451
//! # use ebpf::emit::*;
//! fn proof<'s>(s: &Scope<'s, '_>) -> Window<'s, 14> {
//!     Window { bytes: panic!() }
//! }
//! ```

mod build;
mod classic;
mod edit;
mod ending;
mod handle;
mod link;
mod lower;
mod maps;
mod moved;
pub mod own;
mod scope;
mod sip;
mod state;
pub mod take;
pub mod tap;

use std::borrow::Cow;
use std::fmt;

use crate::program::{Place, Program};
use build::Builder;

pub use edit::{Checksum, Kept};
pub use handle::{
    Answer, At, AtVar, Exit, Field, Layers, Num, Span, Spot, Transport, Value, Var, Width, Window,
    be16, be32, byte,
};
pub use scope::{Cmp, Meta, Scope};
pub use sip::Sip;
pub use state::{State, Wide, WideVar};

/// The class of a block that no filter has recognised.
pub const NONE: u32 = 0;
/// The class that stands for a natural value 0: port 0, protocol 0.
pub const ZERO: u32 = u32::MAX - 1;
/// What an exam program returns when it cannot tell. As a class this value means held, and held
/// blocks do not travel, so no answer is ever taken for it.
pub const UNSURE: u32 = u32::MAX;

/// A twin: the function that a filter's description points to. `A` is whatever the filter's
/// arguments are. A plain `fn` with these parameters and elided or named lifetimes coerces to it.
pub type Emit<A> =
    for<'s, 'o> fn(&A, &mut Scope<'s, 'o>, Layers<'s>, Exit<'s>) -> Result<Answer<'s>, Unfit>;

/// What a program is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where it runs.
    pub place: Place,
    /// Whether it must load without CAP_PERFMON, as programs for users do: then it points at
    /// constant offsets only and copies what lies behind computed ones.
    pub hardened: bool,
    /// Whether the frames are its own to change, because they were taken from the host; what is
    /// only observed stays as it is.
    pub takes: bool,
    /// Whether every frame lies in one buffer: at XDP, because the program is loaded such that it
    /// gets no others. Then nobody needs to be asked how long it is.
    pub single: bool,
}

impl From<Place> for Target {
    /// For whoever has CAP_PERFMON.
    fn from(place: Place) -> Self {
        Self { place, hardened: false, takes: false, single: false }
    }
}

impl Target {
    /// For programs that are loaded without CAP_PERFMON.
    #[must_use]
    pub const fn hardened(place: Place) -> Self {
        Self { place, hardened: true, takes: false, single: false }
    }

    /// The same for frames that were taken from the host, and may be changed.
    #[must_use]
    pub const fn taking(self) -> Self {
        Self { takes: true, ..self }
    }

    /// The same for frames that lie in one buffer each.
    #[must_use]
    pub const fn single(self) -> Self {
        Self { single: true, ..self }
    }
}

/// What becomes of the last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The class is the return value, [`UNSURE`] if there is none: for the exam.
    Answer,
    /// The frame is passed or dropped.
    Verdict {
        /// If the last filter recognised it.
        found: Verdict,
        /// If one of them did not.
        none: Verdict,
        /// If one of them could not tell.
        unsure: Verdict,
    },
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on as if the program were not there.
    Pass,
    /// It ends here.
    Drop,
}

impl Verdict {
    /// The return value that says so at this place.
    pub const fn value(self, place: Place) -> i32 {
        match (self, place) {
            (Self::Pass, Place::Tc) => -1,
            (Self::Pass, Place::Xdp) => 2,
            (Self::Pass, Place::Socket) => -1,
            (Self::Pass, Place::Cgroup) => 1,
            (Self::Drop, Place::Tc) => 2,
            (Self::Drop, Place::Xdp) => 1,
            (Self::Drop, Place::Socket | Place::Cgroup) => 0,
        }
    }
}

/// What an exam program answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The class that the last filter gave, [`NONE`] if one of them did not recognise the block.
    Class(u32),
    /// The user implementation must look.
    Unsure,
}

impl Outcome {
    /// Reads the return value of a program that was finished with [`Finish::Answer`].
    pub const fn of(value: u32) -> Self {
        if value == UNSURE { Self::Unsure } else { Self::Class(value) }
    }
}

/// Why a filter, with these arguments, cannot run in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// In words, for `explain`.
    pub why: Cow<'static, str>,
}

impl Unfit {
    /// Unfit, because of this.
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

/// Makes one program of what `body` emits. `body` is given the layers of an untouched frame and the
/// exit for blocks that are not recognised.
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
    let answer = body(&mut scope, Layers::untouched(target.place), out)?;
    scope.into_builder().end(answer)
}

#[cfg(test)]
mod tests;
