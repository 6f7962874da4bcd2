//! Tables of the rules of the workspace: allowed dependencies, files with unsafe code, layers, and
//! exceptions.
//!
//! `ARCHITECTURE.md` explains the rules. A change to a table is a decision, recorded on a page in
//! `docs/book/decisions/`.

/// Set of crates that a crate may depend on.
#[derive(Clone, Copy, Debug)]
pub(super) enum AllowedDependencies {
    /// The crate may depend on these crates and on no others.
    Only(&'static [&'static str]),
    /// The crate, which is not part of the product, may depend on any crate.
    Any,
}

/// Set of files in a crate that may contain `unsafe`.
#[derive(Clone, Copy, Debug)]
pub(super) enum UnsafePolicy {
    /// No file may contain unsafe code; every crate root has `#![forbid(unsafe_code)]`.
    Forbid,
    /// Only these files under `src` may contain unsafe code; the crate root has
    /// `#![deny(unsafe_code)]`.
    Files(&'static [&'static str]),
    /// Any file may contain unsafe code.
    Anywhere,
}

/// A crate of the workspace, with the rules that apply to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkspaceCrate {
    /// Name of the crate's directory.
    pub(super) name: &'static str,
    /// Layer of the crate: 0 for foundations, 1 and 2 for the data plane, 3 for the engine, 4 for
    /// entry points (commands and libraries), 5 outside the product.
    pub(super) layer: u8,
    pub(super) allowed: AllowedDependencies,
    pub(super) unsafe_code: UnsafePolicy,
}

/// Layer of the entry points. A crate of the product may depend on an entry point only if the
/// crate's row in [`WORKSPACE_CRATES`] names the entry point.
pub(super) const ENTRY_POINT_LAYER: u8 = 4;
/// Layer of the crates that are not part of the product.
pub(super) const OUTSIDE_PRODUCT_LAYER: u8 = 5;

/// All crates of the workspace, from the lowest layer up.
pub(super) const WORKSPACE_CRATES: &[WorkspaceCrate] = &[
    product_crate("abi", 0, &[]),
    WorkspaceCrate { unsafe_code: UnsafePolicy::Anywhere, ..product_crate("sys", 0, &[]) },
    product_crate("wire", 0, &[]),
    product_crate("ebpf", 0, &[]),
    WorkspaceCrate {
        unsafe_code: UnsafePolicy::Files(&[
            "biased_lock.rs",
            "biased_lock/",
            "region.rs",
            "region/",
            "pool.rs",
            "pool/",
            "dbuf.rs",
            "dbuf/",
            "ibuf.rs",
            "ibuf/",
            "crossing.rs",
            "crossing/",
            "foreign_memory.rs",
            "foreign_memory/",
            // The loom models access the cells that detect concurrent accesses.
            "cursor/models.rs",
            "byte_ring/models.rs",
            "slots/models.rs",
            "join/models.rs",
        ]),
        ..product_crate("buffer", 1, &["abi", "sys"])
    },
    WorkspaceCrate {
        // These files read memory of other processes in place.
        unsafe_code: UnsafePolicy::Files(&["view.rs", "indirect/input.rs"]),
        ..product_crate("iolite", 1, &["buffer", "sys", "abi"])
    },
    product_crate("filter", 1, &["abi", "wire", "ebpf"]),
    product_crate("endpoint", 2, &["filter", "buffer", "sys", "wire", "abi"]),
    // `runtime` runs a built graph. It does not depend on plans, kernel programs, records or the
    // daemon.
    product_crate("runtime", 2, &["endpoint", "filter", "buffer", "sys", "abi"]),
    product_crate("pipeline", 2, &["filter"]),
    product_crate(
        "engine",
        3,
        &["runtime", "pipeline", "endpoint", "filter", "buffer", "wire", "ebpf", "sys", "abi"],
    ),
    // `member` registers a path on this machine. It is above the engine and below the library.
    product_crate("member", 3, &["engine", "runtime", "pipeline", "sys", "abi"]),
    product_crate("daemon", 3, &["member", "engine", "pipeline", "buffer", "sys", "abi"]),
    // The library, which the entry points use. Closures of its callers become filters, sources
    // and sinks.
    product_crate(
        "streamline",
        3,
        &["member", "engine", "runtime", "pipeline", "endpoint", "filter", "sys", "abi"],
    ),
    product_crate("pipesfs", ENTRY_POINT_LAYER, &["streamline", "sys"]),
    // A separate program, the only one with an async runtime.
    product_crate("page", ENTRY_POINT_LAYER, &["streamline", "sys"]),
    // A library inside other programs. It contains buffers and their names, but not the engine.
    WorkspaceCrate {
        unsafe_code: UnsafePolicy::Files(&["export.rs", "export/"]),
        ..product_crate("sockets", ENTRY_POINT_LAYER, &["iolite", "buffer", "sys", "abi"])
    },
    // A library inside other programs that reads live captures itself.
    WorkspaceCrate {
        unsafe_code: UnsafePolicy::Files(&["export.rs", "export/"]),
        ..product_crate("pcap", ENTRY_POINT_LAYER, &["streamline", "ebpf", "wire", "sys"])
    },
    // A library inside other programs that receives datagrams itself.
    WorkspaceCrate {
        unsafe_code: UnsafePolicy::Files(&["export.rs", "export/"]),
        ..product_crate("udp", ENTRY_POINT_LAYER, &["streamline", "sys"])
    },
    WorkspaceCrate {
        unsafe_code: UnsafePolicy::Files(&["export.rs"]),
        ..product_crate(
            "capi",
            ENTRY_POINT_LAYER,
            &["streamline", "engine", "iolite", "buffer", "sys", "abi"],
        )
    },
    product_crate("web", ENTRY_POINT_LAYER, &["engine", "buffer", "wire"]),
    // `cli` starts programs whose pipes become streams: `sys` starts them, and `abi` encodes the
    // description of their edges.
    product_crate(
        "cli",
        ENTRY_POINT_LAYER,
        &[
            "streamline",
            "daemon",
            "member",
            "engine",
            "runtime",
            "pipeline",
            "pipesfs",
            "web",
            "sys",
            "abi",
        ],
    ),
    product_crate("testkit", OUTSIDE_PRODUCT_LAYER, &["wire", "abi", "sys"]),
    WorkspaceCrate {
        allowed: AllowedDependencies::Any,
        ..product_crate("tests", OUTSIDE_PRODUCT_LAYER, &[])
    },
    WorkspaceCrate {
        allowed: AllowedDependencies::Any,
        ..product_crate("bench", OUTSIDE_PRODUCT_LAYER, &[])
    },
    product_crate("bench-loops", OUTSIDE_PRODUCT_LAYER, &[]),
    WorkspaceCrate {
        allowed: AllowedDependencies::Any,
        ..product_crate("fuzz", OUTSIDE_PRODUCT_LAYER, &[])
    },
    product_crate("xtask", OUTSIDE_PRODUCT_LAYER, &[]),
];

