//! The environment of an emitted program, and the meaning of its return value.

use crate::program::Hook;

/// The class of a block that no filter recognized.
pub const NONE: u32 = 0;
/// The class that stands for the natural value 0, such as port 0.
pub const ZERO: u32 = u32::MAX - 1;
/// Return value of an exam program that is unsure. As a class this value means "held". Held blocks
/// do not leave their filter, so no answer collides with it.
pub const UNSURE: u32 = u32::MAX;

/// The environment for which a program is emitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// The hook at which the program runs.
    pub hook: Hook,
    /// True if the program must load without CAP_PERFMON, as programs on behalf of users do. It
    /// then uses packet pointers only at constant offsets and copies bytes at computed offsets.
    pub hardened: bool,
    /// True if frames were taken from the host and may be modified. Observed frames are read-only.
    pub takes: bool,
    /// True if every frame is in one buffer: at XDP without multi-buffer support. The frame length
    /// is then a pointer difference and needs no helper.
    pub single: bool,
}

impl From<Hook> for Target {
    /// Returns the target for a loader with CAP_PERFMON.
    fn from(hook: Hook) -> Self {
        Self { hook, hardened: false, takes: false, single: false }
    }
}

impl Target {
    /// Returns the target for a loader without CAP_PERFMON.
    #[must_use]
    pub const fn hardened(hook: Hook) -> Self {
        Self { hook, hardened: true, takes: false, single: false }
    }

    /// Returns the target for frames taken from the host, which may be modified.
    #[must_use]
    pub const fn redirecting(self) -> Self {
        Self { takes: true, ..self }
    }

    /// Returns the target for single-buffer frames.
    #[must_use]
    pub const fn single(self) -> Self {
        Self { single: true, ..self }
    }
}

/// The use of the last answer for the return value of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    /// Return the class, or [`UNSURE`]: for the exam.
    #[default]
    Answer,
    /// Return a verdict.
    Verdict {
        /// If the last filter recognized the frame.
        found: Verdict,
        /// If some filter did not recognize it.
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
