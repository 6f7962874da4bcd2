//! Repair of a file's last line, which an earlier run may have left incomplete because it was
//! killed or the disk was full.
//!
//! Before output is appended to a file, the last line of the file is repaired, so that the output
//! begins on a new line. An incomplete JSON object is removed, because readers expect an object in
//! each line. After other text, a line terminator is added, because even an incomplete line may be
//! useful. A line terminator is also added after a JSON object that lacks only the terminator.
//! (docs/book/decisions/0049-replaced-files.md)

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

/// The format of the lines in an output file, which determines how an incomplete last line is
/// repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LineFormat {
    /// Lines of text with any content. An incomplete last line is terminated.
    Text,
    /// One JSON object per line.
    Json,
}

/// Maximum length in bytes of an incomplete line that is removed. A longer line is terminated
/// instead.
const LINE_LENGTH_MAX: u64 = 1 << 20;

/// Repairs the last line of a regular file, so that the file ends with a line terminator. If
/// `lines` is [`LineFormat::Json`] and the line is an incomplete object of at most
/// [`LINE_LENGTH_MAX`] bytes, removes the line. Otherwise, terminates the line. Returns a message
/// that describes the change, or `None` if the file was not changed. A file that this process
/// cannot read is left unchanged.
pub(crate) fn repair_last_line(
    file: &mut File,
    target: &str,
    lines: LineFormat,
) -> io::Result<Option<String>> {
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Ok(None);
    }
    // The descriptor may be write-only.
    let Ok(readable) = sys::file::reopen_read_only(file.as_fd()) else { return Ok(None) };
    let Some((begin, line)) = read_unterminated_last_line(&File::from(readable), metadata.len())?
    else {
        return Ok(None);
    };
    let length = metadata.len() - begin;
    let is_complete_line = line.is_some();
    let is_whole = || line.is_some_and(|line| serde_json::from_slice::<JsonObject>(&line).is_ok());
    if lines == LineFormat::Text || !is_complete_line || is_whole() {
        file.write_all(b"\n")?;
        return Ok(Some(format!(
            "{target} ended in the middle of a line of {length} bytes, as a killed run leaves it: \
             the line was ended"
        )));
    }
    file.set_len(begin)?;
    Ok(Some(format!(
        "{target} ended in the middle of a record, as a killed run or a full disk leaves it: its \
         {length} bytes were cut off"
    )))
}

/// A JSON object with any members.
type JsonObject = serde_json::Map<String, serde_json::Value>;

/// Returns the start offset and the bytes of the last line of a file, if it is not terminated. For
/// a line longer than [`LINE_LENGTH_MAX`], returns the offset [`LINE_LENGTH_MAX`] bytes before the
/// end of the file, without bytes. Returns `None` if the file ends with a line terminator.
fn read_unterminated_last_line(
    file: &File,
    length: u64,
) -> io::Result<Option<(u64, Option<Vec<u8>>)>> {
    const PIECE_SIZE: u64 = 4096;
    let first = length.saturating_sub(LINE_LENGTH_MAX);
    let mut line = Vec::new();
    let mut end = length;
    while end > first {
        let from = end.saturating_sub(PIECE_SIZE).max(first);
        let mut piece = vec![0; usize::try_from(end - from).unwrap_or(0)];
        file.read_exact_at(&mut piece, from)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            let rest = piece.split_off(at + 1);
            if rest.is_empty() && end == length {
                return Ok(None);
            }
            line.splice(..0, rest);
            return Ok(Some((from + at as u64 + 1, Some(line))));
        }
        line.splice(..0, piece);
        end = from;
    }
    Ok(Some((first, (first == 0).then_some(line))))
}

/// Returns the end offset of the last block that is complete after `done` bytes of a buffer have
/// been written, or 0 if none is. `ends` contains the end offsets of the blocks in the buffer, in
/// ascending order.
pub(crate) fn complete_blocks_length(
    done: usize,
    mut ends: impl DoubleEndedIterator<Item = usize>,
) -> usize {
    ends.rfind(|end| *end <= done).unwrap_or(0)
}

/// Removes the last `part` bytes of a regular file, which are the beginning of a block that could
/// not be written completely. Does nothing to other files.
pub(crate) fn truncate_tail(file: &File, part: usize) -> io::Result<()> {
    let metadata = file.metadata()?;
    if part > 0 && metadata.is_file() {
        let length = metadata.len().saturating_sub(part as u64);
        file.set_len(length)?;
        rustix::fs::seek(file, rustix::fs::SeekFrom::Start(length))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;
    use std::fs;
    use sys::open::RegularOpenOptions;

    /// Returns the repaired contents, and true if a change was reported.
    fn repaired_contents(before: &[u8], lines: LineFormat) -> (Vec<u8>, bool) {
        let dir = TempDir::new();
        let path = dir.path("file");
        fs::write(&path, before).unwrap();
        let mut file = RegularOpenOptions::append().open(&path).unwrap();
        let reported = repair_last_line(&mut file, &path, lines).unwrap();
        let again = repair_last_line(&mut file, &path, lines).unwrap();
        assert_eq!(again, None, "a repaired file is not changed again");
        (fs::read(&path).unwrap(), reported.is_some())
    }

    #[test]
    fn incomplete_json_is_removed_and_incomplete_text_terminated() {
        let cases: [(&[u8], LineFormat, &[u8], bool); 8] = [
            (b"", LineFormat::Json, b"", false),
            (b"{\"a\":1}\n", LineFormat::Json, b"{\"a\":1}\n", false),
            (b"{\"a\":1}\n{\"b\":", LineFormat::Json, b"{\"a\":1}\n", true),
            (b"{\"b\":", LineFormat::Json, b"", true),
            (b"{\"a\":1}\n{\"b\":2}", LineFormat::Json, b"{\"a\":1}\n{\"b\":2}\n", true),
            (b"1.2.3.4 - -", LineFormat::Text, b"1.2.3.4 - -\n", true),
            (b"one\ntw", LineFormat::Text, b"one\ntw\n", true),
            (b"one\n", LineFormat::Text, b"one\n", false),
        ];
        for (before, lines, after, reported) in cases {
            assert_eq!(repaired_contents(before, lines), (after.to_vec(), reported), "{before:?}");
        }
    }

    #[test]
    fn incomplete_object_of_any_length_is_found() {
        let whole = b"{\"a\":1}\n";
        for length in [1, 4087, 4088, 4089, 4095, 4096, 4097, 9000, LINE_LENGTH_MAX as usize - 1] {
            let contents = [whole.as_slice(), &vec![b'x'; length]].concat();
            assert_eq!(
                repaired_contents(&contents, LineFormat::Json),
                (whole.to_vec(), true),
                "{length}"
            );
        }
        // The line is too long to search for its beginning.
        let long = [whole.as_slice(), &vec![b'x'; LINE_LENGTH_MAX as usize + 9]].concat();
        let (after, reported) = repaired_contents(&long, LineFormat::Json);
        assert!(reported && after == [long.as_slice(), b"\n"].concat());
    }

    #[test]
    fn partly_written_block_is_truncated() {
        assert_eq!(complete_blocks_length(10, [3, 9, 12].into_iter()), 9);
        assert_eq!(complete_blocks_length(2, [3, 9].into_iter()), 0);
        let dir = TempDir::new();
        let path = dir.path("file");
        fs::write(&path, "one\ntwo\nth").unwrap();
        let mut file = RegularOpenOptions::write().open(&path).unwrap();
        truncate_tail(&file, 2).unwrap();
        file.write_all(b"next").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\nnext");
    }
}
