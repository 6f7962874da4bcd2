//! Tests that run each command in the README, the book and `--help` exactly as printed. The
//! commands run in a directory with the examples, as an unprivileged user, or as root after `sudo`.
//! The output is compared with the output below the command on the page ([`pages`]).
//!
//! A command is a block marked `sh`, or a line that is indented by four spaces and starts with
//! `streamline`, `sudo streamline` or `cargo run --release --`. The commands of a page run in
//! order, in one directory and in a network namespace with two virtual cables (`eth0`, `eth1`).
//! [`COMMAND_PAGES`] contains a preamble for each page, which creates the preconditions, such as a
//! running path or a file. A command that would run forever is interrupted (^C) as soon as its path
//! is running.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;
mod pages;

use common::{CommandResult, Folder};
use pages::{PageCommand, PageCommands, extract_page_commands};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::need;
use testkit::net::{Namespace, wait_until};

/// A user id that is not in `/etc/passwd`.
const READER_UID: u32 = 41_901;
/// Time limit for a command, long enough for a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// A documentation page, with a shell script that creates the preconditions of its commands.
struct Page {
    file: &'static str,
    preamble: &'static str,
    /// True if all commands of the page run as root, false if only those after `sudo` do.
    root: bool,
}

const fn page_without_setup(file: &'static str) -> Page {
    Page { file, preamble: "", root: false }
}

/// All documentation pages with commands. A test fails if a page is missing from this list.
const COMMAND_PAGES: &[Page] = &[
    page_without_setup("README.md"),
    Page {
        preamble: "streamline daemon --socket $STREAMLINE_DAEMON &",
        ..page_without_setup("docs/book/01-tour.md")
    },
    page_without_setup("docs/book/cookbook.md"),
    page_without_setup("docs/book/cookbook/packets.md"),
    page_without_setup("docs/book/cookbook/services.md"),
    page_without_setup("docs/book/cookbook/captures.md"),
    page_without_setup("docs/book/cookbook/live.md"),
    Page {
        preamble: "streamline daemon --socket $STREAMLINE_DAEMON &",
        root: true,
        ..page_without_setup("docs/book/cookbook/running.md")
    },
    page_without_setup("docs/book/06-planner.md"),
    page_without_setup("docs/book/07-live.md"),
    Page {
        preamble: "printf 00112233445566778899aabbccddeeff > switch.key; chmod 600 switch.key",
        ..page_without_setup("docs/book/08-kernel.md")
    },
    Page {
        preamble: "streamline daemon --socket $STREAMLINE_DAEMON &",
        root: true,
        ..page_without_setup("docs/book/09-changing.md")
    },
    Page {
        preamble: "streamline daemon --socket $STREAMLINE_DAEMON &",
        ..page_without_setup("docs/book/10-sharing.md")
    },
    Page {
        preamble: "cp examples/web.pcap open.pcap; cp examples/web.pcap secret.pcap",
        ..page_without_setup("docs/book/11-security.md")
    },
    Page {
        preamble: "streamline daemon --socket $STREAMLINE_DAEMON &",
        root: true,
        ..page_without_setup("docs/book/12-time.md")
    },
    page_without_setup("docs/book/14-files.md"),
    page_without_setup("docs/book/15-metrics.md"),
    page_without_setup("docs/book/17-json.md"),
    page_without_setup("docs/book/18-install.md"),
    Page {
        preamble: "seq 100000 > words; seq 1000 > a",
        ..page_without_setup("docs/book/buffers/programs.md")
    },
    page_without_setup("docs/book/buffers/edits.md"),
    page_without_setup("docs/book/buffers/signals.md"),
];

/// Reason for skipping the commands that use a mount. This test runs each command in a separate
/// mount namespace, so later commands would not find the mount.
const NEEDS_ONE_SHELL_REASON: &str =
    "the test `b1_commands_of_the_book_run_as_printed` runs them in one shell";

/// Prefixes of commands that this test skips, each with the reason.
const SKIPPED_COMMANDS: &[(&str, &str)] = &[
    ("streamline doctor unit", "its other half writes into /etc"),
    ("streamline sh -v -c 'cat words | grep x | sudo tee", "sudo asks for a password"),
    ("streamline doctor --calibrate", "measures the machine for a minute"),
    ("streamline completion", "its output is for a file of the shell"),
    ("streamline exec tcpdump", "captures until it is stopped"),
    ("streamline exec --with=udp named", "serves port 53 until it is stopped"),
    ("mkdir pipes", NEEDS_ONE_SHELL_REASON),
    ("head -3 pipes/", NEEDS_ONE_SHELL_REASON),
    ("echo 10s > pipes/", NEEDS_ONE_SHELL_REASON),
    ("head -2 pipes/", NEEDS_ONE_SHELL_REASON),
    ("cat pipes/", NEEDS_ONE_SHELL_REASON),
    ("chmod 755 pipes/", NEEDS_ONE_SHELL_REASON),
    ("umount pipes", NEEDS_ONE_SHELL_REASON),
];

