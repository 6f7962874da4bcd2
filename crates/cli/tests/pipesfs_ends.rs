//! Tests of the ends of streams in PipesFS. The output of a path remains readable after the path
//! has ended, and an incomplete stream ends with an error.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::pipes_mount::{PipesMount, send_signal};
use common::{ChildGuard, Folder};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use testkit::wait_until;

/// Starts the path `bytes`, which reads its standard input, and waits until the path is in the
/// mount.
fn start_bytes_path(folder: &Folder, mounted: &PipesMount) -> ChildGuard {
    let request = "read - block=64k | inspect | discard";
    let mut path = folder.streamline_command(&["run", "-q", "--as", "bytes", request]);
    path.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let path = ChildGuard(path.spawn().unwrap());
    wait_until("it is shown", || mounted.path("bytes/read:-").is_dir());
    path
}

/// Returns `length` bytes of a sequence with a long period.
fn numbered_bytes(length: usize) -> Vec<u8> {
    let words = (0u32..).map(|word| word.wrapping_mul(2_654_435_761)).flat_map(u32::to_le_bytes);
    words.take(length).collect()
}

/// Ends the input of a path, and waits until its process has exited.
fn close_input_and_wait_for_exit(path: &mut ChildGuard) {
    drop(path.0.stdin.take());
    let status = path.0.wait().unwrap();
    assert!(status.success(), "{status}");
}

/// Reads a stream to its end. Returns the bytes and the error number of the end, if any.
fn read_all(stream: &mut File) -> (Vec<u8>, Option<i32>) {
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes);
    (bytes, end.err().and_then(|error| error.raw_os_error()))
}

const EIO: i32 = 5;

#[test]
fn b2_backlog_stays_readable_after_the_path_has_exited() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let mut path = start_bytes_path(&folder, &mounted);
    let mut first = File::open(mounted.path("bytes/read:-/all")).unwrap();
    let mut second = File::open(mounted.path("bytes/read:-/all")).unwrap();
    let sent = numbered_bytes(6 << 20);
    path.0.stdin.as_mut().unwrap().write_all(&sent).unwrap();
    let mut begun = vec![0; 100_000];
    first.read_exact(&mut begun).unwrap();
    close_input_and_wait_for_exit(&mut path);
    let (rest, end) = read_all(&mut first);
    begun.extend(rest);
    assert!(begun == sent, "{} of {} bytes", begun.len(), sent.len());
    assert_eq!(end, None);
    let (all, end) = read_all(&mut second);
    assert!(all == sent, "{} of {} bytes", all.len(), sent.len());
    assert_eq!(end, None);
    assert_eq!(mounted.read_text(".error"), "");
}

#[test]
fn b2_stream_of_a_killed_path_ends_with_an_error() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let mut path = start_bytes_path(&folder, &mounted);
    let mut stream = File::open(mounted.path("bytes/read:-/all")).unwrap();
    let sent = numbered_bytes(64 << 10);
    path.0.stdin.as_mut().unwrap().write_all(&sent).unwrap();
    let mut all = vec![0; sent.len()];
    stream.read_exact(&mut all).unwrap();
    assert!(all == sent);
    send_signal("-KILL", path.0.id());
    path.0.wait().unwrap();
    assert_eq!(read_all(&mut stream), (Vec::new(), Some(EIO)));
    assert!(mounted.read_text(".error").contains("was killed"), "{}", mounted.read_text(".error"));
}

#[test]
fn b2_stream_that_lost_blocks_ends_with_an_error() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let mut path = start_bytes_path(&folder, &mounted);
    let mut stream = File::open(mounted.path("bytes/read:-/all")).unwrap();
    let missed = || mounted.read_number("bytes/read:-/stats/missed_by_readers");
    assert_eq!(missed(), 0);
    // The data exceeds the capacity of a reader's buffer.
    let sent = numbered_bytes(16 << 20);
    path.0.stdin.as_mut().unwrap().write_all(&sent).unwrap();
    wait_until("the loss is counted while the stream is open", || missed() > 0);
    close_input_and_wait_for_exit(&mut path);
    let (all, end) = read_all(&mut stream);
    assert!(all.len() >= 8 << 20, "{} bytes", all.len());
    assert!(all == sent[..all.len()], "the first blocks are whole");
    assert_eq!(end, Some(EIO));
    assert!(
        mounted.read_text(".error").contains("blocks were skipped"),
        "{}",
        mounted.read_text(".error")
    );
}

#[test]
fn b2_stream_of_a_removed_filter_ends_after_its_backlog() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let mut path = start_bytes_path(&folder, &mounted);
    let mut stream = File::open(mounted.path("bytes/read:-/inspect/all")).unwrap();
    let sent = numbered_bytes(6 << 20);
    path.0.stdin.as_mut().unwrap().write_all(&sent).unwrap();
    let passed = || mounted.read_number("bytes/read:-/inspect/stats/bytes");
    wait_until("all has passed the filter", || passed() == sent.len() as u64);
    let removed = folder.run(&["set", "bytes", "remove", "inspect"]);
    assert_eq!(removed.status, Some(0), "{}", removed.err);
    let (all, end) = read_all(&mut stream);
    assert!(all == sent, "{} of {} bytes", all.len(), sent.len());
    assert_eq!(end, Some(EIO));
    close_input_and_wait_for_exit(&mut path);
}
