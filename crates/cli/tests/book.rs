//! Tests that run the commands in the book, and compare the output with the output in the book.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use testkit::need;
use testkit::net::{Namespace, is_capturing, wait_until};

/// Shell command that replaces `sleep` in a page. It waits until the server listens on port 8000
/// and a bound packet socket exists. An unbound packet socket receives nothing.
const WAIT_READY_COMMAND: &str = "until grep -q ':1F40 .* 0A ' /proc/net/tcp && \
                     grep -Eq '^[^ ]+ +[0-9]+ +[0-9]+ +0*[1-9a-f][0-9a-f]* +[0-9]+ +1 ' \
                     /proc/net/packet; do :; done";
/// Shell command that replaces `sleep` in a page. It waits until the path is running or its process
/// has exited.
const WAIT_RUNNING_COMMAND: &str = "until ! kill -0 $! 2> /dev/null || \
                    cat /proc/$!/task/*/comm 2> /dev/null | grep -q ^thread; do :; done";

#[test]
fn live_traffic_page_runs_without_privilege() {
    let wanted = ["unshare", "bash", "python3", "curl", "ip"].map(need::require_command);
    let [Some(unshare), Some(bash), Some(_), Some(_), Some(_)] = wanted else { return };
    if !Command::new(&unshare).args(["-Urn", "true"]).output().unwrap().status.success() {
        let _: Option<()> = need::report_skip("needs user namespaces");
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/07-live.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```sh\n").unwrap();
    let (typed, _) = block.split_once("```").unwrap();
    assert!(typed.contains("\nsleep 1\n"), "{typed}");
    let typed = typed.replace("sleep 1", WAIT_READY_COMMAND);
    let folder = Folder::new();
    // The outer shell has the command in its PATH; the inner shell runs in a new network namespace.
    let mut shell = folder.shell_command("exec \"$@\"");
    shell.args(["sh", "timeout", "300"]).arg(unshare).arg("-Urn").arg(bash).arg("-c").arg(typed);
    let ran = CommandResult::from(shell.output().unwrap());
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(lines[0].starts_with("127.0.0.1 - - [") && lines[1].contains("\"curl/"), "{lines:?}");
    assert!(lines[0].contains("\"GET / HTTP/1.1\" 200 "), "{lines:?}");
    assert!(lines[1].contains("\"GET /nothing HTTP/1.1\" 404 "), "{lines:?}");
}

/// Runs the commands on the book's page about time, except those that need an interface.
#[test]
fn time_page_runs_without_privilege() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/12-time.md");
    let page = std::fs::read_to_string(page).unwrap();
    let folder = Folder::new();
    let mut ran = 0;
    for block in page.split("```sh\n").skip(1) {
        let (typed, _) = block.split_once("```").unwrap();
        if typed.starts_with("sudo") {
            continue;
        }
        let typed = typed.replace("tcpdump -r alert.pcap | head", "test -s alert.pcap");
        let script = format!("set -e; {typed}");
        let done = CommandResult::from(folder.shell_command(&script).output().unwrap());
        assert_eq!(done.status, Some(0), "{typed}: {done:?}");
        ran += 1;
        if typed.contains("diff") {
            assert!(done.out.ends_with("the same\n"), "{done:?}");
        }
    }
    assert_eq!(ran, 4);
    assert!(std::fs::metadata(folder.path().join("missing.pcap")).unwrap().len() > 24);
}

/// Runs the commands on the book's page about security, and compares their output with the page.
#[test]
fn j5_security_page_runs_without_privilege() {
    let wanted = ["bash", "pkill", "timeout"].map(need::require_command);
    let [Some(bash), Some(_), Some(_)] = wanted else { return };
    let folder = Folder::new();
    let page = read_page("11-security.md");
    let typed: Vec<&str> =
        page.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    assert_eq!(typed.len(), 2);
    let run = |typed: &str| {
        let mut shell = folder.shell_command("exec \"$@\"");
        shell.args(["sh", "timeout", "300"]).arg(&bash).arg("-c").arg(format!("set -e; {typed}"));
        CommandResult::from(shell.output().unwrap())
    };
    let ran = run(typed[0]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.out.contains("GET http://www.example.org/"), "{ran:?}");
    let rows: Vec<&str> = page.lines().filter(|line| line.contains("sandbox http")).collect();
    assert_eq!(rows.len(), 2);
    for line in rows {
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        let has_words =
            |output_line: &str| output_line.split_whitespace().take(3).eq(words.iter().copied());
        assert!(ran.out.lines().any(has_words), "{line}: {ran:?}");
    }
    assert!(typed[1].contains("\nsleep 1\n") && typed[1].contains("count=5000 "), "{typed:?}");
    // The number of blocks is increased until the path is killed before it ends by itself.
    for count in [5000, 20_000, 80_000] {
        let ran = run(&typed[1]
            .replace("sleep 1", WAIT_RUNNING_COMMAND)
            .replace("5000", &count.to_string()));
        let everything = format!("{count} blocks, {} bytes\n", count * 64);
        assert_eq!(ran.out, everything, "the other branch got everything: {ran:?}");
        assert!(ran.err.contains("the ledger balances"), "{ran:?}");
        if ran.err.contains("was ended by signal 9 (SIGKILL)") {
            return assert_eq!(ran.status, Some(0), "{ran:?}");
        }
    }
    panic!("nobody was killed in time");
}