/// Programs that some commands use. A command is skipped if its program is not installed.
const OPTIONAL_PROGRAMS: &[&str] = &["jq", "tcpdump", "tshark", "gcc"];

/// Prefixes of commands that exit with a status other than 0.
const FAILING_COMMANDS: &[(&str, i32)] = &[
    // This command demonstrates a mistake.
    ("streamline check 'replay examples/web.pcap | dpotr", 2),
    // This command reports missing privileges.
    ("streamline doctor rx", 1),
];

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the path of the library for C and Python. A build of all packages places it next to the
/// tests.
fn c_library_path() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libstreamline_c.so")
}

/// The environment in which the commands of a page run.
struct PageEnvironment {
    folder: Folder,
    space: Namespace,
}

impl PageEnvironment {
    fn new() -> Option<Self> {
        let space = Namespace::new()?;
        for (device, other) in [("eth0", "far0"), ("eth1", "far1")] {
            space.run_ip(&format!("link add {device} type veth peer name {other}"));
            space.run_ip(&format!("link set {device} up"));
            space.run_ip(&format!("link set {other} up"));
        }
        space.run_ip("addr add 192.0.2.1/24 dev eth0");
        let folder = Folder::accessible_to_all();
        std::fs::create_dir(folder.path().join("home")).unwrap();
        let _ = Command::new("chmod").args(["777", "home"]).current_dir(folder.path()).status();
        // `streamline examples` writes the examples, as on a machine without a source tree.
        std::fs::remove_file(folder.path().join("examples")).unwrap();
        let place = Self { folder, space };
        let written =
            finish_child(place.start("streamline examples --write examples", READER_UID), false);
        assert_eq!(written.status, Some(0), "{written:?}");
        Some(place)
    }

