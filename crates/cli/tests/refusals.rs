//! Tests of sinks that cannot write their output: the message, the exit status, and the remaining
//! files.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use testkit::need;

const REPLAY_WEB_REQUEST: &str = "replay examples/web.pcap";

/// A mounted file system of 64 KB, which is unmounted on drop.
struct SmallFileSystem(std::path::PathBuf);

impl SmallFileSystem {
    fn mount_in(folder: &Folder) -> Option<Self> {
        need::require_root()?;
        let path = folder.path().join("small");
        fs::create_dir(&path).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "none"])
            .arg(&path)
            .status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        need::report_skip("needs to mount a tmpfs")
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn full_disk_is_reported_with_file_and_loss() {
    let folder = Folder::new();
    let Some(_disk) = SmallFileSystem::mount_in(&folder) else { return };
    let source = "generate count=1000 size=1000";
    for (sink, file) in [
        ("files small/out", "small/out/0000"),
        ("pcap small/all.pcap", "small/all.pcap"),
        ("pcap small/split per=connection", "small/split/0000"),
    ] {
        let ran = folder.run(&["run", &format!("{source} | {sink}")]);
        assert_eq!(ran.status, Some(1), "{sink}: {}", ran.err);
        let message = format!("cannot write {file}");
        assert!(ran.err.contains(&message), "{sink}: {}", ran.err);
        assert!(ran.err.contains("no space left on device; free space there"), "{}", ran.err);
        assert!(ran.err.contains("blocks were lost: "), "{sink}: {}", ran.err);
        assert!(ran.err.contains("the ledger balances"), "{sink}: {}", ran.err);
        for entry in fs::read_dir(folder.path().join("small")).unwrap() {
            let path = entry.unwrap().path();
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

#[test]
fn full_device_is_reported_by_every_sink() {
    let folder = Folder::new();
    for sink in ["json", "print", "pcap -"] {
        let line = format!("streamline run -q '{REPLAY_WEB_REQUEST} | {sink}' > /dev/full");
        let ran = CommandResult::from(folder.shell_command(&line).output().unwrap());
        assert_eq!(ran.status, Some(1), "{sink}");
        let message = "cannot write standard output: no space left on device; free space there";
        assert!(ran.err.contains(message), "{sink}: {}", ran.err);
        assert!(ran.err.contains(" blocks were lost: "), "{sink}: {}", ran.err);
        assert!(ran.err.contains("the ledger balances"), "{sink}: {}", ran.err);
    }
}

#[test]
fn failure_of_a_pipeline_is_reported_while_others_continue() {
    let folder = Folder::new();
    for (end, message) in [
        ("pcap /dev/full", "cannot write /dev/full: no space left"),
        ("exec \"cat >/dev/null; exit 7\"", "ended with status 7"),
    ] {
        // The first pipeline continues until the request is stopped.
        let line = format!("exec \"exec sleep 1000\" | discard ; {REPLAY_WEB_REQUEST} | {end}");
        let mut command = folder.streamline_command(&["run", "-q", &line]);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        assert!(first.starts_with("warning: ") && first.contains(message), "{first}");
        assert!(first.ends_with("this pipeline has ended, and the others continue"), "{first}");
        assert_eq!(child.try_wait().unwrap(), None);
        let process = child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &process]).status().unwrap().success());
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{rest:?}");
        assert!(rest.iter().any(|line| line.starts_with("error: ") && line.contains(message)));
    }
}

/// Runs a request as an unprivileged user in the directory. Reports a skip and returns `None` if
/// that is impossible.
fn run_unprivileged(folder: &Folder, line: &str) -> Option<CommandResult> {
    if is_unprivileged() {
        return Some(folder.run(&["run", line]));
    }
    let setpriv = need::require_command("setpriv")?;
    // The shell copies the program. If this process copied it, the copy might still be open for
    // writing in a child of another test, so that it could not be executed (ETXTBSY).
    let copied = format!("test -e streamline || cp '{}' .", env!("CARGO_BIN_EXE_streamline"));
    assert!(folder.shell_command(&copied).status().unwrap().success());
    let output = Command::new(setpriv)
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "./streamline", "run", line])
        .current_dir(folder.path())
        .env("XDG_STATE_HOME", folder.path().join("nowhere"))
        .env("NO_COLOR", "1")
        .output();
    Some(CommandResult::from(output.unwrap()))
}

/// Returns true if this process is not root, so that the kernel can refuse its writes.
fn is_unprivileged() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    uids.split_whitespace().nth(2) != Some("0")
}

#[test]
fn path_name_without_a_daemon_is_refused_with_the_reason() {
    let folder = Folder::new();
    let ran = folder.run(&["run", "--as", "web", "generate count=3 | count"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(3), ""), "{}", ran.err);
    assert!(ran.err.starts_with("error: no daemon is in "), "{}", ran.err);
    assert!(ran.err.contains("note: only `--as` needs a daemon"), "{}", ran.err);
}

