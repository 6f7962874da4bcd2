//! `dd` from a cached file to another file, and to /dev/null. [SL fig. 16], goal G12
//!
//! The pages of a new file are allocated while it is written, which costs more than the copy and is
//! the same for all candidates. Another row therefore overwrites an existing file, which shows only
//! the cost of the copy; the goal refers to that row. "Sealed" means that the file is memory that
//! cannot be truncated, so truncation need not be checked after each block. "By hand" checks
//! nothing and would not detect a truncation.
//!
//! Unmodified `dd` also runs under `streamline exec`, as a user would run it, by default and with
//! `--lazy`. Its throughput must reach 0.98 times the throughput of `dd` alone at every size. A
//! single copy cannot gain from keeping the mapping (decision 0014), as shown by the comparison at
//! 4 KB with a process that keeps the file dbuf mapped.

use super::to_gigabytes;
use crate::harness::{Candidate, Goal, measure_interleaved_rows};
use crate::options::Options;
use crate::row::Row;
use abi::{DbufId, Extent};
use iolite::file::{CachedFile, SpliceCall, TransferResult};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use sys::file::FileMapping;
use sys::memory::{Memfd, Seals};

/// Size of the file in bytes, as in the paper.
const FILE_SIZE: u64 = 50_000_000;
/// Block sizes, each with its name as an argument of dd.
const BLOCK_SIZES: [(&str, usize); 6] = [
    ("512", 512),
    ("4K", 4096),
    ("16K", 16 << 10),
    ("64K", 64 << 10),
    ("256K", 256 << 10),
    ("1M", 1 << 20),
];
/// Maximum length in bytes of a slice of the file that is written at once.
const SLICE_SIZE_MAX: usize = 512 << 10;

