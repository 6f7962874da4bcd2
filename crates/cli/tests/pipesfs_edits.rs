//! Tests of changes to the tree of PipesFS (`mkdir`, `mv`, `ln -s`, `rmdir`). Each change is an
//! edit of a running path.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::pipes_mount::{PipesMount, ProcessGuard, run_in_mount, send_signal, stop_process};
use common::{ChildGuard, Folder};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink};
use std::process::{Command, Stdio};
use testkit::{need, wait_until};

const ETIMEDOUT: i32 = 110;
const EBUSY: i32 = 16;
const EPERM: i32 = 1;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const ENOTEMPTY: i32 = 39;
const EEXIST: i32 = 17;
const EXDEV: i32 = 18;

/// A daemon, a path named `web`, and a mount in which tests edit the path.
struct EditFixture {
    mounted: PipesMount,
    _path: ChildGuard,
    _daemon: ChildGuard,
    folder: Folder,
}

impl EditFixture {
    fn new(line: &str) -> Option<Self> {
        Self::with_options(line, &[])
    }

    fn with_options(line: &str, options: &[&str]) -> Option<Self> {
        let folder = Folder::new();
        let daemon = folder.start_daemon();
        let mounted = PipesMount::new(&folder, options)?;
        let path = folder.spawn_named_path("web", line);
        wait_until("it is shown", || mounted.path("web").is_dir());
        Some(Self { mounted, _path: path, _daemon: daemon, folder })
    }

    fn request(&self) -> String {
        self.mounted.read_text("web/request").trim_end().to_owned()
    }

    fn make_directory(&self, name: &str) -> Result<(), i32> {
        map_to_errno(fs::create_dir(self.mounted.path(name)))
    }