    /// Starts a shell script in the environment of the page, as the user with the id `user`.
    fn start(&self, script: &str, user: u32) -> Child {
        let mut command = self.space.command("setpriv");
        if user == 0 {
            command.args(["--reuid=0"]);
        } else {
            command.args([format!("--reuid={user}"), format!("--regid={user}")]);
            command.args(["--clear-groups", "--inh-caps=-all"]);
        }
        command.args(["bash", "-c", script]).current_dir(self.folder.path());
        let path = std::env::var("PATH").unwrap_or_default();
        let own = self.folder.path().display();
        command.env("PATH", format!("{own}:{path}")).env("HOME", format!("{own}/home"));
        command.env("STREAMLINE_DAEMON", format!("{own}/daemon")).env("NO_COLOR", "1");
        command.env("TMPDIR", self.folder.path());
        command.env("STREAMLINE_LIB", common::build_pipes_library());
        if script.contains("streamline exec ") {
            common::build_pcap_library();
        }
        if script.contains("import streamline") {
            command.env("STREAMLINE_LIBRARY", c_library_path());
            command.env("PYTHONPATH", repository_root().join("crates/capi/python"));
        }
        for name in ["XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
            command.env_remove(name);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn().unwrap()
    }
}

/// Returns true if a command runs until it is interrupted. A block of several commands ends by
/// itself.
fn is_endless_command(text: &str) -> bool {
    if text.trim_end().contains('\n') {
        return false;
    }
    let runs = !["start ", "explain ", "check ", "stop ", "set ", "ps", "doctor "]
        .iter()
        .any(|verb| text.starts_with(&format!("streamline {verb}")));
    runs && (text.contains("'rx ") || text.starts_with("streamline tap "))
}

/// Waits until a child exits. Interrupts an `endless` child as soon as its path is running. Kills
/// any child after [`COMMAND_TIMEOUT`].
fn finish_child(child: Child, endless: bool) -> CommandResult {
    let (process, begun) = (child.id(), Instant::now());
    let reader = std::thread::spawn(move || CommandResult::from(child.wait_with_output().unwrap()));
    let mut interrupted = false;
    while !reader.is_finished() {
        if begun.elapsed() > COMMAND_TIMEOUT {
            signal_process_group(process, "-KILL");
            return CommandResult {
                err: format!("it goes on after {COMMAND_TIMEOUT:?}"),
                ..reader.join().unwrap()
            };
        }
        if endless && !interrupted && is_path_running(process) {
            signal_process_group(process, "-INT");
            interrupted = true;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    reader.join().unwrap()
}

/// Returns true if a process of a process group runs a path.
fn is_path_running(group: u32) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.map(|entry| entry.path()).any(|process| {
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        let of = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(2));
        if of != Some(group.to_string().as_str()) {
            return false;
        }
        let tasks = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        tasks
            .map(|task| std::fs::read_to_string(task.path().join("comm")))
            .any(|name| name.is_ok_and(|name| name.starts_with("thread")))
    })
}

/// Sends a signal to a process group. Errors are ignored, because processes may already have
/// exited.
fn signal_process_group(group: u32, which: &str) {
    let _ = Command::new("kill").args([which, "--", &format!("-{group}")]).status();
}

/// Runs the commands of a page. Returns the number of commands and the failures.
fn run_commands(
    place: &PageEnvironment,
    page: &Page,
    typed: &PageCommands,
) -> (usize, Vec<String>) {
    let daemon = page.preamble.contains("daemon");
    let preamble = page.preamble.trim_end_matches('&').to_owned();
    let mut kept = None;
    if daemon {
        kept = Some(place.start(&format!("exec {preamble}"), 0));
        wait_until("the daemon answers", || {
            finish_child(place.start("streamline ps", 0), false).status == Some(0)
        });
    } else if !preamble.is_empty() {
        let user = if page.root { 0 } else { READER_UID };
        let ran = finish_child(place.start(&preamble, user), false);
        assert_eq!(ran.status, Some(0), "{}: {ran:?}", page.file);
    }
    let traffic = typed.traffic.as_ref().map(|script| place.start(script, 0));
    let (mut count, mut wrong) = (0, Vec::new());
    for command in &typed.all {
        if SKIPPED_COMMANDS.iter().any(|(begins, _)| command.text.starts_with(begins)) {
            continue;
        }
        let mut used = OPTIONAL_PROGRAMS.iter().filter(|name| command.runs_program(name));
        if used.any(|name| need::require_command(name).is_none()) {
            continue;
        }
        if command.text.contains("import streamline")
            && need::require_file(c_library_path()).is_none()
        {
            continue;
        }
        let ends_with =
            FAILING_COMMANDS.iter().find(|(begins, _)| command.text.starts_with(begins));
        let wanted = ends_with.map_or(0, |(_, status)| *status);
        let user = if page.root || command.sudo { 0 } else { READER_UID };
        // On a page with a traffic script, the commands end by themselves.
        let endless = is_endless_command(&command.text) && traffic.is_none();
        let ran = finish_child(place.start(&command.text, user), endless);
        count += 1;
        if ran.status != Some(wanted) {
            wrong.push(format!("{}: {}\n{ran:#?}", command.place, command.text));
        } else if let Some(difference) = command.compare_output(&ran) {
            wrong.push(format!("{}: {}\n{difference}", command.place, command.text));
        }
    }
    if let Some(mut traffic) = traffic {
        signal_process_group(traffic.id(), "-KILL");
        traffic.wait().unwrap();
    }
    if let Some(mut kept) = kept {
        let _ = finish_child(place.start("streamline ps --json", 0), false);
        signal_process_group(kept.id(), "-INT");
        kept.wait().unwrap();
    }
    (count, wrong)
}

#[test]
fn commands_of_readme_and_book_run_as_printed() {
    let wanted = ["bash", "setpriv", "python3", "curl", "ip"].map(need::require_command);
    if wanted.iter().any(Option::is_none)
        || need::require_root().is_none()
        || need::require_bpf().is_none()
    {
        return;
    }
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in COMMAND_PAGES {
        let text = std::fs::read_to_string(repository_root().join(page.file)).unwrap();
        let Some(place) = PageEnvironment::new() else { return };
        let (ran, mistakes) = run_commands(&place, page, &extract_page_commands(page.file, &text));
        assert!(ran > 0, "{} has no command any more", page.file);
        count += ran;
        wrong.extend(mistakes);
    }
    assert!(wrong.is_empty(), "{} of {count} commands fail:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count > 30, "{count}");
}

#[test]
fn commands_of_help_run_as_printed() {
    let Some(()) = need::require_root() else { return };
    let (Some(_), Some(_)) = (need::require_command("bash"), need::require_command("setpriv"))
    else {
        return;
    };
    let Some(place) = PageEnvironment::new() else { return };
    let help = place.folder.run(&["--help"]).out;
    let (_, examples) = help.split_once("Examples:\n").unwrap();
    let (examples, _) = examples.split_once("\n\n").unwrap();
    let all: Vec<PageCommand> = examples
        .lines()
        .filter_map(|line| {
            let line = line.trim_start();
            // The description of the command follows after at least three spaces.
            let line = line.split("   ").next().unwrap();
            let (sudo, text) = match line.strip_prefix("sudo ") {
                Some(text) => (true, text),
                None => (false, line),
            };
            let text = text.to_owned();
            text.starts_with("streamline ").then(|| PageCommand {
                place: "--help".into(),
                text,
                sudo,
                output: None,
            })
        })
        .collect();
    assert!(all.len() > 5, "{all:?}");
    let commands = PageCommands { all, traffic: None };
    let written = finish_child(place.start("streamline examples --write .", READER_UID), false);
    assert_eq!(written.status, Some(0), "{written:?}");
    let (_, wrong) = run_commands(&place, &page_without_setup("--help"), &commands);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_page_with_commands_is_listed() {
    let mut missing = Vec::new();
    for folder in [".", "docs/book", "docs/book/buffers", "docs/book/cookbook"] {
        for entry in std::fs::read_dir(repository_root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let name = path.file_name().unwrap().to_str().unwrap();
            let file = if folder == "." { name.to_owned() } else { format!("{folder}/{name}") };
            let text = std::fs::read_to_string(&path).unwrap();
            let known = COMMAND_PAGES.iter().any(|page| page.file == file);
            if !known && !extract_page_commands(&file, &text).all.is_empty() {
                missing.push(file);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
