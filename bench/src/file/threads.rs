//! `cat f | grep x | wc -l` without programs: three threads of this process over two streams. This
//! is the mechanism that the pipeline of unmodified programs uses. [goal G13]

use abi::DbufId;
use buffer::stream::{Config, Input, Offer, Output, stream};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::thread;

/// Ring size in bytes, as in `streamline sh`.
const RING_SIZE: usize = 2 << 20;
/// The size of a block in bytes, as in `streamline sh`.
const BLOCK_SIZE: usize = 64 << 10;

/// Returns the number of lines that contain `x`, excluding a last line without a newline.
pub(super) fn count_matching_lines(path: &Path) -> Result<u64, String> {
    let (all, from_cat) = create_stream(1)?;
    let (matches, from_grep) = create_stream(2)?;
    thread::scope(|scope| {
        let cat = scope.spawn(move || copy_file(path, all));
        let grep = scope.spawn(move || copy_matching_lines(from_cat, matches));
        let wc = scope.spawn(move || count_lines(from_grep));
        let ended = || "a thread panicked".to_owned();
        cat.join().map_err(|_| ended())??;
        grep.join().map_err(|_| ended())??;
        wc.join().map_err(|_| ended())?
    })
}

fn create_stream(id: u32) -> Result<(Output, Offer), String> {
    let id = DbufId::new(id).ok_or("no dbuf has this id")?;
    let (output, mut offers) = stream(&Config::new(id).capacity(RING_SIZE)).map_err(error_text)?;
    Ok((output, offers.pop().ok_or("no reader")?))
}

fn error_text(why: impl std::fmt::Display) -> String {
    why.to_string()
}

/// Reads the file into the ring of `output` without an intermediate copy.
fn copy_file(path: &Path, mut output: Output) -> Result<(), String> {
    let mut file = File::open(path).map_err(error_text)?;
    loop {
        let mut read = Ok(0);
        output
            .write_with(BLOCK_SIZE, |room| {
                read = file.read(room);
                *read.as_ref().unwrap_or(&0)
            })
            .map_err(error_text)?;
        if read.map_err(error_text)? == 0 {
            output.flush();
            return Ok(());
        }
    }
}

/// Copies the lines that contain `x` from the stream `offer` to `output`.
fn copy_matching_lines(offer: Offer, mut output: Output) -> Result<(), String> {
    let mut input = offer.open().map_err(error_text)?;
    let mut buffer = vec![0; 2 * BLOCK_SIZE];
    // Number of bytes of an incomplete line at the beginning of the buffer.
    let mut kept = 0;
    loop {
        let room = buffer.get_mut(kept..).unwrap_or_default();
        if room.is_empty() {
            return Err("a line is too long".to_owned());
        }
        let count = input.read(room).map_err(error_text)?;
        let there = buffer.get(..kept + count).unwrap_or_default();
        let whole = if count == 0 {
            there.len()
        } else {
            memchr::memrchr(b'\n', there).map_or(0, |at| at + 1)
        };
        let (lines, rest) = there.split_at(whole);
        write_matching_lines(lines, &mut output)?;
        if count == 0 {
            output.flush();
            return Ok(());
        }
        kept = rest.len();
        buffer.copy_within(whole..whole + kept, 0);
    }
}

fn write_matching_lines(mut lines: &[u8], output: &mut Output) -> Result<(), String> {
    while let Some(at) = memchr::memchr(b'x', lines) {
        let begin =
            memchr::memrchr(b'\n', lines.get(..at).unwrap_or_default()).map_or(0, |at| at + 1);
        let rest = lines.get(at..).unwrap_or_default();
        let end = memchr::memchr(b'\n', rest).map_or(lines.len(), |length| at + length + 1);
        output.write(lines.get(begin..end).unwrap_or_default()).map_err(error_text)?;
        lines = lines.get(end..).unwrap_or_default();
    }
    Ok(())
}

fn count_lines(offer: Offer) -> Result<u64, String> {
    let mut input: Input = offer.open().map_err(error_text)?;
    let mut buffer = vec![0; BLOCK_SIZE];
    let mut lines = 0;
    loop {
        match input.read(&mut buffer).map_err(error_text)? {
            0 => return Ok(lines),
            count => {
                let read = buffer.get(..count).unwrap_or_default();
                lines += memchr::memchr_iter(b'\n', read).count() as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temp_directory::TempDirectory;

    #[test]
    fn threads_count_the_lines_that_match() {
        let folder = TempDirectory::new("threads").unwrap();
        let path = folder.0.join("text");
        let mut lines = String::new();
        for number in 0..50_000 {
            let mark = if number % 7 == 0 { "x" } else { "" };
            lines.push_str(&format!("{number} {mark} some words\n"));
        }
        lines.push_str("the last, without its end: x");
        std::fs::write(&path, &lines).unwrap();
        // The last line has no newline, so it is not counted. (`grep` would add a newline.)
        assert_eq!(count_matching_lines(&path), Ok(50_000_u64.div_ceil(7)));
    }
}