    fn remove_directory(&self, name: &str) -> Result<(), i32> {
        map_to_errno(fs::remove_dir(self.mounted.path(name)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), i32> {
        map_to_errno(fs::rename(self.mounted.path(from), self.mounted.path(to)))
    }

    fn make_symbolic_link(&self, target: &str, name: &str) -> Result<(), i32> {
        map_to_errno(symlink(target, self.mounted.path(name)))
    }

    fn last_edit_error(&self) -> String {
        self.mounted.read_text(".error")
    }
}

/// Converts the I/O error of a file system operation to its error number (`errno`).
fn map_to_errno(done: std::io::Result<()>) -> Result<(), i32> {
    done.map_err(|error| error.raw_os_error().unwrap())
}

#[test]
fn b3_mkdir_adds_a_filter_below_a_filter_or_a_class() {
    let Some(web) = EditFixture::new("generate rate=1000 | udp | dport |9 count") else { return };
    web.make_directory("web/generate/udp/dport/9/inspect").unwrap();
    assert!(web.mounted.path("web/generate/udp/dport/9/inspect/stats").is_dir());
    // The directory of a class always exists, but mkdir(2) succeeds nevertheless.
    let before = web.request();
    assert!(web.mounted.path("web/generate/udp/dport/53").is_dir());
    web.make_directory("web/generate/udp/dport/53").unwrap();
    assert_eq!(web.request(), before);
    web.make_directory("web/generate/udp/dport/53/count").unwrap();
    assert_eq!(web.make_directory("web/generate/udp/dport/53"), Err(EEXIST), "an arc carries it");
    assert_eq!(
        web.make_directory("web/generate/udp/dport/70000"),
        Err(EINVAL),
        "no class of `dport`"
    );
    web.make_directory("web/generate/udp/sample:3").unwrap();
    web.make_directory("web/generate/udp/bpf:udp port 9").unwrap();
    assert_eq!(
        web.request(),
        "generate rate=1000 | udp | (dport | (|9 count + |9 inspect + |53 count)) + \
         (sample 3 | discard) + (bpf \"udp port 9\" | discard)",
        "a directory alone does not begin to print"
    );
    assert_eq!(web.mounted.read_text("web/generate/udp/sample:3/config/every"), "3\n");
    for (name, errno, why) in [
        ("web/generate/udp/nonsense", EINVAL, "no filter is called `nonsense`"),
        ("web/generate/udp/rx:lo", EINVAL, "`rx` is a source"),
        ("web/generate/udp/sample:x", EINVAL, "sample"),
        ("web/generate/udp/sample:3 | exec sh", EINVAL, "`sample \"3 | exec sh\"`"),
        ("web/generate/udp/count#7", EINVAL, "`#` precedes the number"),
        ("web/generate/udp/stats/count", EPERM, "it is a view"),
        ("web/generate/udp/exec:sh", EPERM, "`exec` opens files or runs a program"),
        ("web/generate/udp/pcap:x", EPERM, "mount with `streamline mount -o exec DIR`"),
        (".filters/nonsense", EPERM, "there is no filter here"),
        ("count", EINVAL, "`count` is not a source"),
        ("no:filter", EINVAL, "neither a filter nor a name"),
    ] {
        let before = web.request();
        assert_eq!(web.make_directory(name), Err(errno), "{name}");
        let error = web.last_edit_error();
        assert!(error.starts_with(&format!("mkdir {name}: ")), "{name}: {error}");
        if name != "web/generate/udp/sample:3 | exec sh" {
            assert!(error.contains(why), "{name}: {error}");
        }
        assert_eq!(web.request(), before, "{name}");
    }
}

#[test]
fn b3_option_exec_permits_filters_that_open_files() {
    let line = "generate rate=1000 | udp | count";
    let Some(web) = EditFixture::with_options(line, &["-o", "exec"]) else { return };
    let file = web.folder.path().join("frames.pcap");
    let name = file.display().to_string().replace('/', "%2F");
    web.make_directory(&format!("web/generate/pcap:{name}")).unwrap();
    wait_until("it is written", || fs::metadata(&file).is_ok_and(|about| about.len() > 0));
}

#[test]
fn b6_filter_moves_with_its_state_and_its_subtree() {
    let line = "generate rate=2000 seq=yes | (udp | dport |9 count) + sample 2";
    let Some(web) = EditFixture::new(line) else { return };
    let blocks = "generate/udp/dport/9/count/stats/blocks";
    wait_until("blocks come", || web.mounted.read_number(&format!("web/{blocks}")) > 100);
    let inode = |name: &str| fs::metadata(web.mounted.path(name)).unwrap().ino();
    let before = inode("web/generate/udp/dport");
    let counted = web.mounted.read_number(&format!("web/{blocks}"));
    web.rename("web/generate/udp", "web/generate/sample:2/udp").unwrap();
    assert_eq!(web.request(), "generate rate=2000 seq=yes | sample 2 | udp | dport |9 count");
    assert_eq!(inode("web/generate/sample:2/udp/dport"), before);
    assert!(!web.mounted.path("web/generate/udp").exists());
    let now = web.mounted.read_number("web/generate/sample:2/udp/dport/9/count/stats/blocks");
    assert!(now >= counted, "{now} after {counted}");
    // A new name with other arguments changes the arguments of the filter.
    web.rename("web/generate/sample:2", "web/generate/sample:5").unwrap();
    assert_eq!(web.mounted.read_text("web/generate/sample:5/config/every"), "5\n");
    for (from, to, errno, why) in [
        ("web/generate/sample:5", "web/generate/count", EOPNOTSUPP, "stays the same filter"),
        ("web/generate/sample:5", "web/generate/sample:5/udp/sample:5", EINVAL, ""),
        ("web/generate/sample:5/udp", "udp", EOPNOTSUPP, "only a source begins a path"),
        ("web/generate", "web/generate/sample:5/generate", EINVAL, ""),
        ("web", "net", EOPNOTSUPP, "a path keeps its name"),
        ("web/generate/stats", "web/generate/x", EPERM, "it is a view"),
    ] {
        let before = web.request();
        let refused = web.rename(from, to).unwrap_err();
        assert_eq!(refused, errno, "mv {from} {to}: {}", web.last_edit_error());
        assert_ne!(refused, EXDEV, "mv would copy and delete");
        assert!(why.is_empty() || web.last_edit_error().contains(why), "{}", web.last_edit_error());
        assert_eq!(web.request(), before);
    }
}

#[test]
fn b6_reader_stays_open_while_its_filter_moves() {
    let line = "generate rate=2000 seq=yes | (udp | dport |9 count) + sample 2";
    let Some(web) = EditFixture::new(line) else { return };
    const O_NONBLOCK: i32 = 0o4000;
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(O_NONBLOCK);
    let open = |name: &str| options.open(web.mounted.path(name)).unwrap();
    let mut streams = [open("web/generate/udp/all"), open("web/generate/udp/dport/9/count/all")];
    let mut read = |at: usize| {
        let mut bytes = vec![0; 1 << 16];
        match streams[at].read(&mut bytes) {
            Ok(length) => {
                assert!(length > 0, "the stream goes on");
                length
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("{error}"),
        }
    };
    for at in 0..2 {
        wait_until("it is read", || read(at) > 0);
    }
    for (from, to) in [
        ("web/generate/udp", "web/generate/sample:2/udp"),
        ("web/generate/sample:2/udp", "web/generate/udp"),
    ] {
        web.rename(from, to).unwrap();
        let counted = || web.mounted.read_number("web/generate/stats/blocks");
        for at in 0..2 {
            // After 1000 more blocks, the reader receives blocks that left the filter after the
            // move.
            let since = counted();
            let mut bytes = 0;
            wait_until("it is read on", || {
                bytes += read(at);
                counted() > since + 1000 && bytes > 10_000
            });
        }
    }
}

#[test]
fn b4_trees_are_removed_leaf_by_leaf_each_filter_once() {
    let line =
        "generate rate=1000 | (udp | dport | (|9 count + |10:20 (sample 2 | count))) + inspect";
    let Some(web) = EditFixture::new(line) else { return };
    assert_eq!(web.remove_directory("web/generate/udp"), Err(ENOTEMPTY));
    assert!(web.last_edit_error().contains("it is not empty"), "{}", web.last_edit_error());
    let mut events = Command::new("cat");
    events.arg(".events").current_dir(&web.mounted.directory).stdout(Stdio::piped());
    let mut events = ProcessGuard(events.spawn().unwrap());
    let mut lines = BufReader::new(events.0.stdout.take().unwrap()).lines();
    assert!(lines.next().is_some_and(|line| line.unwrap().contains(" web ")));
    let (_, status) = run_in_mount(&web.mounted, "rm -r web/generate/udp/dport/10:20 2>&1");
    assert_eq!(status, 0, "{}", web.last_edit_error());
    assert_eq!(web.request(), "generate rate=1000 | (udp | dport |9 count) + inspect");
    assert_eq!(
        run_in_mount(&web.mounted, "rm -r web/generate/udp").1,
        0,
        "{}",
        web.last_edit_error()
    );
    assert_eq!(web.request(), "generate rate=1000 | inspect");
    // A named path without filters becomes an empty stream, to which programs can write.
    assert_eq!(run_in_mount(&web.mounted, "rm -r web/generate").1, 0, "{}", web.last_edit_error());
    assert_eq!(web.request(), "stream | discard");
    assert!(web.mounted.entry_names("web").contains("all"));
    assert_eq!(run_in_mount(&web.mounted, "rm -r web").1, 0, "{}", web.last_edit_error());
    assert!(!web.mounted.path("web").exists());
    let lines: Vec<String> =
        lines.map(Result::unwrap).take_while(|line| !line.starts_with("went")).collect();
    let _ = events.0.kill();
    let changed = lines.iter().filter(|line| line.starts_with("changed")).count();
    // Two filters below the class, three at and below `udp`, and `generate` and `inspect`.
    assert_eq!(changed, 2 + 3 + 2, "{lines:#?}");
}

#[test]
fn b3_frame_filter_is_refused_below_a_stream_of_bytes() {
    let Some(web) =
        EditFixture::new("generate rate=1000 | (udp | count) + (tcp | http |get count)")
    else {
        return;
    };
    web.make_directory("notes").unwrap();
    for name in ["dport", "tcp", "ip", "bpf:udp"] {
        assert_eq!(web.make_directory(&format!("notes/{name}")), Err(EINVAL), "{name}");
        let (error, filter) = (web.last_edit_error(), name.split(':').next().unwrap());
        assert!(error.contains(&format!("`{filter}` needs ")), "{error}");
        assert!(error.contains("form=frame"), "{error}");
    }
    assert_eq!(web.rename("web/generate/udp", "notes/udp"), Err(EOPNOTSUPP));
    assert!(web.last_edit_error().contains("`udp` needs frames"), "{}", web.last_edit_error());
    assert_eq!(web.mounted.read_text("notes/request"), "stream | discard\n");
    // Below the same stream, a filter that reads bytes is accepted. Below a source of frames, a
    // filter that needs frames is accepted.
    web.rename("web/generate/tcp/http/get", "notes/get").unwrap();
    assert_eq!(web.mounted.read_text("notes/request"), "stream | http |get count\n");
    web.make_directory("stream:form=frame").unwrap();
    web.make_directory("stream/dport").unwrap();
    assert_eq!(run_in_mount(&web.mounted, "rm -r notes stream").1, 0, "{}", web.last_edit_error());
}

#[test]
fn b5_symbolic_link_adds_a_parent() {
    let line = "generate rate=1000 | (udp | dport |9 count) + (sample 2 | inspect)";
    let Some(web) = EditFixture::new(line) else { return };
    web.make_symbolic_link("../udp/dport/9/count", "web/generate/sample:2/count").unwrap();
    let target = fs::read_link(web.mounted.path("web/generate/sample:2/count")).unwrap();
    assert_eq!(target.to_str(), Some("../udp/dport/9/count"));
    assert!(web.mounted.path("web/generate/sample:2/count/stats").is_dir());
    assert!(web.request().contains("--name=count"), "{}", web.request());
    let absolute = web.mounted.path("web/generate/sample:2/inspect").display().to_string();
    web.make_symbolic_link(&absolute, "web/generate/udp/inspect").unwrap();
    // Moving a link replaces one additional parent with another.
    web.rename("web/generate/sample:2/count", "web/generate/count").unwrap();
    fs::remove_file(web.mounted.path("web/generate/count")).unwrap();
    assert_eq!(
        run_in_mount(&web.mounted, "rm web/generate/udp/inspect").1,
        0,
        "{}",
        web.last_edit_error()
    );
    assert_eq!(web.request(), line);
    for (target, name, errno, why) in [
        ("../udp", "web/generate/sample:2/count", EINVAL, "has the filter's name: `udp`"),
        ("/etc/passwd", "web/generate/udp/passwd", EINVAL, "is not a filter of this tree"),
        ("..", "web/generate/udp/generate", EINVAL, ""),
        ("../../../../../..", "web/generate/udp/x", EINVAL, "is not a filter of this tree"),
    ] {
        let linked = web.make_symbolic_link(target, name);
        if target == ".." {
            // A back edge may be permitted or refused, depending on the filters.
            continue;
        }
        assert_eq!(linked, Err(errno), "{target} {name}: {}", web.last_edit_error());
        assert!(web.last_edit_error().contains(why), "{}", web.last_edit_error());
    }
}

#[test]
fn b6_directory_of_several_paths_cannot_be_edited() {
    let line = "generate rate=1000 | udp | count";
    let Some(web) = EditFixture::new(line) else { return };
    let _both: Vec<_> =
        (0..2).map(|_| web.folder.spawn_without_output(&["run", "-q", line])).collect();
    let two = || web.folder.run(&["ps"]).out.lines().count() == 4;
    wait_until("both are listed", two);
    wait_until("both are shown", || web.make_directory("generate/udp/inspect") == Err(EBUSY));
    let error = web.last_edit_error();
    assert!(error.contains("begin alike") && error.contains("paths 2, 3"), "{error}");
    assert_eq!(web.remove_directory("generate/udp/count"), Err(EBUSY));
    assert_eq!(web.rename("generate/udp/count", "generate/count"), Err(EBUSY));
}

#[test]
fn b6_filter_and_class_move_to_another_path() {
    let line = "generate rate=2000 | (udp | count) + (tcp | http | \
                (|get (count + inspect) + |post inspect))";
    let Some(web) = EditFixture::new(line) else { return };
    web.make_directory("clean").unwrap();
    assert_eq!(web.mounted.read_text("clean/request"), "stream | discard\n");
    assert!(web.mounted.entry_names("clean").contains("all"));
    let blocks = || web.mounted.read_number("web/generate/udp/count/stats/blocks");
    wait_until("blocks come", || blocks() > 100);
    web.rename("web/generate/udp/count", "clean/count").unwrap();
    assert_eq!(web.mounted.read_text("clean/request"), "stream | count\n");
    assert!(web.mounted.path("clean/count/stats").is_dir());
    let (out, status) = run_in_mount(&web.mounted, "mv web/generate/tcp/http/get clean/ 2>&1");
    assert_eq!((out.as_str(), status), ("", 0), "{}", web.last_edit_error());
    assert_eq!(
        web.mounted.read_text("clean/request"),
        "stream | count + (http |get count + inspect)\n"
    );
    assert_eq!(web.request(), "generate rate=2000 | (udp | discard) + (tcp | http |post inspect)");
    assert!(web.mounted.path("clean/http/get/inspect").is_dir());
    // A class without filters below it can also be moved.
    web.rename("web/generate/tcp/http/head", "clean/head").unwrap();
    let request = web.mounted.read_text("clean/request");
    assert!(request.contains("(http |head discard)"), "{request}");
    assert_eq!(run_in_mount(&web.mounted, "rm -r clean").1, 0, "{}", web.last_edit_error());
    assert!(!web.mounted.path("clean").exists());
}

#[test]
fn b3_source_begins_a_path_and_its_removal_ends_it() {
    let Some(web) = EditFixture::new("generate rate=1000 | count") else { return };
    web.make_directory("generate:rate=5").unwrap();
    wait_until("it is shown", || web.mounted.path("generate/discard").is_dir());
    web.make_directory("generate/sample:7").unwrap();
    assert_eq!(web.remove_directory("generate"), Err(ENOTEMPTY));
    web.remove_directory("generate/sample:7").unwrap();
    web.remove_directory("generate").unwrap();
    assert!(!web.mounted.path("generate").exists());
    // A source can also be added to an existing path.
    web.make_directory("web/generate:rate=7").unwrap();
    assert_eq!(web.request(), "generate rate=1000 | count ; generate rate=7 | discard");
}

#[test]
fn b6_each_of_two_concurrent_edits_is_made_or_refused() {
    let Some(web) = EditFixture::new("generate rate=1000 | udp | count") else { return };
    let set = |words: &[&str]| web.folder.run(&[&["set", "web"], words].concat());
    let rounds = 8;
    let (made, set_made) = std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            let make = |round: &usize| {
                web.make_directory(&format!("web/generate/udp/sample:{}", 100 + round))
            };
            (0..rounds).filter(|round| make(round).is_ok()).count()
        });
        let by_set = (0..rounds).filter(|round| {
            let filter = format!("sample {}", 200 + round);
            let result = set(&["add", &filter, "below", "udp"]);
            let is_made = result.status == Some(0);
            assert!(is_made || result.err.contains("another edit came first"), "{}", result.err);
            is_made
        });
        let by_set = by_set.count();
        (made.join().unwrap(), by_set)
    });
    let count = |prefix: &str| web.request().matches(&format!("sample {prefix}")).count();
    wait_until("all that were made are shown", || (count("1"), count("2")) == (made, set_made));
    assert!(made > 0 && set_made > 0, "{}", web.request());
    // A filter that `set` has removed cannot be moved.
    assert_eq!(set(&["remove", "count", "leaf"]).status, Some(0));
    let moved = web.rename("web/generate/udp/count", "web/generate/count");
    assert_eq!(moved, Err(2), "{}", web.last_edit_error());
}