/// Layers inside a crate, from the lowest up. The files of a layer may use each other and files of
/// lower layers. If several paths in the table contain a file, the longest path determines its
/// layer.
pub(super) const MODULE_LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "engine",
        &[
            // Everything that a request may name, and the basis of all other layers.
            &["registry", "compiler", "machine_names", "keys", "published", "signal"],
            &["error", "description", "pools", "numbering"],
            // Spaces other than the threads of this process, and records of a run.
            &["kernel", "record", "sandbox"],
            &["why", "latency_breach", "crash_capture"],
            // The state of a path: its construction, its running parts, and access to them.
            &["path", "live", "live_events", "tap", "spaces", "writers"],
            &["build"],
            &["change"],
            &["adapt"],
            &["run"],
            &["aggregate", "digest", "calibrate"],
            &["machine", "doctor"],
        ],
    ),
    (
        "buffer",
        &[
            // Memory, rings and signals: what paths run on.
            &[
                "atomic",
                "biased_lock",
                "byte_ring",
                "compression",
                "region",
                "pages",
                "foreign_memory",
                "fault",
                "ids",
                "ledger",
                "rate",
                "trust",
                "wait",
                "signal",
                "doorbells",
                "join",
                "slots",
                "cursor",
                "pool",
                "ibuf",
                "crossing",
                "dbuf",
                "share",
                "scale",
            ],
            &["stream", "name", "state"],
        ],
    ),
    (
        "cli",
        &[
            &[
                "status",
                "terminal",
                "arguments",
                "request_words",
                "foreign_syntax",
                "monitor/condition",
            ],
            &[
                "request",
                "report_target",
                "progress",
                "drawings",
                "filters",
                "failure",
                "screen",
                "separate_program",
            ],
            &[
                "run",
                "record",
                "view",
                "path_commands",
                "shell",
                "monitor",
                "cat",
                "mount",
                "shared_prefix",
            ],
            &[
                "check",
                "explain",
                "why",
                "doctor",
                "schema",
                "examples",
                "completion",
                "man",
                "main",
            ],
        ],
    ),
];

/// Pairs of types with the same name that may exist in one crate: crate, name, reason.
pub(super) const ALLOWED_SAME_NAME_TYPES: &[(&str, &str, &str)] = &[];

const fn product_crate(
    name: &'static str,
    layer: u8,
    to: &'static [&'static str],
) -> WorkspaceCrate {
    WorkspaceCrate {
        name,
        layer,
        allowed: AllowedDependencies::Only(to),
        unsafe_code: UnsafePolicy::Forbid,
    }
}

