//! The rules of the workspace as tables: allowed dependencies, files with unsafe code, layers, and
//! exceptions.
//!
//! `ARCHITECTURE.md` gives the reasons. A change of a table is a decision, recorded on a page in
//! `docs/book/decisions/`.

/// The crates that a crate may depend on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrows {
    /// Exactly these crates.
    To(&'static [&'static str]),
    /// Any crate: the crate is not part of the product.
    Free,
}

/// The files of a crate that may contain `unsafe`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fence {
    /// None: every root has `#![forbid(unsafe_code)]`.
    Forbid,
    /// These files under `src`; the root has `#![deny(unsafe_code)]`.
    Files(&'static [&'static str]),
    /// All files.
    Open,
}

/// A crate of the workspace.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkspaceCrate {
    /// The name inside the workspace: that of its directory.
    pub(super) name: &'static str,
    /// 0 foundation, 1 and 2 data plane, 3 engine, 4 entry points (commands and libraries), 5
    /// outside the product.
    pub(super) layer: u8,
    pub(super) arrows: Arrows,
    pub(super) fence: Fence,
}

/// The layer of the entry points; no crate below depends on one.
pub(super) const ENTRY_POINTS: u8 = 4;
/// The layer of the crates that are not part of the product.
pub(super) const OUTSIDE_PRODUCT: u8 = 5;

/// All crates, from the lowest layer up.
pub(super) const CRATES: &[WorkspaceCrate] = &[
    room("abi", 0, &[]),
    WorkspaceCrate { fence: Fence::Open, ..room("sys", 0, &[]) },
    room("wire", 0, &[]),
    room("ebpf", 0, &[]),
    WorkspaceCrate {
        fence: Fence::Files(&[
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
            "foreign.rs",
            "foreign/",
            // Loom models: a cell that says who looks, and when.
            "cursor/models.rs",
            "slots/models.rs",
            "join/models.rs",
        ]),
        ..room("buffer", 1, &["abi", "sys"])
    },
    WorkspaceCrate {
        // Memory of others that is looked at in place.
        fence: Fence::Files(&["view.rs", "indirect/input.rs"]),
        ..room("iolite", 1, &["buffer", "sys", "abi"])
    },
    room("filter", 1, &["abi", "wire", "ebpf"]),
    room("endpoint", 2, &["filter", "buffer", "sys", "wire", "abi"]),
    // It runs a built graph, and knows no plan, kernel, record or daemon.
    room("runtime", 2, &["endpoint", "filter", "buffer", "sys", "abi"]),
    room("pipeline", 2, &["filter"]),
    room(
        "engine",
        3,
        &["runtime", "pipeline", "endpoint", "filter", "buffer", "wire", "ebpf", "sys", "abi"],
    ),
    // Membership of a path in this machine: above the engine, below the library.
    room("member", 3, &["engine", "runtime", "pipeline", "sys", "abi"]),
    room("daemon", 3, &["member", "engine", "pipeline", "buffer", "sys", "abi"]),
    // The library: what every door uses. Its closures become filters, sources and sinks.
    room(
        "streamline",
        3,
        &["member", "engine", "runtime", "pipeline", "endpoint", "filter", "sys", "abi"],
    ),
    room("pipesfs", ENTRY_POINTS, &["engine", "sys"]),
    // A library inside other programs: it carries buffers and what finds them, not the engine.
    WorkspaceCrate {
        fence: Fence::Files(&["export.rs", "export/"]),
        ..room("sockets", ENTRY_POINTS, &["iolite", "buffer", "sys", "abi"])
    },
    WorkspaceCrate {
        fence: Fence::Files(&["export.rs"]),
        ..room("pcap", ENTRY_POINTS, &["engine", "wire"])
    },
    WorkspaceCrate {
        fence: Fence::Files(&["export.rs"]),
        ..room("capi", ENTRY_POINTS, &["streamline", "engine", "iolite", "buffer", "sys", "abi"])
    },
    room("web", ENTRY_POINTS, &["engine", "buffer", "wire"]),
    // It starts programs whose edges become streams: `sys` starts them, `abi` tells them.
    room(
        "cli",
        ENTRY_POINTS,
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
    room("testkit", OUTSIDE_PRODUCT, &["wire", "abi", "sys"]),
    WorkspaceCrate { arrows: Arrows::Free, ..room("tests", OUTSIDE_PRODUCT, &[]) },
    WorkspaceCrate { arrows: Arrows::Free, ..room("bench", OUTSIDE_PRODUCT, &[]) },
    room("bench-loops", OUTSIDE_PRODUCT, &[]),
    WorkspaceCrate { arrows: Arrows::Free, ..room("fuzz", OUTSIDE_PRODUCT, &[]) },
    room("xtask", OUTSIDE_PRODUCT, &[]),
];

/// The layers inside a crate, from the lowest up: files of one layer may use each other and lower
/// layers. A file belongs to the layer with the longest path that contains the file.
pub(super) const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "engine",
        &[
            // All that a request may name, and what all parts of control build with.
            &["catalogue", "compiler", "names", "keys", "seen", "testing", "signal"],
            &["error", "described", "pools", "numbering"],
            // Spaces besides the threads of this process, and what is written of a run.
            &["kernel", "record", "sandbox"],
            &["why", "lateness", "suspect"],
            // A path: what it was built with, what runs of it, how it is reached.
            &["path", "live", "tap", "spaces"],
            &["build"],
            &["change"],
            &["adapt"],
            &["run"],
            &["joint", "digest", "calibrate"],
            &["machine", "doctor"],
        ],
    ),
    (
        "buffer",
        &[
            // Memory, rings and signals: what paths run on.
            &[
                "atomic", "region", "pages", "foreign", "fault", "ledger", "wait", "signal",
                "join", "slots", "cursor", "pool", "ibuf", "crossing", "dbuf", "view", "share",
                "resolve", "pace", "scale",
            ],
            &["stream", "name", "state", "merge", "mpipe", "file"],
            &["aggregate", "indirect", "interface", "splice"],
        ],
    ),
    (
        "cli",
        &[
            &["status", "terminal", "arguments", "arranged", "habits"],
            &["line", "report", "progress", "privilege", "analyze", "filters"],
            &["run", "record", "shared", "engines", "shell"],
            &[
                "check",
                "explain",
                "why",
                "doctor",
                "bench",
                "examples",
                "completion",
                "man",
                "main",
            ],
        ],
    ),
];

