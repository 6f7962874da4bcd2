//! Tests of named sources and sinks of a path (`user`, `socket` and `buffer`). `streamline cat`
//! opens them, as the path's user and as another user.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{ChildGuard, CommandResult, Folder};
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::{need, wait_until};

const BOB: u32 = 41_012;
/// Number of TCP frames in `web.pcap`.
const TCP_FRAMES: u64 = 90;
/// Number of bytes in the TCP frames of `web.pcap`.
const TCP_BYTES: usize = 26_707;

/// Returns a name for a source or sink that no other test uses.
fn unique_name() -> String {
    static NEXT_NAME_NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("cli-{}-{}", std::process::id(), NEXT_NAME_NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Starts a command whose output is captured.
fn spawn_with_captured_output(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn wait_for_output(child: Child) -> CommandResult {
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    CommandResult { out, err, status: output.status.code() }
}

/// Waits until a process has created a source or sink with this name.
fn wait_for_endpoint(name: &str) {
    wait_until("the name is there", || {
        let names = std::fs::read_to_string("/proc/net/unix").unwrap();
        names.lines().any(|line| line.ends_with(&format!("/{name}")))
    });
}

fn parse_report(ran: &CommandResult) -> serde_json::Value {
    let line = ran.err.lines().find(|line| line.starts_with('{')).unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {}", ran.err))
}

#[test]
fn h19_readers_get_every_block_of_a_path_that_waits() {
    let (folder, name) = (Folder::new(), unique_name());
    let line = format!("replay examples/web.pcap | bpf \"tcp\" | user name={name} full=wait");
    let path = spawn_with_captured_output(folder.streamline_command(&["run", "--json", &line]));
    wait_for_endpoint(&name);
    let reader = folder.streamline_command(&["cat", &name]).output().unwrap();
    assert_eq!((reader.status.code(), reader.stdout.len()), (Some(0), TCP_BYTES));
    let ran = wait_for_output(path);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let report = parse_report(&ran);
    assert_eq!((&report["balanced"], &report["lost"]), (&true.into(), &0.into()), "{report}");
}

#[test]
fn h19_blocks_without_a_reader_are_dropped_and_counted() {
    let (folder, name) = (Folder::new(), unique_name());
    let line = format!("replay examples/web.pcap | bpf \"tcp\" | user {name}");
    let ran = folder.run(&["run", "--json", &line]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let report = parse_report(&ran);
    assert_eq!((&report["balanced"], &report["lost"]), (&true.into(), &TCP_FRAMES.into()));
    assert_eq!(folder.run(&["run", "--no-loss", &line]).status, Some(1));
}

#[test]
fn h19_waiting_path_without_a_reader_ends_when_stopped() {
    let (folder, name) = (Folder::new(), unique_name());
    let line = format!("replay examples/web.pcap | user {name} full=wait");
    let path = spawn_with_captured_output(folder.streamline_command(&["run", "--json", &line]));
    wait_for_endpoint(&name);
    let stopped = Command::new("kill").args(["-INT", &path.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let ran = wait_for_output(path);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_eq!(parse_report(&ran)["balanced"], true, "{}", ran.err);
}

#[test]
fn h19_blocks_of_several_writers_reach_the_path() {
    let (folder, name) = (Folder::new(), unique_name());
    let line = format!("buffer {name} link=none | count");
    let path = spawn_with_captured_output(folder.streamline_command(&["run", "-c", "30", &line]));
    wait_for_endpoint(&name);
    let writers: Vec<Child> = (0..3)
        .map(|_| {
            let mut command = folder.streamline_command(&["cat", "--write", "--lines", &name]);
            let mut writer = command.stdin(Stdio::piped()).spawn().unwrap();
            writer.stdin.take().unwrap().write_all(&b"a line\n".repeat(10)).unwrap();
            writer
        })
        .collect();
    for writer in writers {
        assert_eq!(wait_for_output(writer).status, Some(0));
    }
    let ran = wait_for_output(path);
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), "30 blocks, 210 bytes\n"), "{}", ran.err);
}

#[test]
fn h19_blocks_of_an_unread_writer_are_counted_on_a_stop() {
    let (folder, name) = (Folder::new(), unique_name());
    // The sink waits for a reader of the first block, so the source adopts no further writer.
    let line = format!("buffer {name} link=none | user {} full=wait", unique_name());
    let path = spawn_with_captured_output(folder.streamline_command(&["run", "--json", &line]));
    wait_for_endpoint(&name);
    let write = |bytes: &[u8]| {
        let mut command = folder.streamline_command(&["cat", "--write", "--lines", &name]);
        let mut writer = command.stdin(Stdio::piped()).spawn().unwrap();
        writer.stdin.take().unwrap().write_all(bytes).unwrap();
        assert_eq!(wait_for_output(writer).status, Some(0));
    };
    write(b"first\n");
    write(&b"a line\n".repeat(100));
    let stopped = Command::new("kill").args(["-INT", &path.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    let report = parse_report(&wait_for_output(path));
    let unread = &report["sources"][0]["dropped"]["unread"];
    assert_eq!((&report["balanced"], unread), (&true.into(), &100.into()), "{report}");
}

/// A stopped reader leaves room for the beginning of a block only.
#[test]
fn h19_block_of_which_a_part_is_written_counts_as_cut_short() {
    let (folder, input, output) = (Folder::new(), unique_name(), unique_name());
    let line = format!("buffer {input} link=none last=yes | user {output} size=64K");
    let path = spawn_with_captured_output(folder.streamline_command(&["run", "--json", &line]));
    wait_for_endpoint(&input);
    wait_for_endpoint(&output);
    let mut last = folder.streamline_command(&["cat", "--write", &input]);
    let mut last = ChildGuard(last.stdin(Stdio::piped()).spawn().unwrap());
    let mut to_last = last.0.stdin.take().unwrap();
    let mut reader = ChildGuard(spawn_piped(&mut folder.streamline_command(&["cat", &output])));
    // Blocks are dropped until the reader is there.
    let mut text = reader.0.stdout.take().unwrap();
    let first = std::thread::spawn(move || {
        let mut byte = [0];
        std::io::Read::read_exact(&mut text, &mut byte).unwrap();
        text
    });
    wait_until("the reader gets a block", || {
        to_last.write_all(b"x").unwrap();
        first.is_finished()
    });
    let stopped = Command::new("kill").args(["-STOP", &reader.0.id().to_string()]).status();
    assert!(stopped.unwrap().success());
    let block = folder.path().join("block");
    std::fs::write(&block, [b'y'; 64 << 10]).unwrap();
    let mut writer = folder.streamline_command(&["cat", "--write", &input]);
    assert!(writer.stdin(std::fs::File::open(block).unwrap()).status().unwrap().success());
    // The path ends after its last writer.
    drop(to_last);
    let report = parse_report(&wait_for_output(path));
    let filters = report["filters"].as_array().unwrap();
    let sink = filters.iter().find(|filter| filter["name"] == "user").unwrap();
    assert_eq!(sink["dropped"]["cut short"]["blocks"], 1, "{report}");
}

#[test]
fn h19_unusable_name_is_refused_with_a_reason() {
    let (folder, name) = (Folder::new(), unique_name());
    let unknown = folder.run(&["cat", &name]);
    assert_eq!(unknown.status, Some(3));
    assert!(unknown.err.contains(&format!("/{name} in this network namespace")), "{}", unknown.err);
    assert_eq!(folder.run(&["cat", "no name"]).status, Some(2));
    let _path = ChildGuard(spawn_with_captured_output(
        folder.streamline_command(&["run", &format!("buffer {name} | discard")]),
    ));
    wait_for_endpoint(&name);
    let inbox = folder.run(&["cat", &name]);
    assert!(inbox.status == Some(1) && inbox.err.contains("an inbox"), "{}", inbox.err);
    let taken = folder.run(&["run", &format!("replay examples/web.pcap | user {name}")]);
    assert!(taken.status == Some(1) && taken.err.contains("is taken"), "{}", taken.err);
}

#[test]
fn h19_p6_mode_decides_which_users_may_read_and_write() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    for (mode, is_permitted) in [("600", false), ("644", true)] {
        let name = unique_name();
        let line = format!("replay examples/web.pcap | user {name} full=wait mode={mode}");
        let path =
            ChildGuard(spawn_with_captured_output(folder.streamline_command(&["run", &line])));
        wait_for_endpoint(&name);
        let mut bobs = folder.command_as_user((BOB, BOB), None);
        let reader =
            wait_for_output(spawn_piped(bobs.args(["cat", "-c", "1", &format!("0/{name}")])));
        assert_eq!(
            (reader.status == Some(0), reader.err.is_empty()),
            (is_permitted, is_permitted),
            "{mode}: {}",
            reader.err
        );
        assert!(is_permitted || reader.err.contains("600"), "{}", reader.err);
        drop(path);
    }
}

fn spawn_piped(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Number and length in bytes of the blocks that a path generates in the tests of ring sizes. The
/// total exceeds the size of the largest ring many times.
const BLOCK_COUNT_AND_LENGTH: (usize, usize) = (20_000, 1400);

/// Runs a path that waits for its readers, and a reader. `arguments` are further arguments of the
/// path's sink `user`. Returns the bytes that the reader received, and the path's report.
fn read_generated_blocks(arguments: &str) -> (Vec<u8>, serde_json::Value) {
    let (folder, name, (blocks, length)) = (Folder::new(), unique_name(), BLOCK_COUNT_AND_LENGTH);
    let line = format!(
        "generate count={blocks} size={length} seq=yes | user {name} full=wait {arguments}"
    );
    let path = spawn_with_captured_output(folder.streamline_command(&["run", "--json", &line]));
    wait_for_endpoint(&name);
    let reader = folder.streamline_command(&["cat", &name]).output().unwrap();
    assert_eq!(reader.status.code(), Some(0));
    let ran = wait_for_output(path);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    (reader.stdout, parse_report(&ran))
}

/// Runs a path without a requested ring size. Asserts that the ring of its sink grows while the
/// reader is slow, within the range that `explain` prints, and that the reader receives every byte.
#[test]
fn f6_ring_for_readers_grows_within_the_explained_range() {
    let explained = Folder::new().run(&["explain", "--json", "generate | user full=wait"]);
    let explained: serde_json::Value = serde_json::from_str(&explained.out).unwrap();
    let range = &explained["reader_rings"][0];
    let (least, most) = (range["least"].as_u64().unwrap(), range["most"].as_u64().unwrap());
    assert!(least == 1 << 20 && most >= least, "{range}");
    let (sized, report) = read_generated_blocks("");
    let (fixed, fixed_report) = read_generated_blocks("size=64K");
    assert_eq!(sized.len(), BLOCK_COUNT_AND_LENGTH.0 * BLOCK_COUNT_AND_LENGTH.1);
    assert!(sized == fixed, "the size of the ring changed the bytes");
    let sink = |report: &serde_json::Value| {
        let filters = report["filters"].as_array().unwrap();
        filters.iter().find(|filter| filter["name"] == "user").unwrap()["ring"].clone()
    };
    let (ring, fixed) = (sink(&report), sink(&fixed_report));
    assert_eq!((&fixed["bytes"], &fixed["grown"]), (&65_536.into(), &0.into()), "{fixed}");
    let bytes = ring["bytes"].as_u64().unwrap();
    assert!((least..=most).contains(&bytes), "{ring}");
    let grew = ring["grown"].as_u64() > Some(0) && ring["because"] != "";
    assert!(grew || most == least, "{ring}");
}

/// `top` and `explain` print the rings through which other programs write to a path. They also
/// print the past frames that a sink retains, and the memory for these frames.
#[test]
fn f6_d16_top_shows_rings_of_writers_and_retained_frames() {
    let (folder, name) = (Folder::new(), unique_name());
    let _daemon = folder.start_daemon();
    let line = format!(
        "buffer {name} link=none | discard; \
         generate rate=2000 | freeze f.pcap when=\"udp[0] = 1\""
    );
    let explained = folder.run(&["explain", &line]).out;
    assert!(explained.contains("its writers → buffer: 1024 to "), "{explained}");
    assert!(explained.contains("freeze: frames in 65536 KB; older ones are"), "{explained}");
    let _path = folder.spawn_named_path("takes", &line);
    wait_for_endpoint(&name);
    let mut writer = folder.streamline_command(&["cat", "--write", &name]);
    let mut writer = writer.stdin(Stdio::piped()).spawn().unwrap();
    writer.stdin.as_mut().unwrap().write_all(b"hello").unwrap();
    let _writer = ChildGuard(writer);
    let node = |rows: &serde_json::Value, key: &str, name: &str| {
        let rows = rows.as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row[key] == name)
    };
    wait_until("a writer and kept frames are shown", || {
        let top = folder.run(&["top", "--once", "--json", "takes"]);
        let top: serde_json::Value = serde_json::from_str(&top.out).unwrap();
        let ring = node(&top["writer_rings"], "from", "buffer").unwrap_or_default();
        let kept = node(&top["kept"], "node", "freeze").unwrap_or_default();
        assert!(top["reader_rings"].as_array().unwrap().is_empty(), "{top}");
        ring["bytes"].as_u64() >= Some(1 << 20)
            && kept["blocks"].as_u64() > Some(10)
            && kept["stored"].as_u64() > kept["bytes"].as_u64()
    });
    let picture = folder.run(&["top", "--once", "takes"]).out;
    assert!(picture.contains("its writers → buffer  1"), "{picture}");
    assert!(picture.contains("freeze keeps "), "{picture}");
}

/// `top` prints the current size of the ring of a running path, and the reason for its last change.
#[test]
fn f6_top_shows_the_size_of_a_ring_for_readers_and_why() {
    let (folder, name) = (Folder::new(), unique_name());
    let _daemon = folder.start_daemon();
    let _path =
        folder.spawn_named_path("offers", &format!("generate size=1400 | user {name} full=wait"));
    let mut reader = folder.streamline_command(&["cat", &name]);
    let _reader = ChildGuard(reader.stdout(Stdio::null()).spawn().unwrap());
    let explained = folder.run(&["explain", &format!("generate | user {name} full=wait")]).out;
    let grows = explained.contains("→ its readers: 1024 to ");
    wait_until("the ring has grown", || {
        let top = folder.run(&["top", "--once", "--json", "offers"]);
        let top: serde_json::Value = serde_json::from_str(&top.out).unwrap();
        let ring = &top["reader_rings"][0];
        assert_eq!(ring["from"], "user", "{top}");
        ring["bytes"].as_u64() > Some(1 << 20) && ring["because"] != "" || !grows
    });
    let picture = folder.run(&["top", "--once", "offers"]).out;
    let line = picture.lines().find(|line| line.contains("user → its readers")).unwrap();
    assert!(line.contains(" MB (") || !grows, "{picture}");
}
