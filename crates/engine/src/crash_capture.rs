//! Captures of blocks that made filters fail, for inspection and replay.
//!
//! Input: a [`CrashCapture`]. Output: a new file that only its owner can read, because it may
//! contain private traffic. A frame is written by the `pcap` sink as a capture, any other block as
//! raw bytes.

use abi::{BlockMetadata, Class, DbufId, Extent, Marks, RichPointer};
use endpoint::{Failure, OpenArguments};
use filter::{Arguments, Batch, Block, Value};
use runtime::failure::CrashCapture;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum number of file names tried before the creation of a file fails.
const NAME_ATTEMPTS_MAX: usize = 1000;

/// A block on which a filter failed, after it has been written to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedBlock {
    /// Path of the file that contains the block.
    pub path: PathBuf,
    /// A source, in the syntax of a request, that reads the block from the file.
    pub source: String,
}

/// Writes the block into a new file in this directory, and names the file after `node`. Creates the
/// directory (mode 0700) if it is missing.
pub fn write(
    captured: &CrashCapture,
    node: &str,
    directory: &Path,
) -> Result<CapturedBlock, Failure> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| file_failure("make", directory, &error))?;
    let framed = captured.link != Marks::NO_LINK_TYPE;
    let (path, mut file) = create(directory, node, if framed { "pcap" } else { "bytes" })?;
    let name = path.to_str().ok_or_else(|| {
        Failure::new("name", path.to_string_lossy(), "the name of the directory is not valid UTF-8")
    })?;
    if framed {
        write_capture(captured, name)?;
    } else {
        file.write_all(&captured.bytes).map_err(|error| file_failure("write", &path, &error))?;
    }
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    let source = match framed {
        true => format!("replay \"{name}\""),
        false => format!("read \"{name}\" block={}", captured.bytes.len().max(1)),
    };
    Ok(CapturedBlock { path, source })
}

/// Creates a new file that only its owner may read. Fails if [`NAME_ATTEMPTS_MAX`] file names are
/// already in use.
fn create(directory: &Path, node: &str, extension: &str) -> Result<(PathBuf, File), Failure> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let node: String = node.chars().map(plain).take(40).collect();
    let process = std::process::id();
    for number in 0..NAME_ATTEMPTS_MAX {
        let path = directory.join(format!("{node}-{process}-{number}.{extension}"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(file_failure("make", &path, &error)),
        }
    }
    Err(Failure::new(
        "make a file in",
        directory.to_string_lossy(),
        "too many crash captures exist there",
    ))
}

fn file_failure(call: &'static str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(call, path.to_string_lossy(), error).with_errno(error.raw_os_error())
}

/// Writes the block through the `pcap` sink.
fn write_capture(captured: &CrashCapture, path: &str) -> Result<(), Failure> {
    let entry = endpoint::catalog::find_sink("pcap")
        .ok_or_else(|| Failure::new("write", path, "this program has no `pcap`"))?;
    let mut arguments = Arguments::default();
    arguments.set("file", Value::Text(path.to_owned()));
    let mut sink = (entry.open)(&OpenArguments::new(&arguments))?;
    let mut batch = Batch::empty();
    let length = u32::try_from(captured.bytes.len()).unwrap_or(u32::MAX);
    let Some(id) = DbufId::new(1) else { return Ok(()) };
    let block = Block {
        pointer: RichPointer::new(id, Extent::new(0, length), Class::YES),
        frame: &captured.bytes,
        marks: Marks::frame(captured.link, length, captured.wire_length),
        context: BlockMetadata { time: captured.time, ..BlockMetadata::default() },
    };
    if batch.push(block, 0).is_err() {
        return Err(Failure::new("write", path, "an empty batch takes no block"));
    }
    sink.consume(&batch, captured.time)?;
    sink.finish().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn unused_directory(name: &str) -> PathBuf {
        let name = format!("streamline-crash-{name}-{}", std::process::id());
        std::env::temp_dir().join(name).join("state")
    }

    fn permission_bits(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn framed_block_becomes_a_capture_readable_by_its_owner_alone() {
        let directory = unused_directory("frame");
        let bytes = vec![7; 60];
        let block = CrashCapture { link: 1, time: 1_234_567_890, wire_length: 99, bytes };
        let kept = write(&block, "tcp#X", &directory).unwrap();
        assert_eq!((permission_bits(&kept.path), permission_bits(&directory)), (0o600, 0o700));
        let capture = std::fs::read(&kept.path).unwrap();
        assert_eq!(capture.len(), 24 + 16 + 60);
        assert_eq!(capture[36..40], 99u32.to_le_bytes());
        assert!(kept.source.starts_with("replay \"/") && kept.source.ends_with(".pcap\""));
        let again = write(&block, "tcp#X", &directory).unwrap();
        assert_ne!(again.path, kept.path, "nothing is overwritten");
        std::fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    #[test]
    fn unframed_block_is_written_as_raw_bytes() {
        let directory = unused_directory("bytes");
        let link = Marks::NO_LINK_TYPE;
        let block = CrashCapture { link, time: 0, wire_length: 5, bytes: b"a line".to_vec() };
        let kept = write(&block, "match", &directory).unwrap();
        assert_eq!(std::fs::read(&kept.path).unwrap(), b"a line");
        assert!(kept.source.starts_with("read \"") && kept.source.ends_with(" block=6"));
        std::fs::remove_dir_all(directory.parent().unwrap()).unwrap();
    }

    #[test]
    fn failed_directory_creation_names_the_directory() {
        let block = CrashCapture { link: 1, time: 0, wire_length: 0, bytes: Vec::new() };
        let failure = write(&block, "x", Path::new("/proc/nowhere")).unwrap_err().to_string();
        assert!(failure.starts_with("cannot make /proc/nowhere: "), "{failure}");
    }
}
