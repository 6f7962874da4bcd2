//! Rings of others, beside ours: the program in `bench/peers/rings`, if somebody has built it; the
//! ring of Boost (`bench/peers/boost.cpp`), built here where its headers are; and the plain ring in
//! C of `bench/peers/ring.c`, built here. A program is told how many blocks to move, and answers
//! how long that took.

use crate::peers::Compiled;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Which rings there are: two that join threads, and one that joins processes.
pub(super) const RINGS: [&str; 3] = ["rtrb", "ringbuf", "iceoryx2"];

/// Where the program is: what STREAMLINE_RINGS names, or next to this one.
pub(super) fn find() -> Result<PathBuf, String> {
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

const PLAIN: &str = include_str!("../../peers/ring.c");

/// The plain ring: what a program reaches that checks nothing and wakes nobody. The goals are parts
/// of it, so what it misses is a limit of this machine.
pub(crate) fn plain() -> Result<Compiled, String> {
    Compiled::new("ring", PLAIN)
}

/// The ring of Boost, which joins threads.
pub(super) fn boost() -> Result<Compiled, String> {
    Compiled::in_cpp(BOOST, include_str!("../../peers/boost.cpp"))
}

/// What that is called.
pub(super) const BOOST: &str = "boost";

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
        program: &std::path::Path,
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