/// Allowed pairs of types of one name in one crate: crate, name, reason.
pub(super) const ALLOWED_DOUBLES: &[(&str, &str, &str)] = &[];

const fn room(name: &'static str, layer: u8, to: &'static [&'static str]) -> WorkspaceCrate {
    WorkspaceCrate { name, layer, arrows: Arrows::To(to), fence: Fence::Forbid }
}

/// Returns the crate with this name.
pub(super) fn named(name: &str) -> Option<&'static WorkspaceCrate> {
    CRATES.iter().find(|room| room.name == name)
}

/// The prefix of the package names of the workspace.
pub(super) const PREFIX: &str = "streamline-";
/// The packages without the prefix: `cargo xtask` is an alias for the first, and the second is the
/// library.
pub(super) const UNPREFIXED: &[&str] = &["xtask", "streamline"];

/// The crates that may depend on `libc`.
pub(super) const LIBC_CRATES: &[&str] = &["sys", "testkit", "bench"];

/// The crates that do no I/O and read no clock: callers pass in time and bytes.
pub(super) const NO_IO_CRATES: &[&str] = &["abi", "wire", "ebpf", "filter", "pipeline"];

/// The modules of std that perform I/O or access the environment.
pub(super) const IO_MODULES: &[&str] = &["fs", "os", "process", "thread", "env"];

/// Other names that do. (Addresses of `std::net` are plain data.)
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

/// The files that may put a thread to sleep for a fixed time, and the reason why they cannot wait
/// for a condition.
pub(super) const SLEEP_EXCEPTIONS: &[(&str, &str)] = &[
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

/// Exceptions to the rules of chance: the files that may compare times, wait for less than
/// [`TEST_TIMEOUT_MIN`], or count what a process has; with the reason.
pub(super) const TIME_EXCEPTIONS: &[(&str, &str)] = &[
    ("crates/testkit/src/wait.rs", "gives up when the limit is over, for all others"),
    ("crates/buffer/tests/common/patience.rs", "gives up when the limit is over, for many threads"),
    ("crates/buffer/tests/common/other.rs", "the same where a signal may end a wait early"),
    ("crates/iolite/src/merge/tests.rs", "what is waited out is the patience of what is tested"),
];

/// Minimum number of seconds that a test must wait before it gives up.
pub(super) const TEST_TIMEOUT_MIN: u64 = 20;

/// Maximum columns of a line of Rust.
pub(super) const COLUMNS: usize = 100;
/// Maximum lines of a file.
pub(super) const LINES: usize = 800;
/// Number of lines without tests beyond which a file counts against its ceiling.
pub(super) const LINES_LONG: usize = 400;
/// Number of lines beyond which a function counts against its ceiling.
pub(super) const FUNCTION_LONG: usize = 70;
/// Maximum bytes of a file that is not text.
pub(super) const BINARY: usize = 100_000;

/// Words that mark unfinished work, written in two halves so that this file does not contain them.
pub(super) const UNFINISHED_MARKERS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
];

/// Paths of a developer's machine.
pub(super) const WORKPLACES: &[&str] = &[concat!("/wo", "rk/"), concat!("/tmp/", "brief")];