/// The destination to which a file is copied.
#[derive(Clone, Copy)]
enum CopyTarget<'p> {
    /// A file that does not exist before the copy.
    New(&'p Path),
    /// An existing file, as long as the copied one, which the copy overwrites.
    Existing(&'p Path),
    /// The device /dev/null.
    Null,
}

impl CopyTarget<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::New(_) => "file",
            Self::Existing(_) => "file that is there",
            Self::Null => "null",
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::New(path) | Self::Existing(path) => path,
            Self::Null => Path::new("/dev/null"),
        }
    }

    /// Removes the target file if the target is a new file.
    fn remove_if_new(&self) -> Result<(), String> {
        match self {
            Self::New(path) if path.is_file() => {
                std::fs::remove_file(path).map_err(|why| format!("{}: {why}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn open(&self) -> Result<File, String> {
        self.remove_if_new()?;
        let path = self.path();
        let opened = File::options().write(true).create(true).truncate(false).open(path);
        opened.map_err(|why| format!("{}: {why}", path.display()))
    }
}

pub(super) fn measure_copies(
    streamline: &Path,
    folder: &Path,
    options: &Options,
    (name, target): (&'static str, f64),
) -> Result<Vec<Row>, String> {
    let (from, to) = (folder.join("from"), folder.join("to"));
    super::write_text(&from, FILE_SIZE)?;
    let id = DbufId::new(1).ok_or("no dbuf has this id")?;
    let kept = CachedFile::open(id, &from).map_err(|why| why.to_string())?;
    let mapped = map_file(&from)?;
    let sealed = copy_to_sealed_memory(&from)?;
    let mut rows = Vec::new();
    for (label, block) in BLOCK_SIZES {
        for way in [CopyTarget::New(&to), CopyTarget::Existing(&to), CopyTarget::Null] {
            let plain = || run_dd(&mut Command::new("dd"), &from, way, block);
            let executed = |options: &[&str]| {
                let mut command = Command::new(streamline);
                command.arg("exec").args(options).arg("dd");
                run_dd(&mut command, &from, way, block)
            };
            let (by_default, lazily) = (|| executed(&[]), || executed(&["--lazy"]));
            let kept = || measure_copy(way, |at, to| write_slice(&kept, at, block, to));
            let sealed = || measure_copy(way, |at, to| write_slice(&sealed, at, block, to));
            let bare = || measure_copy(way, |at, to| write_slice_unchecked(&mapped, at, block, to));
            let candidates = vec![
                Candidate { name: "dd", measure: Box::new(plain) },
                Candidate { name: "dd, exec", measure: Box::new(by_default) },
                Candidate { name: "dd, lazy", measure: Box::new(lazily) },
                Candidate { name: "file dbuf, kept", measure: Box::new(kept) },
                Candidate { name: "sealed, kept", measure: Box::new(sealed) },
                Candidate { name: "mapped, by hand", measure: Box::new(bare) },
            ];
            let goals = if matches!(way, CopyTarget::Existing(_)) {
                copy_goals(target, block)
            } else {
                Vec::new()
            };
            let row = format!("dd {name} to {} {label}", way.name());
            let x = f64::from(u32::try_from(block).unwrap_or(0));
            rows.extend(measure_interleaved_rows(
                ("file", &row, x),
                "GB/s",
                options.rounds,
                candidates,
                &goals,
            )?);
        }
    }
    Ok(rows)
}

/// Returns the goals for a copy that overwrites an existing file in blocks of `block` bytes.
/// `target` is the ratio that goal G12 requires.
fn copy_goals(target: f64, block: usize) -> Vec<Goal> {
    let kept = |candidate| Goal { candidate, reference: "dd", goal: "G12", target };
    let unmodified =
        |candidate, reference, target| Goal { candidate, reference, goal: "G12 with dd", target };
    let mut goals = vec![kept("file dbuf, kept"), kept("sealed, kept")];
    goals.extend(["dd, exec", "dd, lazy"].map(|candidate| unmodified(candidate, "dd", 0.98)));
    if block == COMPARED_BLOCK_SIZE {
        goals.push(unmodified("dd, exec", "file dbuf, kept", 0.8));
    }
    goals
}

/// The block size in bytes at which unmodified `dd` is compared with a copy by this process.
const COMPARED_BLOCK_SIZE: usize = 4096;

/// Runs dd. Returns the throughput that it reports, which excludes its startup time.
fn run_dd(
    command: &mut Command,
    from: &Path,
    to: CopyTarget<'_>,
    block: usize,
) -> Result<f64, String> {
    to.remove_if_new()?;
    command.env("LC_ALL", "C").arg(format!("bs={block}"));
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.path().display()));
    if let CopyTarget::Existing(_) = to {
        command.arg("conv=notrunc");
    }
    let output = command.output().map_err(|why| why.to_string())?;
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut words = output.lines().last().unwrap_or_default().split_whitespace();
    let bytes = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| output.clone())?;
    let seconds = words.skip_while(|word| *word != "copied,").nth(1);
    let seconds: f64 = seconds.and_then(|word| word.parse().ok()).ok_or_else(|| output.clone())?;
    Ok(to_gigabytes(bytes) / seconds)
}

/// Copies the file in this process, which has already mapped it, for comparison with [`run_dd`].
/// Returns the throughput in GB/s. `send` writes the slice of the file that begins at the given
/// offset, and returns its length, or 0 at the end.
fn measure_copy(
    to: CopyTarget<'_>,
    mut send: impl FnMut(u64, &File) -> Result<usize, String>,
) -> Result<f64, String> {
    let out = to.open()?;
    let start = Instant::now();
    let mut at = 0;
    loop {
        match send(at, &out)? {
            0 => return Ok(to_gigabytes(at) / start.elapsed().as_secs_f64()),
            count => at += count as u64,
        }
    }
}

/// Writes a slice of at most `block` bytes of the file dbuf to `to`. Returns the number of bytes
/// written, or 0 at the end of the file.
fn write_slice(file: &CachedFile, at: u64, block: usize, to: &File) -> Result<usize, String> {
    let length = u32::try_from(block.min(SLICE_SIZE_MAX)).unwrap_or(0);
    match file.splice_with_call(SpliceCall::Write, Extent::new(at, length), to) {
        Ok(TransferResult::Bytes(count)) => Ok(count),
        Ok(TransferResult::End) => Ok(0),
        Err(why) => Err(why.to_string()),
    }
}

/// Returns the file's bytes as sealed memory.
fn copy_to_sealed_memory(path: &Path) -> Result<CachedFile, String> {
    let wrong = |why: std::io::Error| format!("{}: {why}", path.display());
    let mut from = File::open(path).map_err(wrong)?;
    let memory = Memfd::create("bench", 0).map_err(|why| why.to_string())?;
    memory.seal(Seals::SHRINK).map_err(|why| why.to_string())?;
    let mut to = File::from(OwnedFd::from(memory));
    std::io::copy(&mut from, &mut to).map_err(wrong)?;
    let id = DbufId::new(2).ok_or("no dbuf has this id")?;
    CachedFile::from_descriptor(id, to.into()).map_err(|why| why.to_string())
}

/// Writes a slice of the mapping to `to`, without the check for truncation. Returns the length of
/// the slice, or 0 at the end of the file.
fn write_slice_unchecked(
    file: &FileMapping,
    at: u64,
    block: usize,
    to: &File,
) -> Result<usize, String> {
    let at = usize::try_from(at).unwrap_or(usize::MAX);
    let length = block.min(file.len().saturating_sub(at));
    if length == 0 {
        return Ok(0);
    }
    file.write_to(at, length, to).map_err(|why| why.to_string())
}

/// Maps the whole file, and populates its pages.
fn map_file(path: &Path) -> Result<FileMapping, String> {
    let file = File::open(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let size = sys::file::status(&file).map_err(|why| why.to_string())?.size;
    let size = usize::try_from(size).map_err(|_| "too long a file to map")?;
    let mapped = FileMapping::map(&file, size).map_err(|why| why.to_string())?;
    mapped.populate(0, size).map_err(|why| why.to_string())?;
    Ok(mapped)
}