#[test]
fn unwritable_directory_is_reported() {
    let folder = Folder::new();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    for (sink, message) in [
        ("files closed", "cannot open closed/index.jsonl: permission denied"),
        ("files closed/out", "cannot make closed/out: permission denied"),
        ("pcap closed per=session", "cannot open closed/index.jsonl: permission denied"),
        ("pcap closed/all.pcap", "cannot open closed/all.pcap: permission denied"),
    ] {
        let Some(ran) = run_unprivileged(&folder, &format!("generate count=3 | {sink}")) else {
            return;
        };
        assert_eq!(ran.status, Some(1), "{sink}: {}", ran.err);
        assert!(ran.err.contains(message), "{sink}: {}", ran.err);
        assert!(ran.err.contains("run as a user who has them"), "{sink}: {}", ran.err);
    }
    assert_eq!(fs::read_dir(&closed).unwrap().count(), 0);
}

#[test]
fn closed_reader_causes_no_error_message() {
    let folder = Folder::new();
    for sink in ["json", "print payload=hex", "pcap -"] {
        let script = format!("{{ streamline 'generate | {sink}'; echo $? >&2; }} | head -c 100");
        let ran = folder
            .shell_command(&format!("{script} | wc -c"))
            .output()
            .map(CommandResult::from)
            .unwrap();
        assert_eq!((ran.out.trim(), ran.err.as_str()), ("100", "141\n"), "{sink}");
    }
}

#[test]
fn directory_link_is_followed_and_dangling_link_reported() {
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("real")).unwrap();
    symlink("real", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    symlink("loop", path("loop")).unwrap();
    let ran = folder.run(&["run", &format!("{REPLAY_WEB_REQUEST} | udp | files link")]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert!(path("real/index.jsonl").is_file());
    for (name, status, message, hint) in [
        (
            "dangling",
            3,
            "cannot open dangling: no such file or directory",
            "it is a link to a directory that does not exist",
        ),
        ("loop", 1, "cannot open loop: too many levels of symbolic links", ""),
    ] {
        for sink in [format!("files {name}"), format!("pcap {name} per=connection")] {
            let ran = folder.run(&["run", &format!("{REPLAY_WEB_REQUEST} | {sink}")]);
            assert_eq!(ran.status, Some(status), "{sink}: {}", ran.err);
            assert!(ran.err.contains(message) && ran.err.contains(hint), "{sink}: {}", ran.err);
        }
    }
    assert!(!path("nowhere").exists());
}

#[test]
fn h10_connection_captures_equal_those_of_tcpdump() {
    let folder = Folder::new();
    let ran = folder.run(&["run", &format!("{REPLAY_WEB_REQUEST} | pcap split per=connection")]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let Some(tcpdump) = need::require_command("tcpdump") else { return };
    let frames = |file: &str, filter: &str| {
        let output = Command::new(&tcpdump)
            .args(["-nn", "-tt", "-r", file, filter])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{file}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (mut files, mut lines) = (0, 0);
    for entry in fs::read_dir(folder.path().join("split")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(about) = name.strip_suffix(".pcap") else { continue };
        let ends: Vec<&str> = about.split('-').skip(1).collect();
        let filter: Vec<String> = ends.iter().map(|end| endpoint_expression(end)).collect();
        let filter = match filter.is_empty() {
            true => "arp".to_owned(),
            false => format!("({0}) or (vlan and {0})", filter.join(" and ")),
        };
        let ours = frames(&format!("split/{name}"), "");
        assert_eq!(ours, frames("examples/web.pcap", &filter), "{name}");
        files += 1;
        lines += ours.lines().count();
    }
    assert_eq!(lines, 105);
    assert!(files > 5, "{files} files");
}

/// Converts an endpoint in the syntax of file names (`10.0.0.1.80`, `2001_db8__1.80`, or `10.0.0.1`
/// without a port) to a filter expression, such as `host 10.0.0.1 and port 80`. If the endpoint has
/// no port, the expression matches ICMP.
fn endpoint_expression(end: &str) -> String {
    let (address, port) = match (end.contains('_'), end.matches('.').count()) {
        (false, 3) => (end, None),
        _ => end.rsplit_once('.').map(|(address, port)| (address, Some(port))).unwrap(),
    };
    let address = address.replace('_', ":");
    match port {
        Some(port) => format!("host {address} and port {port}"),
        None => format!("host {address} and icmp"),
    }
}

#[test]
fn tcpdump_syntax_is_refused_with_the_equivalent() {
    let folder = Folder::new();
    for (words, command) in [
        (&["-r", "examples/web.pcap", "tcp", "port", "80"][..], "bpf \"tcp port 80\" | print"),
        (&["run", "-r", "examples/web.pcap", "-w", "x.pcap"], "pcap x.pcap"),
        (&["tcpdump", "-nr", "examples/web.pcap", "-c", "2"], "print"),
    ] {
        let refused = folder.run(words);
        assert_eq!(refused.status, Some(2), "{}", refused.err);
        assert!(refused.err.contains("` is written for tcpdump\n"), "{}", refused.err);
        let (_, written) = refused.err.split_once("  write: streamline ").unwrap();
        let line = written.split('\'').nth(1).unwrap();
        assert_eq!(line, format!("replay examples/web.pcap | {command}"));
        let ran = folder.run(&["run", line]);
        assert_eq!(ran.status, Some(0), "{}", ran.err);
    }
    let refused = folder.run(&["tcp", "port", "80"]);
    let message = [
        "error: `tcp port 80` is written for tcpdump\n",
        "  tcp port 80\n",
        "  ^^^^^^^^^^^ write `rx | bpf \"tcp port 80\" | print`\n",
    ];
    assert_eq!((refused.status, refused.err), (Some(2), message.concat()));
}
