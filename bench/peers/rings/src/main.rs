//! Third-party rings as references: `streamline-bench-rings RING CORES BLOCK`.
//!
//! Reads numbers from standard input, one per line. For each number, transfers that many blocks of
//! BLOCK bytes, copied in and copied out, and prints the duration in nanoseconds. The writer runs
//! on processor 0, the reader on processor 0 (CORES 1) or 1 (CORES 2). With a fourth argument, the
//! program is the reader of the ring with that path or name. Each ring is used as its documentation
//! recommends for blocks of a known size. No notifications are sent unless a ring requires them: an
//! idle side spins, or yields if both sides share a processor.

mod between;
mod iceoryx;
mod ipmpsc;
mod shmem;
mod threads;

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Instant;

/// Capacity in bytes of each ring that is created with a capacity in bytes instead of elements.
const CAPACITY: usize = 4 << 20;

/// A function that transfers the given number of blocks, and returns when all of them have arrived.
type Transfer = Box<dyn FnMut(u64) -> Result<(), String>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("streamline-bench-rings: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (words, place) = match words.as_slice() {
        [ring, cores, block] => ([ring, cores, block], None),
        [ring, cores, block, place] => ([ring, cores, block], Some(place)),
        _ => return Err("usage: streamline-bench-rings RING CORES BLOCK".to_owned()),
    };
    let number = |word: &String| word.parse::<usize>().map_err(|why| format!("{word}: {why}"));
    let (ring, cores, block) = (words[0].as_str(), number(words[1])?, number(words[2])?);
    if let Some(place) = place {
        return match ring {
            "iceoryx2" => iceoryx::run_reader(cores, block, place),
            "ipmpsc" => ipmpsc::run_reader(cores, block, place),
            _ => shmem::run_reader(cores, block, place),
        };
    }
    pin(0)?;
    let mut transfer = match ring {
        "iceoryx2" => iceoryx::start(cores, block)?,
        "ipmpsc" => ipmpsc::start(cores, block)?,
        "shmem-ipc" => shmem::start(cores, block)?,
        "rtrb" | "ringbuf" => threads::start(ring, cores, block)?,
        other => return Err(format!("no ring is called `{other}`")),
    };
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|why| why.to_string())?;
        let blocks = line.trim().parse::<u64>().map_err(|why| format!("{line}: {why}"))?;
        let begin = Instant::now();
        transfer(blocks)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", begin.elapsed().as_nanos()).map_err(|why| why.to_string())?;
        out.flush().map_err(|why| why.to_string())?;
    }
    Ok(())
}

/// Pins the calling thread to a processor.
fn pin(processor: usize) -> Result<(), String> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).map_err(|why| why.to_string())
}

/// Pauses one side of a ring before it checks the ring again. The side yields if both sides share a
/// processor (`cores` is 1), and otherwise spins.
fn wait(cores: usize) {
    if cores == 1 { std::thread::yield_now() } else { std::hint::spin_loop() }
}