/// Returns the crate in the directory with this name, or `None` if the table has no such crate.
pub(super) fn find_crate(name: &str) -> Option<&'static WorkspaceCrate> {
    WORKSPACE_CRATES.iter().find(|krate| krate.name == name)
}

/// Prefix of package names in the workspace.
pub(super) const PACKAGE_PREFIX: &str = "streamline-";
/// Packages whose names do not begin with [`PACKAGE_PREFIX`]: `xtask`, for which `cargo xtask` is
/// an alias, and the library.
pub(super) const UNPREFIXED_PACKAGES: &[&str] = &["xtask", "streamline"];

/// Crates that may depend on the package `libc`.
pub(super) const LIBC_CRATES: &[&str] = &["sys", "testkit", "bench"];

/// Crates that do no I/O and read no clock. Their callers pass in time and bytes.
pub(super) const NO_IO_CRATES: &[&str] = &["abi", "wire", "ebpf", "filter", "pipeline"];

/// Modules of std that perform I/O or access the environment.
pub(super) const IO_MODULES: &[&str] = &["fs", "os", "process", "thread", "env"];

/// Names other than [`IO_MODULES`] that perform I/O or read a clock. (Addresses of `std::net` are
/// plain data.)
pub(super) const IO_NAMES: &[&str] = &[
    "Instant",
    "SystemTime",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "stdin",
    "stdout",
    "stderr",
    "println",
    "eprintln",
    "rustix",
];

/// Files that may put a thread to sleep for a fixed time, each with the reason why the thread
/// cannot wait for a condition.
pub(super) const SLEEP_EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/cli/tests/udp_door/sleeping_servers.rs", "the rate of the datagrams is the subject"),
    ("crates/page/src/collector.rs", "a daemon that is yet to start has nothing to wait for"),
    (
        "crates/member/src/client/ended_paths.rs",
        "waits for a path that may go, without a connection",
    ),
    (
        "crates/cli/tests/prefix/prefix_processes.rs",
        "counts how often idle processes wake in a second",
    ),
    (
        "crates/endpoint/src/sink/tx/mod.rs",
        "a device's queue that is full tells nobody when it has room again",
    ),
    (
        "crates/endpoint/src/source/rx/take/device.rs",
        "a queue of who has ended is free a little later, and the kernel tells nobody",
    ),
    (
        "crates/endpoint/src/sink/tx/ring.rs",
        "waiting for a socket of AF_XDP makes the kernel send, and nobody hears what it refused",
    ),
    ("bench/src/moderation/mod.rs", "what a parked reader uses is measured over a stretch of time"),
    (
        "crates/engine/tests/record/common.rs",
        "timers of a path fall due between frames that come with gaps in time",
    ),
    ("crates/buffer/tests/soak.rs", "who is killed anywhere is killed after a random time"),
];

/// Exceptions to the rules of [`super::flaky_tests`]: the files that may compare times, wait for
/// less than [`TEST_TIMEOUT_SECONDS_MIN`], or count the resources of a process, each with the
/// reason.
pub(super) const TIME_EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/testkit/src/wait.rs", "gives up when the limit is over, for all others"),
    ("crates/buffer/tests/common/watchdog.rs", "gives up when the limit is over, for many threads"),
    ("crates/buffer/tests/common/other_process.rs", "the same where a signal may end a wait early"),
    (
        "crates/cli/tests/prefix/prefix_processes.rs",
        "counts how often idle processes wake in a second",
    ),
    ("crates/iolite/src/merge/tests.rs", "what is waited out is the patience of what is tested"),
];

/// Minimum number of seconds that a test must wait before it gives up.
pub(super) const TEST_TIMEOUT_SECONDS_MIN: u64 = 20;

/// Maximum width of a line of Rust in columns.
pub(super) const COLUMNS_MAX: usize = 100;
/// Maximum number of lines in a Rust file.
pub(super) const FILE_LINES_MAX: usize = 800;
/// Number of lines, without tests, above which a file counts as long. A ceiling limits the number
/// of long files.
pub(super) const LONG_FILE_LINES: usize = 400;
/// Number of lines above which a function counts as long. A ceiling limits the number of long
/// functions.
pub(super) const LONG_FUNCTION_LINES: usize = 70;
/// Maximum size of a binary file in bytes.
pub(super) const BINARY_SIZE_MAX: usize = 100_000;

/// Words that mark unfinished work, written in two halves so that this file does not contain them.
pub(super) const UNFINISHED_MARKERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
];

/// Prefixes of paths on developers' machines, which no file may contain.
pub(super) const LOCAL_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/tmp/", "brief")];
