//! The workspace as data: allowed dependencies, places of unsafe code, layers, and exceptions.
//!
//! What these tables say is argued in `ARCHITECTURE.md`. A change here is a decision: it comes with
//! a page in `docs/book/decisions/`.

/// The crates that a crate may depend on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arrows {
    /// Exactly these rooms.
    To(&'static [&'static str]),
    /// Any room: code that is not part of the product.
    Free,
}

/// The files of a crate that may say `unsafe`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fence {
    /// Nowhere: every root says `#![forbid(unsafe_code)]`.
    Forbid,
    /// In these files under `src`: the root says `#![deny(unsafe_code)]`.
    Files(&'static [&'static str]),
    /// Everywhere in the crate.
    Open,
}

/// A crate of the workspace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// The name inside the workspace: that of its folder.
    pub(super) name: &'static str,
    /// 0 ground, 1 and 2 data plane, 3 engine, 4 doors, 5 beside.
    pub(super) layer: u8,
    pub(super) arrows: Arrows,
    pub(super) fence: Fence,
}

/// The layer of the doors: nothing below them knows them.
pub(super) const DOORS: u8 = 4;
/// The layer of what is not part of the product.
pub(super) const BESIDE: u8 = 5;

/// All rooms, from the ground up.
pub(super) const ROOMS: &[Room] = &[
    room("abi", 0, &[]),
    Room { fence: Fence::Open, ..room("sys", 0, &[]) },
    room("wire", 0, &[]),
    room("ebpf", 0, &[]),
    Room {
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
    Room {
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
        &["runtime", "pipeline", "endpoint", "filter", "buffer", "ebpf", "sys", "abi"],
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
    room("pipesfs", DOORS, &["engine", "sys"]),
    // A library inside other programs: it carries buffers and what finds them, not the engine.
    Room {
        fence: Fence::Files(&["export.rs", "export/"]),
        ..room("sockets", DOORS, &["iolite", "buffer", "sys", "abi"])
    },
    Room { fence: Fence::Files(&["export.rs"]), ..room("pcap", DOORS, &["engine", "wire"]) },
    Room {
        fence: Fence::Files(&["export.rs"]),
        ..room("capi", DOORS, &["streamline", "engine", "iolite", "buffer", "sys", "abi"])
    },
    room("web", DOORS, &["engine", "buffer", "wire"]),
    // It starts programs whose edges become streams: `sys` starts them, `abi` tells them.
    room(
        "cli",
        DOORS,
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
    room("testkit", BESIDE, &["wire", "abi", "sys"]),
    Room { arrows: Arrows::Free, ..room("tests", BESIDE, &[]) },
    Room { arrows: Arrows::Free, ..room("bench", BESIDE, &[]) },
    room("bench-loops", BESIDE, &[]),
    Room { arrows: Arrows::Free, ..room("fuzz", BESIDE, &[]) },
    room("xtask", BESIDE, &[]),
];

/// The layers inside a crate, from below: rooms of one layer may reach each other and those below.
/// A file is in the room with the longest path that it lies in.
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

/// Two types of one name in one crate that are agreed: crate, name, reason.
pub(super) const DOUBLES: &[(&str, &str, &str)] = &[];

const fn room(name: &'static str, layer: u8, to: &'static [&'static str]) -> Room {
    Room { name, layer, arrows: Arrows::To(to), fence: Fence::Forbid }
}

/// The room with this name.
pub(super) fn named(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

/// The prefix of package names outside the workspace.
pub(super) const PREFIX: &str = "streamline-";
/// The packages without the prefix: `cargo xtask` is an alias for one; the other is the library.
pub(super) const UNPREFIXED: &[&str] = &["xtask", "streamline"];

/// The crates that may call the C library.
pub(super) const FOREIGN: &[&str] = &["sys", "testkit", "bench"];

/// The rooms that do no I/O and read no clock: time and bytes are handed in.
pub(super) const SILENT: &[&str] = &["abi", "wire", "ebpf", "filter", "pipeline"];

/// The modules of the standard library by which the world comes in.
pub(super) const WORLD: &[&str] = &["fs", "os", "process", "thread", "env"];

/// Other words by which it does. (Addresses of `std::net` are data.)
pub(super) const WORLD_WORDS: &[&str] = &[
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

/// The files that may put a thread to sleep for a time, and the reason why they cannot wait for a
/// condition.
pub(super) const SLEEPS: &[(&str, &str)] = &[
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

/// Exceptions from the rule of chance: the files that may compare times, wait for less than
/// [`LIMIT_LEAST`], or count what a process has; with the reason.
pub(super) const TIMES: &[(&str, &str)] = &[
    ("crates/testkit/src/wait.rs", "gives up when the limit is over, for all others"),
    ("crates/buffer/tests/common/patience.rs", "gives up when the limit is over, for many threads"),
    ("crates/buffer/tests/common/other.rs", "the same where a signal may end a wait early"),
    ("crates/iolite/src/merge/tests.rs", "what is waited out is the patience of what is tested"),
];

/// The seconds that a test waits at least before it gives up.
pub(super) const LIMIT_LEAST: u64 = 20;

/// Most columns of a line of Rust.
pub(super) const COLUMNS: usize = 100;
/// Most lines of a file.
pub(super) const LINES: usize = 800;
/// Lines without tests beyond which a file counts against its ceiling.
pub(super) const LINES_LONG: usize = 400;
/// Lines beyond which a function counts against its ceiling.
pub(super) const FUNCTION_LONG: usize = 70;
/// Most bytes of a file that is not text.
pub(super) const BINARY: usize = 100_000;

/// Words for work left undone. In two halves, so that this file does not hold them itself.
pub(super) const UNDONE: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
];

/// Paths of a developer's machine.
pub(super) const WORKPLACES: &[&str] = &[concat!("/wo", "rk/"), concat!("/tmp/", "brief")];
