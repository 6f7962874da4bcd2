//! Compares the system calls that write a cached file into a pipe, for several block sizes. A
//! reader at the other end drains the pipe. The results are the basis of
//! `file::SpliceCall::choose`.
//!
//! cargo run --release -p streamline-iolite --example splice_calls

use abi::{DbufId, Extent};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use streamline_iolite::file::{CachedFile, SpliceCall, TransferResult};

const FILE_SIZE: usize = 64 << 20;
const ROUNDS: usize = 5;

#[expect(clippy::print_stdout, reason = "prints ratios")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("streamline-ways-{}", std::process::id()));
    let mut file = File::create(&path)?;
    file.write_all(&vec![1; FILE_SIZE])?;
    let cached = CachedFile::open(DbufId::new(1).ok_or("an id")?, &path)?;
    std::fs::remove_file(&path)?;
    println!("{:>8} {:>12} {:>12} {:>12}   of read + write", "block", "write", "refer", "sendfile");
    for block in [512, 4 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let plain = median_time(|pipe| copy_file(&cached, block, &pipe))?;
        let mut line = format!("{block:>8}");
        for call in [SpliceCall::Write, SpliceCall::Vmsplice, SpliceCall::Sendfile] {
            let time = median_time(|pipe| splice_file(&cached, call, block, &pipe))?;
            line += &format!(" {:>11.2}x", plain.as_secs_f64() / time.as_secs_f64());
        }
        println!("{line}");
    }
    Ok(())
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Returns the median time of several calls of `round`. Each call gets a new pipe, which a thread
/// drains.
fn median_time(mut round: impl FnMut(OwnedFd) -> Outcome<()>) -> Outcome<Duration> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let (read, write) = rustix::pipe::pipe()?;
        let reading = std::thread::spawn(move || {
            let (mut read, mut out) = (File::from(read), vec![0; 64 << 10]);
            while matches!(read.read(&mut out), Ok(1..)) {}
        });
        let start = Instant::now();
        round(write)?;
        reading.join().map_err(|_| "the reader has failed")?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2])
}

fn splice_file(cached: &CachedFile, call: SpliceCall, block: usize, pipe: &OwnedFd) -> Outcome<()> {
    let mut at = 0;
    while at < FILE_SIZE {
        let length = u32::try_from(block)?;
        match cached.splice_with_call(call, Extent::new(at as u64, length), pipe)? {
            TransferResult::Bytes(count) => at += count,
            TransferResult::End => break,
        }
    }
    Ok(())
}

fn copy_file(cached: &CachedFile, block: usize, pipe: &OwnedFd) -> Outcome<()> {
    let (mut at, mut room) = (0, vec![0; block]);
    while at < FILE_SIZE {
        let count = cached.read_at(at as u64, &mut room)?;
        let mut left = &room[..count];
        while !left.is_empty() {
            left = &left[rustix::io::write(pipe, left)?..];
        }
        at += count;
    }
    Ok(())
}