#[test]
fn b6_readers_stay_open_while_filter_moves_to_another_path() {
    let Some(web) = EditFixture::new("stream | http |get count") else { return };
    web.make_directory("clean").unwrap();
    let open = |name: &str| fs::File::open(web.mounted.path(name)).unwrap();
    let mut readers = [open("web/http/get/count/all"), open("web/http/get/count/all.jsonl")];
    let write = |path: &str, number: u32| {
        let request = format!("GET /{number} HTTP/1.1\r\n\r\n");
        fs::write(web.mounted.path(&format!("{path}/all")), &request).unwrap();
        request
    };
    let mut expect_bytes = |expected: &str| {
        let mut bytes = vec![0; expected.len()];
        readers[0].read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
        let (mut line, mut byte) = (Vec::new(), [0]);
        while byte != *b"\n" {
            readers[1].read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let object: serde_json::Value = serde_json::from_slice(&line).unwrap();
        let target = expected.split(' ').nth(1).unwrap();
        assert!(object.to_string().contains(&format!("\"{target}\"")), "{object}");
    };
    expect_bytes(&write("web", 1));
    for (number, (from, to, source)) in
        (2..).zip([("web/http/get", "clean/get", "clean"), ("clean/http/get", "web/get", "web")])
    {
        // This lookup makes the kernel cache the directory of the class before the move.
        assert!(web.mounted.path(from).is_dir());
        web.rename(from, to)
            .unwrap_or_else(|why| panic!("{from}: {why} {}", web.last_edit_error()));
        assert!(!web.mounted.path(&format!("{from}/count")).exists());
        expect_bytes(&write(source, number));
    }
    assert_eq!(web.last_edit_error(), "", "no block was left out");
    drop(readers);
    assert_eq!(run_in_mount(&web.mounted, "rm -r clean").1, 0, "{}", web.last_edit_error());
}

#[test]
fn b6_edit_of_a_stopped_path_times_out_and_is_not_applied() {
    let line = "generate rate=1000 | udp | count";
    let Some(web) = EditFixture::with_options(line, &["-o", "edit_limit=2"]) else { return };
    assert!(web.mounted.path("web/generate/udp").is_dir());
    let process = web._path.0.id();
    stop_process(process);
    assert_eq!(web.make_directory("web/generate/udp/inspect"), Err(ETIMEDOUT));
    send_signal("-CONT", process);
    assert!(web.last_edit_error().contains("did not reply in time"), "{}", web.last_edit_error());
    // The path would apply the withdrawn edit before this one.
    let later = || web.make_directory("web/generate/udp/sample:2").is_ok();
    wait_until("it goes on", later);
    assert_eq!(web.request(), "generate rate=1000 | udp | count + (sample 2 | discard)");
}

#[test]
fn b10_edits_of_a_recorded_path_are_replayed() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &[]) else { return };
    let line = "generate rate=2000 seq=yes | udp | count";
    let mut recording =
        folder.spawn_without_output(&["run", "-q", "--as", "web", "--record=r.pcapng", line]);
    folder.wait_until_listed("web");
    wait_until("it is shown", || mounted.path("web/generate/udp/count").is_dir());
    fs::create_dir(mounted.path("web/generate/udp/sample:3")).unwrap();
    fs::rename(
        mounted.path("web/generate/udp/count"),
        mounted.path("web/generate/udp/sample:3/count"),
    )
    .unwrap();
    let blocks = || mounted.read_number("web/generate/udp/sample:3/count/stats/blocks");
    let before = blocks();
    wait_until("blocks come", || blocks() > before + 50);
    assert_eq!(folder.run(&["stop", "web"]).status, Some(0));
    assert!(recording.0.wait().unwrap().success());
    let again = folder.run(&["run", "--replay", "r.pcapng"]);
    assert_eq!(again.status, Some(0), "{}", again.err);
    for text in ["matches the recorded run", "add sample 3 below udp", "move count from udp below"]
    {
        assert!(again.err.contains(text), "{text}: {}", again.err);
    }
}

