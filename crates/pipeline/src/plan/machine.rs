//! The machine as a value: what it has, and what things cost on it.

use super::Costs;

/// The machine as a planner needs it.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Number of processors.
    pub processors: usize,
    /// Bytes of the first-level data cache of a processor.
    pub l1d: usize,
    /// Bytes of its second-level cache.
    pub l2: usize,
    /// The abilities of its kernel, or the reason why there are none.
    pub kernel: Kernel,
    /// The table of costs.
    pub costs: Costs,
}

/// The abilities of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kernel {
    /// Programs can be loaded.
    Open {
        /// Its release.
        release: String,
        /// True if programs must load without CAP_PERFMON (CONTRACT 25).
        hardened: bool,
    },
    /// Nothing can be loaded, and why.
    Closed {
        /// Its release.
        release: String,
        /// The reason.
        why: String,
    },
}

impl Kernel {
    /// Returns true if the kernel takes programs.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

impl Machine {
    /// A machine for tests and examples: two processors, a kernel that takes programs.
    #[must_use]
    pub fn with_kernel() -> Self {
        let kernel = Kernel::Open { release: "6.18".to_owned(), hardened: false };
        Self { kernel, ..Self::example() }
    }

    /// A machine for tests and examples: two processors, no kernel space.
    #[must_use]
    pub fn example() -> Self {
        Self {
            processors: 2,
            l1d: 48 << 10,
            l2: 1 << 20,
            kernel: Kernel::Closed {
                release: "6.18".to_owned(),
                why: "this machine is an example".to_owned(),
            },
            costs: Costs::default(),
        }
    }
}
