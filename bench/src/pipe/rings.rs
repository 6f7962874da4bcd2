//! Third-party rings: those of the program `bench/peers/rings`, if it was built; and those in C and
//! C++ of `bench/peers`, compiled here if their sources are installed. Each program reads the
//! number of blocks to move, and prints the time that took.

use crate::peers::Compiled;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The endpoints that a ring connects, threads or processes, which decide the baseline of its
/// comparison. [goal G3]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoints {
    Threads,
    Processes,
}

/// A third-party ring.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) joins: Endpoints,
    program: RingProgram,
}

enum RingProgram {
    Found(PathBuf),
    Made(Compiled),
}

impl Peer {
    /// Starts the ring's processes.
    pub(super) fn start(&self, processors: usize, block: usize) -> Result<Ring, String> {
        let program = match &self.program {
            RingProgram::Found(path) => path,
            RingProgram::Made(program) => program.program(),
        };
        Ring::start(program, self.name, processors, block)
    }
}

/// Returns the available rings, and prints the missing ones with the reason.
pub(super) fn peers() -> Vec<Peer> {
    let mut peers = Vec::new();
    match find() {
        Ok(path) => peers.extend(RINGS.map(|(name, joins)| {
            let program = RingProgram::Found(path.clone());
            Peer { name, joins, program }
        })),
        Err(why) => eprintln!("left out: {}: {why}", RINGS.map(|(name, _)| name).join(", ")),
    }
    for built in BUILT {
        let CompiledRing { name, joins, .. } = built;
        match built.make() {
            Ok(program) => peers.push(Peer { name, joins, program: RingProgram::Made(program) }),
            Err(why) => eprintln!("left out: {name}: {why}"),
        }
    }
    peers
}

/// The rings of the program `bench/peers/rings`.
const RINGS: [(&str, Endpoints); 5] = [
    ("rtrb", Endpoints::Threads),
    ("ringbuf", Endpoints::Threads),
    ("iceoryx2", Endpoints::Processes),
    ("ipmpsc", Endpoints::Processes),
    ("shmem-ipc", Endpoints::Processes),
];

/// Returns the path of the program: the one in STREAMLINE_RINGS, or one next to this program.
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

/// A ring compiled here from installed sources.
struct CompiledRing {
    name: &'static str,
    joins: Endpoints,
    /// Environment variable with the directory of the ring's sources; `None` for the system's
    /// include directory.
    folder: Option<&'static str>,
    /// Compiler arguments; `@` stands for the directory of the sources.
    words: &'static [&'static str],
    source: Source,
}

enum Source {
    C(&'static str),
    Cpp(&'static str),
}

const THREADS: Source = Source::Cpp(include_str!("../../peers/threads.cpp"));

const BUILT: [CompiledRing; 4] = [
    CompiledRing {
        name: "boost",
        joins: Endpoints::Threads,
        folder: None,
        words: &["-DBOOST"],
        source: THREADS,
    },
    CompiledRing {
        name: "rigtorp",
        joins: Endpoints::Threads,
        folder: Some("STREAMLINE_RIGTORP"),
        words: &["-DRIGTORP", "-I@/include"],
        source: THREADS,
    },
    CompiledRing {
        name: "folly",
        joins: Endpoints::Threads,
        folder: Some("STREAMLINE_FOLLY"),
        words: &["-DFOLLY", "-DFOLLY_NO_CONFIG", "-I@"],
        source: THREADS,
    },
    CompiledRing {
        name: "aeron",
        joins: Endpoints::Processes,
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

impl CompiledRing {
    /// Compiles the ring; the error states why that failed. Without a directory, the system's
    /// headers are used.
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

/// Compiles the plain ring, which checks nothing and wakes no reader. Goals are shares of its rate,
/// because whatever limits it is a limit of the machine.
pub(crate) fn plain() -> Result<Compiled, String> {
    Compiled::new("ring", PLAIN)
}

/// A running ring with its processes.
pub(crate) struct Ring {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    block: usize,
    blocks: u64,
}

impl Ring {
    /// Starts a program with the ring or reading method, the number of processors, and the block
    /// size as arguments.
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

    /// Returns GB/s, over enough blocks for the minimum duration.
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
        // Its state is not needed any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