#[test]
fn b13_users_edit_their_own_paths_alone() {
    const ALICE: u32 = 41_023;
    const BOB: u32 = 41_024;
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    let _daemon = folder.start_daemon();
    let Some(mounted) = PipesMount::new(&folder, &["--all-users"]) else { return };
    let as_user = |uid: u32, script: &str| {
        let mut command = folder.command_as_user((uid, uid), Some("timeout"));
        command.args(["-s", "KILL", "60", "sh", "-c", script]).current_dir(&mounted.directory);
        let output = command.output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        (String::from_utf8(output.stdout).unwrap() + &error, output.status.code().unwrap_or(-1))
    };
    let (output, status) = as_user(ALICE, "mkdir hers generate:rate=9 && mkdir hers/http");
    let error = as_user(ALICE, "cat .error").0;
    assert_eq!(status, 0, "{output} {error}");
    assert_eq!(fs::metadata(mounted.path("hers")).unwrap().uid(), ALICE);
    assert_eq!(fs::metadata(mounted.path("generate")).unwrap().uid(), ALICE);
    for script in
        ["mkdir hers/count", "rmdir hers", "rm -r hers", "mv hers/http .", "rmdir generate"]
    {
        let (output, status) = as_user(BOB, &format!("{script} 2>&1"));
        assert_ne!(status, 0, "{script}: {output}");
    }
    assert_eq!(mounted.read_text("hers/request"), "stream | http | discard\n");
    let (output, status) = as_user(ALICE, "mkdir hers/http/get/count && rm -r hers generate");
    assert_eq!(status, 0, "{output} {}", as_user(ALICE, "cat .error").0);
    let names: BTreeSet<String> = mounted.entry_names("");
    assert!(!names.contains("hers") && !names.contains("generate"), "{names:?}");
    // Root can edit the paths of all users.
    assert_eq!(as_user(ALICE, "mkdir hers").1, 0);
    fs::create_dir(mounted.path("hers/http")).unwrap();
    assert_eq!(mounted.read_text("hers/request"), "stream | http | discard\n");
    // Filters move between paths of one user.
    assert_eq!(as_user(BOB, "mkdir his").1, 0);
    let refused = fs::rename(mounted.path("hers/http"), mounted.path("his/http")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EPERM), "{refused}");
    assert!(mounted.read_text(".error").contains(&format!("belongs to user {BOB}")));
    assert_eq!(run_in_mount(&mounted, "rm -r hers his").1, 0);
}
