//! Third-party rings: the rings of the program `bench/peers/rings`, if it was built, and rings in C
//! and C++ with programs in `bench/peers`, which are compiled here if their sources are installed.
//! Each program reads a number of blocks, transfers these blocks, and prints the duration in ns.

use crate::peers::CompiledPeer;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The kind of endpoints that a ring connects, two threads or two processes. It determines the goal
/// of the comparison. [goal G3]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoints {
    Threads,
    Processes,
}

/// A third-party ring, with its name and the program that measures it.
pub(super) struct PeerRing {
    pub(super) name: &'static str,
    pub(super) endpoints: Endpoints,
    program: RingProgram,
}

enum RingProgram {
    Prebuilt(PathBuf),
    Compiled(CompiledPeer),
}

impl PeerRing {
    /// Starts the writer and the reader of the ring, on one or two processors, for blocks of
    /// `block` bytes.
    pub(super) fn start(&self, processors: usize, block: usize) -> Result<RunningRing, String> {
        let program = match &self.program {
            RingProgram::Prebuilt(path) => path,
            RingProgram::Compiled(program) => program.program(),
        };
        RunningRing::start(program, self.name, processors, block)
    }
}

/// Returns the available rings. Prints the names of the missing rings with the reasons.
pub(super) fn available_rings() -> Vec<PeerRing> {
    let mut peers = Vec::new();
    match find_ring_program() {
        Ok(path) => peers.extend(PREBUILT_RINGS.map(|(name, endpoints)| {
            let program = RingProgram::Prebuilt(path.clone());
            PeerRing { name, endpoints, program }
        })),
        Err(why) => {
            eprintln!("left out: {}: {why}", PREBUILT_RINGS.map(|(name, _)| name).join(", "))
        }
    }
    for ring in COMPILED_RINGS {
        let CompiledRing { name, endpoints, .. } = ring;
        match ring.compile() {
            Ok(program) => {
                peers.push(PeerRing { name, endpoints, program: RingProgram::Compiled(program) })
            }
            Err(why) => eprintln!("left out: {name}: {why}"),
        }
    }
    peers
}

/// The rings of the program `bench/peers/rings`, each with the endpoints that it connects.
const PREBUILT_RINGS: [(&str, Endpoints); 5] = [
    ("rtrb", Endpoints::Threads),
    ("ringbuf", Endpoints::Threads),
    ("iceoryx2", Endpoints::Processes),
    ("ipmpsc", Endpoints::Processes),
    ("shmem-ipc", Endpoints::Processes),
];

/// Returns the path of the program with third-party rings: named by STREAMLINE_RINGS, in the
/// directory of this program, or in the build directory of `bench/peers/rings`.
fn find_ring_program() -> Result<PathBuf, String> {
    let named = std::env::var_os("STREAMLINE_RINGS").map(PathBuf::from);
    let beside = || {
        let itself = std::env::current_exe().ok()?;
        Some(itself.with_file_name("streamline-bench-rings"))
    };
    let built = "bench/peers/rings/target/release/streamline-bench-rings";
    let paths = [named, beside(), Some(PathBuf::from(built))];
    paths.into_iter().flatten().find(|path| path.is_file()).ok_or_else(|| {
        "they are not built: `cargo build --release --manifest-path bench/peers/rings/Cargo.toml` \
         (iceoryx2 needs libclang), or name the program in STREAMLINE_RINGS"
            .to_owned()
    })
}

/// A third-party ring whose program the bench compiles itself, from installed sources.
struct CompiledRing {
    name: &'static str,
    endpoints: Endpoints,
    /// Environment variable with the directory of the ring's sources. `None` for the system's
    /// include directory.
    folder_variable: Option<&'static str>,
    /// Compiler arguments, in which `@` is replaced with the directory of the sources.
    arguments: &'static [&'static str],
    source: RingSource,
}

