//! Rings of others, beside ours: those in the program of `bench/peers/rings`, if somebody has built
//! it; and those in C and C++ of `bench/peers`, built here where their sources are. A program is
//! told how many blocks to move, and answers how long that took.

use crate::peers::Compiled;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The sides that a ring joins, hence its reference. [goal G3]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Joins {
    Threads,
    Processes,
}

/// A ring of somebody else.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) joins: Joins,
    program: Program,
}

enum Program {
    Found(PathBuf),
    Made(Compiled),
}

impl Peer {
    /// Starts its processes.
    pub(super) fn start(&self, processors: usize, block: usize) -> Result<Ring, String> {
        let program = match &self.program {
            Program::Found(path) => path,
            Program::Made(program) => program.program(),
        };
        Ring::start(program, self.name, processors, block)
    }
}

/// All that can be had here; says which cannot, and why.
pub(super) fn peers() -> Vec<Peer> {
    let mut peers = Vec::new();
    match find() {
        Ok(path) => peers.extend(RINGS.map(|(name, joins)| {
            let program = Program::Found(path.clone());
            Peer { name, joins, program }
        })),
        Err(why) => eprintln!("left out: {}: {why}", RINGS.map(|(name, _)| name).join(", ")),
    }
    for built in BUILT {
        let Built { name, joins, .. } = built;
        match built.make() {
            Ok(program) => peers.push(Peer { name, joins, program: Program::Made(program) }),
            Err(why) => eprintln!("left out: {name}: {why}"),
        }
    }
    peers
}

/// Lists the rings of the program `bench/peers/rings`.
const RINGS: [(&str, Joins); 5] = [
    ("rtrb", Joins::Threads),
    ("ringbuf", Joins::Threads),
    ("iceoryx2", Joins::Processes),
    ("ipmpsc", Joins::Processes),
    ("shmem-ipc", Joins::Processes),
];

/// Returns the path of the program: that in STREAMLINE_RINGS, or next to this one.
fn find() -> Result<PathBuf, String> {
    let named = std::env::var_os("STREAMLINE_RINGS").map(PathBuf::from);
    let beside = || {
        let itself = std::env::current_exe().ok()?;
        Some(itself.with_file_name("streamline-bench-rings"))
    };
    let built = "bench/peers/rings/target/release/streamline-bench-rings";
    let places = [named, beside(), Some(PathBuf::from(built))];
    places.into_iter().flatten().find(|place| place.is_file()).ok_or_else(|| {
        "they are not built: `cargo build --release --manifest-path bench/peers/rings/Cargo.toml` \
         (iceoryx2 needs libclang), or name the program in STREAMLINE_RINGS"
            .to_owned()
    })
}

/// A ring that is built here from sources that somebody has.
struct Built {
    name: &'static str,
    joins: Joins,
    /// Names the folder with its sources, where they are none of the system's.
    folder: Option<&'static str>,
    /// The words for the compiler; `@` is that folder.
    words: &'static [&'static str],
    source: Source,
}

enum Source {
    C(&'static str),
    Cpp(&'static str),
}

const THREADS: Source = Source::Cpp(include_str!("../../peers/threads.cpp"));

const BUILT: [Built; 4] = [
    Built {
        name: "boost",
        joins: Joins::Threads,
        folder: None,
        words: &["-DBOOST"],
        source: THREADS,
    },
    Built {
        name: "rigtorp",
        joins: Joins::Threads,
        folder: Some("STREAMLINE_RIGTORP"),
        words: &["-DRIGTORP", "-I@/include"],
        source: THREADS,
    },
    Built {
        name: "folly",
        joins: Joins::Threads,
        folder: Some("STREAMLINE_FOLLY"),
        words: &["-DFOLLY", "-DFOLLY_NO_CONFIG", "-I@"],
        source: THREADS,
    },
    Built {
        name: "aeron",
        joins: Joins::Processes,
        folder: Some("STREAMLINE_AERON"),
        words: &[
            "-I@/aeron-client/src/main/c",
            "-I@/aeron-driver/src/main/c",
            "-L@/build/lib",
            "-Wl,-rpath,@/build/lib",
            "-laeron_driver",
            "-laeron",
        ],
        source: Source::C(include_str!("../../peers/aeron.c")),
    },
];

impl Built {
    /// Compiles it; why not, if it cannot be had. Where no folder is named, it is looked for among
    /// the headers of the system, and its source says what is missing.
    fn make(&self) -> Result<Compiled, String> {
        let folder = self.folder.and_then(std::env::var_os);
        let folder = folder.map(|folder| folder.to_string_lossy().into_owned());
        let words = self.words.iter().filter_map(|word| match &folder {
            Some(folder) => Some(word.replace('@', folder)),
            None => (!word.contains('@')).then(|| (*word).to_owned()),
        });
        let words: Vec<String> = words.collect();
        match self.source {
            Source::C(source) => Compiled::with(self.name, source, &words),
            Source::Cpp(source) => Compiled::in_cpp(self.name, source, &words),
        }
    }
}

const PLAIN: &str = include_str!("../../peers/ring.c");

/// The plain ring: what a program reaches that checks nothing and wakes nobody. The goals are parts
/// of it, so what it misses is a limit of this machine.
pub(crate) fn plain() -> Result<Compiled, String> {
    Compiled::new("ring", PLAIN)
}

/// One ring, with its own processes.
pub(crate) struct Ring {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    block: usize,
    blocks: u64,
}

impl Ring {
    /// Starts a program with these words: which ring or how to look, how many processors, and the
    /// bytes of a block.
    pub(crate) fn start(
        program: &Path,
        ring: &str,
        processors: usize,
        block: usize,
    ) -> Result<Self, String> {
        let words = [ring, &processors.to_string(), &block.to_string()].map(str::to_owned);
        let mut process = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|why| format!("{}: {why}", program.display()))?;
        let orders = process.stdin.take().ok_or("no standard input")?;
        let answers = BufReader::new(process.stdout.take().ok_or("no standard output")?);
        Ok(Self { process, orders, answers, block, blocks: 1024 })
    }

    /// GB/s, over as many blocks as take long enough.
    pub(crate) fn measure(&mut self) -> Result<f64, String> {
        loop {
            let ns = self.go(self.blocks)?;
            if ns >= super::LEAST_NS {
                #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                return Ok(self.blocks as f64 * self.block as f64 / ns as f64);
            }
            self.blocks = super::more(self.blocks, ns);
        }
    }

    fn go(&mut self, blocks: u64) -> Result<u64, String> {
        let told = writeln!(self.orders, "{blocks}").and_then(|()| self.orders.flush());
        told.map_err(|why| why.to_string())?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|why| why.to_string())?;
        line.trim().parse().map_err(|_| "the program with the other rings has ended".to_owned())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Nothing of it is needed any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
