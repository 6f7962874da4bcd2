//! The environment of an emitted program, and the meaning of its return value.

use crate::program::Hook;

/// The class of a block that some filter did not recognize.
pub const NO_ANSWER_CLASS: u32 = 0;
/// The class that represents the natural value 0, such as port 0.
pub const NATURAL_ZERO_CLASS: u32 = u32::MAX - 1;
/// Return value with which a tested program ([`ReturnConversion::Answer`]) leaves the block to the
/// user implementation. No answer has this value: as a class it means "held", and held blocks do
/// not leave their filter.
pub const UNSURE_RETURN_VALUE: u32 = u32::MAX;

/// The environment for which a program is emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The hook at which the program runs.
    pub hook: Hook,
    /// True if the program must satisfy the verifier's rules for a loader without CAP_PERFMON,
    /// which also apply to programs that a daemon loads for its users. Such a program accesses the
    /// frame through packet pointers at constant offsets only, and reads bytes at computed offsets
    /// from a copy that a helper makes on the stack.
    pub hardened: bool,
    /// True if the program withholds frames from the host and may modify them. Observed frames are
    /// read-only.
    pub redirects: bool,
    /// True if every frame is in one buffer, as at XDP without multi-buffer support. The frame
    /// length is then the difference of the two packet pointers; otherwise a helper returns it.
    pub single_buffer: bool,
}

impl From<Hook> for Target {
    /// Returns the target for a loader with CAP_PERFMON at this hook.
    fn from(hook: Hook) -> Self {
        Self { hook, hardened: false, redirects: false, single_buffer: false }
    }
}

impl Target {
    /// Returns the target for a loader without CAP_PERFMON at this hook.
    #[must_use]
    pub const fn without_perfmon(hook: Hook) -> Self {
        Self { hook, hardened: true, redirects: false, single_buffer: false }
    }

    /// Returns this target, changed for frames that are withheld from the host and may be modified.
    #[must_use]
    pub const fn redirecting(self) -> Self {
        Self { redirects: true, ..self }
    }

    /// Returns this target, changed for frames that are each in one buffer.
    #[must_use]
    pub const fn with_single_buffer(self) -> Self {
        Self { single_buffer: true, ..self }
    }
}

/// The conversion of the last answer to a program's return value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReturnConversion {
    /// The program returns the class or [`UNSURE_RETURN_VALUE`]. Used to test twins in
    /// [`crate::exam`].
    #[default]
    Answer,
    /// The program returns a verdict on the frame, which depends on the answer.
    Verdict {
        /// Verdict if the last filter recognized the frame.
        found: Verdict,
        /// Verdict if some filter did not recognize the frame.
        none: Verdict,
        /// Verdict if some filter could not decide.
        unsure: Verdict,
    },
}

/// A program's decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame continues as if there were no program.
    Pass,
    /// The frame is dropped.
    Drop,
}

impl Verdict {
    /// Returns the value that a program at this hook returns for this verdict.
    pub const fn return_value(self, hook: Hook) -> i32 {
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

/// The decoded return value of a program that was finished with [`ReturnConversion::Answer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The class assigned by the last filter; [`NO_ANSWER_CLASS`] if some filter did not recognize
    /// the block.
    Class(u32),
    /// The program could not decide, so the user implementation must decide.
    Unsure,
}

impl Outcome {
    /// Decodes the return value of a program that was finished with [`ReturnConversion::Answer`].
    pub const fn decode(value: u32) -> Self {
        if value == UNSURE_RETURN_VALUE { Self::Unsure } else { Self::Class(value) }
    }
}