enum RingSource {
    C(&'static str),
    Cpp(&'static str),
}

const THREADS_SOURCE: RingSource = RingSource::Cpp(include_str!("../../peers/threads.cpp"));

const COMPILED_RINGS: [CompiledRing; 4] = [
    CompiledRing {
        name: "boost",
        endpoints: Endpoints::Threads,
        folder_variable: None,
        arguments: &["-DBOOST"],
        source: THREADS_SOURCE,
    },
    CompiledRing {
        name: "rigtorp",
        endpoints: Endpoints::Threads,
        folder_variable: Some("STREAMLINE_RIGTORP"),
        arguments: &["-DRIGTORP", "-I@/include"],
        source: THREADS_SOURCE,
    },
    CompiledRing {
        name: "folly",
        endpoints: Endpoints::Threads,
        folder_variable: Some("STREAMLINE_FOLLY"),
        arguments: &["-DFOLLY", "-DFOLLY_NO_CONFIG", "-I@"],
        source: THREADS_SOURCE,
    },
    CompiledRing {
        name: "aeron",
        endpoints: Endpoints::Processes,
        folder_variable: Some("STREAMLINE_AERON"),
        arguments: &[
            "-I@/aeron-client/src/main/c",
            "-I@/aeron-driver/src/main/c",
            "-L@/build/lib",
            "-Wl,-rpath,@/build/lib",
            "-laeron_driver",
            "-laeron",
        ],
        source: RingSource::C(include_str!("../../peers/aeron.c")),
    },
];

impl CompiledRing {
    /// Compiles the program of the ring. If no directory of sources is configured, omits the
    /// compiler arguments that contain `@`, so that the system's headers are used. Fails with the
    /// reason.
    fn compile(&self) -> Result<CompiledPeer, String> {
        let folder = self.folder_variable.and_then(std::env::var_os);
        let folder = folder.map(|folder| folder.to_string_lossy().into_owned());
        let arguments = self.arguments.iter().filter_map(|word| match &folder {
            Some(folder) => Some(word.replace('@', folder)),
            None => (!word.contains('@')).then(|| (*word).to_owned()),
        });
        let arguments: Vec<String> = arguments.collect();
        match self.source {
            RingSource::C(source) => CompiledPeer::compile_c(self.name, source, &arguments),
            RingSource::Cpp(source) => CompiledPeer::compile_cpp(self.name, source, &arguments),
        }
    }
}

const PLAIN_RING_SOURCE: &str = include_str!("../../peers/ring.c");

/// Compiles the plain ring, a reference program in C. It checks nothing and wakes no reader, so
/// that only the machine limits its rate.
pub(crate) fn compile_plain_ring() -> Result<CompiledPeer, String> {
    CompiledPeer::new("ring", PLAIN_RING_SOURCE)
}

/// A running third-party ring: the process that writes and reads its blocks on request.
pub(crate) struct RunningRing {
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    block: usize,
    blocks: u64,
}

impl RunningRing {
    /// Starts the program of a ring. Its arguments are the name of the ring or of the reading
    /// method, the number of processors, and the block size in bytes.
    pub(crate) fn start(
        program: &Path,
        ring: &str,
        processors: usize,
        block: usize,
    ) -> Result<Self, String> {
        let arguments = [ring, &processors.to_string(), &block.to_string()].map(str::to_owned);
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|why| format!("{}: {why}", program.display()))?;
        let requests = process.stdin.take().ok_or("no standard input")?;
        let replies = BufReader::new(process.stdout.take().ok_or("no standard output")?);
        Ok(Self { process, requests, replies, block, blocks: 1024 })
    }

    /// Returns the throughput in GB/s, over enough blocks for the minimum duration.
    pub(crate) fn measure(&mut self) -> Result<f64, String> {
        loop {
            let ns = self.transfer(self.blocks)?;
            if ns >= super::MEASUREMENT_NS_MIN {
                #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
                return Ok(self.blocks as f64 * self.block as f64 / ns as f64);
            }
            self.blocks = super::next_block_count(self.blocks, ns);
        }
    }

    fn transfer(&mut self, blocks: u64) -> Result<u64, String> {
        let sent = writeln!(self.requests, "{blocks}").and_then(|()| self.requests.flush());
        sent.map_err(|why| why.to_string())?;
        let mut line = String::new();
        self.replies.read_line(&mut line).map_err(|why| why.to_string())?;
        line.trim().parse().map_err(|_| "the program with the other rings has ended".to_owned())
    }
}

impl Drop for RunningRing {
    fn drop(&mut self) {
        // The state of the process is no longer needed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
