//! The machine as a value: its resources and its cost table.

use super::costs::Costs;
use super::processors::Processors;

/// The properties of a machine on which planning depends.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// The number of processors of the machine.
    pub processors: usize,
    /// The processors on which a path may run, and which of them share a cache with the one on
    /// which the path starts.
    pub path_processors: Processors,
    /// The size of the first-level data cache in bytes.
    pub l1d: usize,
    /// The size of the second-level cache in bytes.
    pub l2: usize,
    /// The kernel, and whether it can load eBPF programs.
    pub kernel: Kernel,
    /// The costs of operations and filters on the machine.
    pub costs: Costs,
}

/// A kernel's ability to load eBPF programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kernel {
    /// The kernel permits Streamline to load eBPF programs.
    Open {
        /// The release of the kernel, as `uname -r` prints it.
        release: String,
        /// True if programs must load without CAP_PERFMON (CONTRACT 25).
        hardened: bool,
    },
    /// The kernel permits no eBPF program to be loaded.
    Closed {
        /// The release of the kernel, as `uname -r` prints it.
        release: String,
        /// An explanation of why programs cannot be loaded.
        why: String,
    },
}

impl Kernel {
    /// Returns true if eBPF programs can be loaded.
    #[must_use]
    pub const fn can_load_programs(&self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

impl Machine {
    /// Returns a machine for tests and examples, with two processors and a kernel that can load
    /// programs.
    #[must_use]
    pub fn example_with_kernel() -> Self {
        let kernel = Kernel::Open { release: "6.18".to_owned(), hardened: false };
        Self { kernel, ..Self::example() }
    }

    /// Returns a machine for tests and examples, with two processors and a kernel that cannot load
    /// programs.
    #[must_use]
    pub fn example() -> Self {
        Self {
            processors: 2,
            path_processors: Processors::with_shared_cache(2),
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
