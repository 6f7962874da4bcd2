//! The rate of reading a path's bytes from a file of a mount, compared with reading the same bytes
//! from the pipe of a tap.
//!
//! A chunk passes through the path while there is no reader, so that the path accumulates a
//! backlog. Only the time in which the reader reads the backlog is measured. All its reads have the
//! same size.

use super::programs::Programs;
use crate::harness::{Candidate, Goal, is_row_selected, measure_interleaved_rows};
use crate::row::Row;
use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use streamline::paths::{self, PathClient, TapParameters};

/// Sizes of reads in bytes, each with its goals on one core and on two cores, if there are any.
const READ_SIZES: [(usize, Option<f64>, Option<f64>); 4] = [
    (4 << 10, None, None),
    (32 << 10, None, None),
    (128 << 10, Some(1.2), None),
    (1 << 20, Some(1.5), Some(1.3)),
];
/// Length of a chunk in bytes, less than the backlog of a tap.
const CHUNK_SIZE: usize = 6 << 20;
/// Number of chunks in a measurement.
const CHUNK_COUNT: usize = 6;
/// Default capacity of a pipe, in bytes.
const PIPE_SIZE: usize = 64 << 10;

const PIPE_NAME: &str = "kernel pipe";
const LARGE_PIPE_NAME: &str = "pipe of 1 MB";
const PIPESFS_NAME: &str = "PipesFS";

/// Measures all sizes of reads, on one core and on two.
pub(super) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    let processors = sys::machine::Machine::detect().processor_count;
    let mut rows = Vec::new();
    for (cores, processor) in [("one core", 0), ("two cores", 1)] {
        if processor >= processors {
            eprintln!("left out: two cores, this machine has one");
            continue;
        }
        let name = |size: usize| format!("{} KB reads, {cores}", size >> 10);
        if !READ_SIZES.iter().any(|(size, ..)| is_row_selected(&name(*size))) {
            continue;
        }
        sys::process::pin_to_processor(processor).map_err(|why| why.to_string())?;
        let mut programs = Programs::start()?;
        let path = programs.add_path("bytes", "read - block=64k | discard")?;
        let mount = programs.mount("pipes", (processor == 0).then_some(0))?;
        sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
        for (size, one, two) in READ_SIZES {
            let target = if processor == 0 { one } else { two };
            let goals: Vec<Goal> = target
                .map(|target| Goal {
                    candidate: PIPESFS_NAME,
                    reference: PIPE_NAME,
                    goal: "G21",
                    target,
                })
                .into_iter()
                .collect();
            let bench = RefCell::new((&mut programs, path));
            let measure = |source: ByteSource| {
                let mut bench = bench.borrow_mut();
                measure_chunks(bench.0, path, (&mount, source), size)
            };
            let candidates = vec![
                Candidate {
                    name: PIPE_NAME,
                    measure: Box::new(|| measure(ByteSource::Pipe(PIPE_SIZE))),
                },
                Candidate {
                    name: LARGE_PIPE_NAME,
                    measure: Box::new(|| measure(ByteSource::Pipe(1 << 20))),
                },
                Candidate { name: PIPESFS_NAME, measure: Box::new(|| measure(ByteSource::File)) },
            ];
            #[expect(clippy::cast_precision_loss, reason = "a size of a read")]
            let subject = ("pipesfs", name(size), size as f64);
            let subject = (subject.0, subject.1.as_str(), subject.2);
            rows.extend(measure_interleaved_rows(subject, "GB/s", rounds, candidates, &goals)?);
        }
    }
    Ok(rows)
}

/// The file or pipe from which the reader reads the path's bytes.
#[derive(Clone, Copy)]
enum ByteSource {
    /// The pipe of a tap, with this capacity in bytes.
    Pipe(usize),
    /// A file of the mount, which is a stream of the path's output.
    File,
}

/// Measures the rate at which the reader reads the path's bytes, in GB/s.
fn measure_chunks(
    programs: &mut Programs,
    path: usize,
    (mount, source): (&Path, ByteSource),
    size: usize,
) -> Result<f64, String> {
    let text = |why: std::io::Error| why.to_string();
    // Closing the connection ends the tap.
    let mut tap: Option<PathClient> = None;
    let mut from = match source {
        ByteSource::Pipe(capacity) => {
            let (connection, pipe) = open_tap(programs)?;
            tap = Some(connection);
            // The size must be set before anything is written.
            rustix::pipe::fcntl_setpipe_size(&pipe, capacity).map_err(|why| why.to_string())?;
            File::from(pipe)
        }
        ByteSource::File => File::open(mount.join("bytes/read:-/all")).map_err(text)?,
    };
    let chunk = vec![7; CHUNK_SIZE];
    let mut buffer = vec![0; size];
    let mut took_ns = 0;
    for number in 0..=CHUNK_COUNT {
        let input = programs.path_process(path).stdin.as_mut().ok_or("the path has no input")?;
        input.write_all(&chunk).map_err(text)?;
        // On two cores, this time also lets the path become idle.
        sys::poll::wait_until_readable(&[], Some(std::time::Duration::from_millis(2)));
        let began = sys::clock::monotonic_ns();
        let mut left = CHUNK_SIZE;
        while left > 0 {
            match from.read(&mut buffer).map_err(text)? {
                0 => return Err("the stream ended".to_owned()),
                length => left = left.checked_sub(length).ok_or("more than was written")?,
            }
        }
        // The first chunk is a warm-up.
        took_ns += if number > 0 { sys::clock::monotonic_ns() - began } else { 0 };
    }
    drop(tap);
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let rate = (CHUNK_SIZE * CHUNK_COUNT) as f64 / took_ns as f64;
    Ok(rate)
}

fn open_tap(programs: &Programs) -> Result<(PathClient, OwnedFd), String> {
    let client = programs.client()?;
    let to = paths::connect(&client, "bytes").map_err(|why| why.to_string())?;
    let wanted = TapParameters {
        classes: Some(String::new()),
        form: Some("bytes".to_owned()),
        patience_ms: Some(60_000),
        ..TapParameters::default()
    };
    let (_, pipe) = to.tap(&wanted).map_err(|why| why.to_string())?;
    Ok((to, pipe))
}
