//! `dd` from a cached file to another one, and to nowhere. [SL fig. 16], goal G12

use super::gigabytes;
use crate::Options;
use crate::harness::{Candidate, Goal, interleave};
use crate::row::Row;
use abi::{DbufId, Place};
use buffer::file::{CachedFile, Sent, Way};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Bytes of the file, as in the source.
const SIZE: u64 = 50_000_000;
const BLOCKS: [(&str, usize); 6] = [
    ("512", 512),
    ("4K", 4096),
    ("16K", 16 << 10),
    ("64K", 64 << 10),
    ("256K", 256 << 10),
    ("1M", 1 << 20),
];
/// More bytes do not fit into a place.
const PLACE: usize = 512 << 10;

pub(super) fn run(
    streamline: &Path,
    folder: &Path,
    options: &Options,
    (name, target): (&'static str, f64),
) -> Result<Vec<Row>, String> {
    let (from, to) = (folder.join("from"), folder.join("to"));
    super::make(&from, SIZE)?;
    let id = DbufId::new(1).ok_or("no dbuf has this id")?;
    let kept = CachedFile::open(id, &from).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for (label, block) in BLOCKS {
        for (place, to) in [("file", to.as_path()), ("null", Path::new("/dev/null"))] {
            let plain = || {
                let mut command = Command::new("dd");
                dd(&mut command, &from, to, block)
            };
            let lazily = || {
                let mut command = Command::new(streamline);
                command.args(["exec", "--lazy", "dd"]);
                dd(&mut command, &from, to, block)
            };
            let kept = || keep(&kept, to, block);
            let candidates = vec![
                Candidate { name: "dd", measure: Box::new(plain) },
                Candidate { name: "dd, lazy", measure: Box::new(lazily) },
                Candidate { name: "file dbuf, kept", measure: Box::new(kept) },
            ];
            let goal = Goal { candidate: "dd, lazy", reference: "dd", goal: "G12", target };
            let goals = if place == "file" { vec![goal] } else { Vec::new() };
            let row = format!("dd {name} to {place} {label}");
            let x = f64::from(u32::try_from(block).unwrap_or(0));
            rows.extend(interleave(("file", &row, x), "GB/s", options.rounds, candidates, &goals)?);
        }
    }
    Ok(rows)
}

/// What dd itself reports: without the time that it takes to start.
fn dd(command: &mut Command, from: &Path, to: &Path, block: usize) -> Result<f64, String> {
    if to.is_file() {
        std::fs::remove_file(to).map_err(|why| why.to_string())?;
    }
    command.env("LC_ALL", "C").arg(format!("bs={block}"));
    command.arg(format!("if={}", from.display())).arg(format!("of={}", to.display()));
    let output = command.output().map_err(|why| why.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut words = said.lines().last().unwrap_or_default().split_whitespace();
    let bytes = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| said.clone())?;
    let seconds = words.skip_while(|word| *word != "copied,").nth(1);
    let seconds: f64 = seconds.and_then(|word| word.parse().ok()).ok_or_else(|| said.clone())?;
    Ok(gigabytes(bytes) / seconds)
}

/// The same copy by the file dbuf, whose mapping is there already.
fn keep(file: &CachedFile, to: &Path, block: usize) -> Result<f64, String> {
    if to.is_file() {
        std::fs::remove_file(to).map_err(|why| why.to_string())?;
    }
    let wrong = |why: std::io::Error| format!("{}: {why}", to.display());
    let out = File::options().write(true).create(true).truncate(true).open(to).map_err(wrong)?;
    let size = file.size().map_err(|why| why.to_string())?;
    let start = Instant::now();
    let mut at = 0;
    while at < size {
        let length = u32::try_from(block.min(PLACE)).unwrap_or(0);
        match file.splice_by(Way::Write, Place::new(at, length), &out) {
            Ok(Sent::Bytes(count)) => at += count as u64,
            Ok(Sent::End) => break,
            Err(why) => return Err(why.to_string()),
        }
    }
    Ok(gigabytes(at) / start.elapsed().as_secs_f64())
}