#[test]
fn sharing_page_runs_without_privilege() {
    let Some(bash) = need::require_command("bash") else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/10-sharing.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, block) = page.split_once("```sh\n").unwrap();
    let (typed, _) = block.split_once("```").unwrap();
    let folder = Folder::new();
    let mut shell =
        folder.shell_command("unset STREAMLINE_DAEMON; export TMPDIR=$PWD; exec \"$@\"");
    shell.args(["sh", "timeout", "300"]).arg(bash).arg("-c").arg(typed);
    let ran = CommandResult::from(shell.output().unwrap());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert!(ran.out.contains("generate rate=1000 | count\n"), "{ran:?}");
    assert!(ran.out.contains("\nfilter ") && ran.err.contains("none lost"), "{ran:?}");
}

/// Runs the commands on the book's page about sharing that need root, and compares the printed
/// tables with the page.
#[test]
fn ps_lists_the_shared_kernel_program() {
    let Some(space) = Namespace::new() else { return };
    let wanted = ["bash", "setpriv"].map(need::require_command);
    let ([Some(bash), Some(setpriv)], Some(_)) = (wanted, need::require_bpf()) else { return };
    let page = read_page("10-sharing.md");
    let (_, section) = page.split_once("## One program for all").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (typed, _) = block.split_once("```").unwrap();
    // User names may differ in width from the numbers in the book.
    let mut free = testkit::user::unnamed_uids(1001);
    let mut typed = typed.to_owned();
    // A substituted number may equal a number that is yet to be replaced, so the highest number is
    // replaced first.
    let numbers = ["1001", "1002", "1003"].map(|uid| (uid, free.next().unwrap().to_string()));
    for (uid, free) in numbers.iter().rev() {
        typed = typed.replace(uid, free);
    }
    let folder = Folder::new();
    let program = folder.path().join("streamline");
    testkit::copy_program(Path::new(env!("CARGO_BIN_EXE_streamline")), &program);
    let mut other = Command::new(setpriv);
    other.args(["--reuid=1001", "--regid=1001", "--clear-groups"]).arg(&program).arg("--version");
    if !other.output().unwrap().status.success() {
        let _: Option<()> =
            need::report_skip("needs a folder for temporary files that others may enter");
        return;
    }
    let mut shell = space.command("timeout");
    shell.arg("300").arg(bash).arg("-c").arg(typed).current_dir(folder.path());
    let others = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{others}", folder.path().display()));
    shell.env("TMPDIR", folder.path()).env("NO_COLOR", "1");
    let ran = CommandResult::from(shell.stdin(Stdio::null()).output().unwrap());
    let lines: Vec<String> =
        format!("{}\n{}", ran.out, ran.err).lines().map(mask_numbers).collect();
    for expected in indented_blocks(section)[0].iter().filter(|line| !line.is_empty()) {
        // The order of the requests may differ, and the kernel itself may send frames on `lo`.
        let expected = mask_numbers(expected).replace("N lo", "lo");
        let is_expected = |line: &String| line.split(' ').eq(expected.split(' '));
        assert!(lines.iter().any(is_expected), "{expected}\n{ran:?}");
    }
    let all = lines.join(" ");
    let words =
        "N may not watch lo: an observer sees the frames of all users there, and root has not";
    assert!(all.contains(words), "{ran:?}");
    assert!(ran.out.contains("2 blocks") && ran.out.contains("1 blocks"), "{ran:?}");
}

fn read_page(name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book").join(name);
    std::fs::read_to_string(page).unwrap()
}

/// Returns the code blocks of a page that are indented by at least four spaces. Each is a list of
/// lines.
fn indented_blocks(page: &str) -> Vec<Vec<&str>> {
    let mut blocks = vec![Vec::new()];
    for line in page.lines() {
        match line.strip_prefix("    ") {
            Some(line) => blocks.last_mut().unwrap().push(line),
            None if line.is_empty() && !blocks.last().unwrap().is_empty() => {
                blocks.last_mut().unwrap().push("");
            }
            None => blocks.push(Vec::new()),
        }
    }
    blocks.retain(|block| block.iter().any(|line| !line.is_empty()));
    blocks
}

