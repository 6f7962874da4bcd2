//! `bench file`: unmodified system programs on cached files, with and without the preloaded
//! library. [SL fig. 16; IOL fig. 8], goals G12, G13; FEATURES E5, G4
//!
//! - `cat f | grep x | wc -l` over streams and over pipes, and `grep x f | wc -l`, in which the
//!   file does not pass through a pipe; on one processor and on two. The programs must reach 0.8 of
//!   the rate of the mechanism alone, which is the same work in three threads over two streams.
//! - `dd` from file to file at growing block sizes, with and without copies into its buffer, by the
//!   throughput that dd reports; and the same file dbuf in a process that keeps the mapping for
//!   many copies ("kept").
//!
//! The text is generated: lines of 100 bytes, 2 % of which match.

mod copy;
mod threads;

use crate::harness::{Candidate, Goal, measure_interleaved_rows};
use crate::options::Options;
use crate::row::Row;
use crate::temp_directory::TempDirectory;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Length of a line of the generated text, in bytes.
const LINE_LENGTH: usize = 100;
/// One in this many lines of the generated text contains the word that grep searches for.
const LINES_PER_MATCH: usize = 50;
/// A directory in an in-memory file system.
const MEMORY_DIRECTORY: &str = "/dev/shm";

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let streamline = streamline_path()?;
    let folder = TempDirectory::new("file").map_err(|why| why.to_string())?;
    let text = folder.0.join("text");
    write_text(&text, options.size)?;
    let mut rows = Vec::new();
    let all: Vec<usize> =
        (0..std::thread::available_parallelism().map_or(1, usize::from).min(2)).collect();
    for (name, processors, target) in [("one core", &[0][..], 1.0 / 0.55), ("two cores", &all, 4.0)]
    {
        rows.extend(measure_pipelines(&streamline, &text, options, (name, processors, target))?);
    }
    std::fs::remove_file(&text).map_err(|why| why.to_string())?;
    set_affinity(&all)?;
    for (name, base, target) in
        [("tmpfs", PathBuf::from(MEMORY_DIRECTORY), 1.4), ("ext4", std::env::temp_dir(), 1.3)]
    {
        let folder = TempDirectory::new_in(&base, "file").map_err(|why| why.to_string())?;
        rows.extend(copy::measure_copies(&streamline, &folder.0, options, (name, target))?);
    }
    Ok(rows)
}

/// Returns the path of the `streamline` command. Fails unless the command and the preloaded library
/// are in the directory of this program.
pub(crate) fn streamline_path() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|why| why.to_string())?;
    for name in ["streamline", "libstreamline_sockets.so"] {
        if !own.with_file_name(name).is_file() {
            return Err(format!(
                "`{name}` is not beside this program: `cargo build --release -p streamline-cli \
                 -p streamline-sockets` builds both"
            ));
        }
    }
    Ok(own.with_file_name("streamline"))
}

/// Writes a text of about `size` bytes, which is then in the page cache.
fn write_text(path: &Path, size: u64) -> Result<(), String> {
    let mut piece = Vec::new();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for line in 0..10_000 {
        for at in 0..LINE_LENGTH - 1 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let letter =
                b"abcdefghijklmnopqrstuvwyz      "[usize::try_from(state % 31).unwrap_or(0)];
            piece.push(if line % LINES_PER_MATCH == 0 && at == LINE_LENGTH / 2 {
                b'x'
            } else {
                letter
            });
        }
        piece.push(b'\n');
    }
    let wrong = |why: std::io::Error| format!("{}: {why}", path.display());
    let mut file = std::fs::File::create(path).map_err(wrong)?;
    for _ in 0..size.div_ceil(piece.len() as u64) {
        file.write_all(&piece).map_err(wrong)?;
    }
    // Prevents write-back during a measurement.
    file.sync_all().map_err(wrong)
}

fn set_affinity(processors: &[usize]) -> Result<(), String> {
    sys::process::pin_to_processors(processors).map_err(|why| why.to_string())
}

fn measure_pipelines(
    streamline: &Path,
    text: &Path,
    options: &Options,
    (name, processors, target): (&'static str, &[usize], f64),
) -> Result<Vec<Row>, String> {
    set_affinity(processors)?;
    let size = std::fs::metadata(text).map_err(|why| why.to_string())?.len();
    let pipes = |script: String| {
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    };
    let streams = |script: String, options: &[&str]| {
        let mut command = Command::new(streamline);
        command.arg("sh").args(options).args(["-c", &script]);
        command
    };
    let path = text.display();
    let mut rows = Vec::new();
    let counted = (size.div_ceil((LINE_LENGTH * LINES_PER_MATCH) as u64)).to_string();
    let script = format!("cat {path} | grep x | wc -l");
    let candidates = vec![
        command_candidate("pipes", size, &counted, pipes(script.clone())),
        Candidate {
            name: "threads",
            measure: Box::new(|| measure_thread_throughput(text, size, &counted)),
        },
        command_candidate("streams", size, &counted, streams(script.clone(), &[])),
        command_candidate("streams, lazy", size, &counted, streams(script.clone(), &["--lazy"])),
        command_candidate(
            "one program less",
            size,
            &counted,
            pipes(format!("grep x {path} | wc -l")),
        ),
    ];
    let goal = |candidate, reference, goal, target| Goal { candidate, reference, goal, target };
    let goals = [
        goal("threads", "pipes", "G13", target),
        goal("streams", "pipes", "G13 with programs", target),
        goal("streams", "threads", "G13 with programs", 0.8),
        goal("streams, lazy", "threads", "G13 with programs, lazy", 0.8),
        goal("streams", "one program less", "G13 with programs", 1.0 / 1.3),
    ];
    let label = format!("cat|grep|wc {name}");
    rows.extend(measure_interleaved_rows(
        ("file", &label, f64::NAN),
        "GB/s",
        options.rounds,
        candidates,
        &goals,
    )?);
    let script = format!("cat {path} | cat | cat | wc -c");
    let candidates = vec![
        command_candidate("pipes", size, &size.to_string(), pipes(script.clone())),
        command_candidate("streams", size, &size.to_string(), streams(script, &[])),
    ];
    let label = format!("cat|cat|cat|wc {name}");
    rows.extend(measure_interleaved_rows(
        ("file", &label, f64::NAN),
        "GB/s",
        options.rounds,
        candidates,
        &[],
    )?);
    Ok(rows)
}

/// Counts the matching lines of a text in threads of this process. Returns the throughput in GB/s.
/// Fails if the count is not `answer`.
fn measure_thread_throughput(text: &Path, size: u64, answer: &str) -> Result<f64, String> {
    let start = Instant::now();
    let counted = threads::count_matching_lines(text)?.to_string();
    let took = start.elapsed().as_secs_f64();
    if counted != answer {
        return Err(format!("threads: `{counted}` instead of {answer}"));
    }
    Ok(to_gigabytes(size) / took)
}

/// Returns a candidate that runs a command and measures its throughput in GB/s. The measurement
/// fails if the output is not `answer`.
fn command_candidate<'c>(
    name: &'static str,
    size: u64,
    answer: &str,
    command: Command,
) -> Candidate<'c> {
    let (answer, mut command) = (answer.to_owned(), command);
    command.env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::inherit());
    Candidate {
        name,
        measure: Box::new(move || {
            let start = Instant::now();
            let output = command.output().map_err(|why| why.to_string())?;
            let took = start.elapsed().as_secs_f64();
            let output = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if output != answer {
                return Err(format!("{name}: {command:?} said `{output}` instead of {answer}"));
            }
            Ok(to_gigabytes(size) / took)
        }),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn to_gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
