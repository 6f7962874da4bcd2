//! The machine as a value: what it has, and what things cost on it.

/// What a planner must know of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// How many processors there are.
    pub processors: usize,
    /// Bytes of the first-level data cache of a processor.
    pub l1d: usize,
    /// Bytes of its second-level cache.
    pub l2: usize,
    /// What its kernel can do for us, or why nothing.
    pub kernel: Kernel,
    /// What things cost.
    pub costs: Costs,
}

/// What the kernel can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kernel {
    /// Programs can be loaded.
    Open {
        /// Its release.
        release: String,
        /// Whether they must load without CAP_PERFMON (CONTRACT 25).
        hardened: bool,
    },
    /// Nothing can be loaded, and why.
    Closed {
        /// Its release.
        release: String,
        /// Why not.
        why: String,
    },
}

impl Kernel {
    /// Whether it takes programs.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

/// What things cost on a machine, in ns. Calibrated values are stored with the machine; these are
/// from BASELINES, measured on two cores of a virtual machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// Which table this is.
    pub origin: String,
    /// Version of the table's form.
    pub version: u32,
    /// Calling a filter, per block of a full batch.
    pub call: f64,
    /// Looking at the head of a block.
    pub head: f64,
    /// Looking at a kilobyte.
    pub kilobyte: f64,
    /// Copying a kilobyte.
    pub copy: f64,
    /// Putting an entry on a ring and taking it off.
    pub ring: f64,
    /// Waking the other side, once per event.
    pub wake: f64,
    /// A frame that a packet socket takes, beside what its ring costs.
    pub socket: f64,
    /// A frame that a program in the kernel is shown.
    pub tap: f64,
    /// A twin, per block.
    pub twin: f64,
    /// A record of a block and a pointer to it, written by a program.
    pub record: f64,
    /// The same record, copied out by a process.
    pub fetch: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            origin: "built in (two virtual cores, November 2026)".to_owned(),
            version: 1,
            call: 1.0,
            head: 2.0,
            kilobyte: 8.0,
            copy: 8.0,
            ring: 10.0,
            wake: 7_000.0,
            socket: 450.0,
            tap: 15.0,
            twin: 3.0,
            record: 60.0,
            fetch: 40.0,
        }
    }
}

impl Costs {
    /// Handing a block to another space: the entry, and its part of an event for 32. [Th §5.2.2]
    #[must_use]
    pub fn crossing(&self) -> f64 {
        self.ring + self.wake / 32.0
    }

    /// Handing a block to a process out of the kernel: the record, its part of a bell that is
    /// limited by time (128 blocks at 250,000 a second), and copying it out.
    #[must_use]
    pub fn leaving(&self) -> f64 {
        self.record + self.fetch + self.copy + self.wake / 128.0
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