/// Returns a line with `N` in place of each number, and with single spaces between the words.
fn mask_numbers(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let is_figure = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '\u{2013}');
        if word.chars().all(is_figure) { "N" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the request in the first fenced code block marked `pipe`.
fn first_request(page: &str) -> &str {
    let (_, rest) = page.split_once("```pipe\n").unwrap();
    rest.split_once("\n```").unwrap().0
}

#[test]
fn kernel_chapter_matches_explain() {
    let page = read_page("08-kernel.md");
    let folder = Folder::new();
    let ran = folder.run(&["explain", first_request(&page)]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    if !ran.out.contains(" takes programs") {
        let _: Option<()> = need::report_skip("needs a kernel that takes programs");
        return;
    }
    let expected = &indented_blocks(&page)[0];
    assert!(expected.len() > 8, "{expected:?}");
    // Numbers are not compared.
    let lines: Vec<String> = ran.out.lines().map(mask_numbers).collect();
    let missing: Vec<_> =
        expected.iter().filter(|line| !lines.contains(&mask_numbers(line))).collect();
    assert!(missing.is_empty(), "explain does not say {missing:#?}, but\n{}", ran.out);
}

/// Runs a request while the kernel refuses one of its filters. Compares the note about the refusal
/// and the tables of the run with the book's chapter about the kernel.
#[test]
fn kernel_chapter_refusal_note_and_tables_match() {
    let Some(()) = need::require_bpf() else { return };
    let Some(space) = Namespace::new() else { return };
    space.run_ip("link set lo up");
    let page = read_page("08-kernel.md");
    let blocks = indented_blocks(&page);
    let expected = blocks.iter().find(|block| block[0].starts_with("note: ")).unwrap();
    let folder = Folder::new();
    let mut command = space.command(env!("CARGO_BIN_EXE_streamline"));
    let line = "rx lo | ip | udp | count";
    command.args(["run", "--stats", "--kernel-refuses=udp", "--count=1", line]);
    command.current_dir(folder.path()).env("XDG_STATE_HOME", folder.path().join("state"));
    command.env("NO_COLOR", "1").stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it is attached", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        is_capturing(&space, child.id())
    });
    space.run_in_network_namespace(|| {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[7; 24], "127.0.0.1:9").unwrap()
    });
    wait_until("it ends", || child.try_wait().unwrap().is_some());
    let ran = CommandResult::from(child.wait_with_output().unwrap());
    let lines: Vec<String> = ran.err.lines().map(mask_numbers).collect();
    let missing: Vec<_> =
        expected.iter().filter(|line| !lines.contains(&mask_numbers(line))).collect();
    assert!(missing.is_empty(), "it does not say {missing:#?}, but\n{}", ran.err);
}

/// Runs the request of the drawing in the README. Asserts that each matching frame is written once,
/// and that the plan has the spaces of the drawing.
#[test]
fn readme_drawing_matches_its_request() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, drawn) = readme.split_once("```text\n").unwrap();
    let line = drawn.lines().next().unwrap().trim();
    let folder = Folder::new();
    let count = |line: &str| -> u64 {
        let ran = folder.run(&["run", "-q", line]);
        assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{line}");
        ran.out.split(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(folder.run(&["run", "-q", line]).status, Some(0));
    let matching = count("replay examples/web.pcap | bpf \"dst port 80 or dst port 53\" | count");
    assert_eq!(count("replay out.pcap | count"), matching);
    assert!(matching > 10);
    let plan = folder.run(&["explain", line]).out;
    let runs_in = |name: &str| {
        let mut rows = plan.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|row| row.first() == Some(&name)).unwrap()[1].to_owned()
    };
    let places: Vec<String> =
        ["replay", "bpf", "dport", "count", "inspect", "pcap"].map(runs_in).into();
    assert_eq!(places, ["thread0", "thread0", "thread1", "thread1", "thread1", "thread1"]);
}

#[test]
fn book_lists_the_same_parts_of_exec_as_explain() {
    let ran = Folder::new().run(&["explain", "exec", "cat", "-n"]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let page = read_page("buffers/programs.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|row| row.trim_end_matches(" |").split(" | ").collect())
        .filter(|row: &Vec<&str>| row.len() == 4)
        .collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in rows {
        let (name, is_on) = (row[0].trim_end_matches('`'), row[1]);
        let line = format!("  {name:9} {is_on} by default: {}\n", row[2]);
        assert!(ran.out.contains(&line), "{line}{}", ran.out);
        assert!(ran.out.contains(&format!("{:12}{}\n", "", row[3])), "{}", ran.out);
    }
    let missing = Folder::new().run(&["explain", "exec", "no-such-program"]);
    assert_eq!(missing.status, Some(3), "{}", missing.err);
}
