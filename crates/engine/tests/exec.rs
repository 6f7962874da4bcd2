//! Tests of requests that contain programs, with real processes. The ledger must balance after each
//! run, in blocks and, for programs, in bytes.

use engine::build::{BuildError, RunSettings, build};
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use filter::Amount;
use pipeline::plan::{Machine, Plan, plan};
use runtime::failure::FailureCause;
use runtime::ledger::{EdgeKind, NodeEntry};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use sys::eventfd::EventFd;

fn plan_request(text: &str) -> Plan {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    plan(graph, &MachineRegistry::Local, &Machine::example()).expect("a plan")
}

fn run_request(text: &str, count: Option<u64>, until: StopConditions<'_>) -> RunOutcome {
    let settings = RunSettings { count, ..RunSettings::default() };
    let paths = build(&plan_request(text), settings).expect("spaces");
    let outcome = run(paths, until).expect("a run");
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    assert_eq!(outcome.ledger.lost_blocks(), 0, "{text}");
    outcome
}

fn run_to_end(text: &str) -> RunOutcome {
    let outcome = run_request(text, None, StopConditions::default());
    assert!(outcome.failures.is_empty(), "{text}: {:?}", outcome.failures);
    outcome
}

fn node_entry<'o>(outcome: &'o RunOutcome, name: &str) -> &'o NodeEntry {
    let mut named = outcome.ledger.filters.iter().filter(|node| node.name == name);
    let node = named.next().expect("the node is in the ledger");
    assert!(named.next().is_none(), "{name} has one line");
    node
}

fn total_dropped(node: &NodeEntry) -> Amount {
    let ended = node.dropped.iter().find(|(why, _)| why.text() == "program ended");
    ended.map(|(_, amount)| *amount).unwrap_or_default()
}

/// A temporary directory of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-exec-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder of its own");
        Self(folder)
    }

    fn file_path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Writes a file with this many numbered lines. Returns its path.
    fn write_lines(&self, count: u32) -> String {
        let text: String = (0..count).map(|n| format!("line {n}\n")).collect();
        std::fs::write(self.file_path("lines"), text).expect("a file");
        self.file_path("lines")
    }

    fn read_file(&self, name: &str) -> String {
        std::fs::read_to_string(self.file_path(name)).expect("the file")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn program_receives_and_returns_all_data() {
    let folder = Folder::new();
    let (lines, out) = (folder.write_lines(200_000), folder.file_path("out"));
    let whole = folder.read_file("lines");
    for block in ["64k", "1000000", "100"] {
        let text = format!("read {lines} block={block} | exec \"cat\" | exec \"cat > {out}\"");
        let outcome = run_to_end(&text);
        assert!(folder.read_file("out") == whole, "{block}");
        let (first, last) = (&outcome.ledger.filters[1], &outcome.ledger.filters[2]);
        let bytes = whole.len() as u64;
        for amount in [first.taken, first.consumed, first.made, first.passed, last.consumed] {
            assert_eq!(amount.bytes, bytes, "{first:?} {last:?}");
        }
        assert_eq!((last.made, last.passed), Default::default(), "its output is not ours");
    }
}

#[test]
fn grep_selects_lines_of_text() {
    let folder = Folder::new();
    let lines = folder.write_lines(10_000);
    let outcome = run_to_end(&format!(
        "read {lines} | exec \"grep 77\" | exec \"wc -l\" | match \"280\\n\" | count"
    ));
    assert_eq!(node_entry(&outcome, "count").taken, Amount { blocks: 1, bytes: 4 });
    let kinds: Vec<EdgeKind> = outcome.ledger.edges.iter().map(|edge| edge.kind).collect();
    use EdgeKind::{Call, Pipe};
    assert_eq!(kinds, [Pipe, Pipe, Pipe, Call, Call], "{:?}", outcome.ledger.edges);
}

#[test]
fn program_may_write_before_reading_and_read_before_writing() {
    let folder = Folder::new();
    let lines = folder.write_lines(100_000);
    let bytes = folder.read_file("lines").len() as u64;
    for (command, made) in [
        ("yes | head -c 3000000; cat", 3_000_000 + bytes),
        ("sort -r", bytes),
        ("cat; yes | head -c 3000000", 3_000_000 + bytes),
        ("exec >&-; cat > /dev/null", 0),
    ] {
        let outcome = run_to_end(&format!("read {lines} | exec \"{command}\" | discard"));
        let exec = node_entry(&outcome, "exec");
        assert_eq!((exec.consumed.bytes, exec.made.bytes), (bytes, made), "{command}");
    }
}

#[test]
fn unread_input_of_a_program_is_counted_as_dropped() {
    let folder = Folder::new();
    let lines = folder.write_lines(200_000);
    let outcome = run_to_end(&format!("read {lines} block=1k | exec \"head -1\" | count"));
    let exec = node_entry(&outcome, "exec");
    assert_eq!(exec.made, Amount { blocks: 1, bytes: 7 });
    assert!(total_dropped(exec).blocks > 0 && exec.consumed.bytes > 0, "{exec:?}");
    assert_eq!(exec.taken.bytes, exec.consumed.bytes + total_dropped(exec).bytes);
    let given = outcome.ledger.sources[0].1.given;
    assert!(
        given.bytes < folder.read_file("lines").len() as u64,
        "nobody wants the rest: {given:?}"
    );
}

#[test]
fn path_continues_while_one_reader_remains() {
    let folder = Folder::new();
    let lines = folder.write_lines(200_000);
    let bytes = folder.read_file("lines").len() as u64;
    let outcome =
        run_to_end(&format!("read {lines} block=1k | (exec \"head -1\" + count) | discard"));
    assert_eq!(node_entry(&outcome, "count").taken.bytes, bytes, "all of it");
    assert!(total_dropped(node_entry(&outcome, "exec")).blocks > 0);
    // Both programs stop reading, at different times. Then the endless source has no reader, and
    // the run ends.
    let outcome =
        run_to_end("generate | (exec \"head -c 100\" + exec \"head -c 300000\") | discard");
    let dropped: u64 = outcome.ledger.filters.iter().map(|node| total_dropped(node).blocks).sum();
    assert!(dropped > 0);
    assert!(!outcome.stopped, "it ended by itself");
}

#[test]
fn failed_program_fails_the_path() {
    for (text, what) in [
        ("generate | exec \"exit 3\" | count", "the program \"exit 3\" ended with status 3"),
        (
            "generate | (exec \"exit 4\" + count) | discard",
            "the program \"exit 4\" ended with status 4",
        ),
        (
            "generate | exec \"kill -9 $$\"",
            "the program \"kill -9 $$\" was ended by signal 9 (SIGKILL)",
        ),
        ("exec \"echo; exit 5\" | count", "the program \"echo; exit 5\" ended with status 5"),
        (
            "generate count=9 | exec \"cat; exit 6\" | count",
            "the program \"cat; exit 6\" ended with status 6",
        ),
        (
            "exec \"/no/such/program 2>&-\" | count",
            "the program \"/no/such/program 2>&-\" ended with status 127: the shell did not find \
             the command",
        ),
    ] {
        let outcome = run_request(text, None, StopConditions::default());
        let failures: Vec<String> = outcome.failures.iter().map(ToString::to_string).collect();
        assert_eq!(failures, [format!("`exec`: {what}")], "{text}");
        assert!(matches!(outcome.failures[0].cause, FailureCause::Program(_)));
    }
}

#[test]
fn source_program_is_ended_once_sinks_are_satisfied() {
    let folder = Folder::new();
    let pid = folder.file_path("pid");
    let text = format!("exec \"echo $$ > {pid}; yes & yes; sleep 1000\" | count");
    let outcome = run_request(&text, Some(10), StopConditions::default());
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(node_entry(&outcome, "count").passed.blocks, 10);
    assert_process_gone(&folder.read_file("pid"));
    let outcome = run_to_end("exec \"seq 1 1000\" | exec \"tail -1\" | match \"1000\" | count");
    assert_eq!(node_entry(&outcome, "count").taken, Amount { blocks: 1, bytes: 5 });
}

#[test]
fn block_limit_ends_a_path_whose_program_never_stops() {
    // `yes` never reads and never stops writing, so the space that feeds it blocks.
    let outcome =
        run_request("generate | exec \"yes\" | count", Some(5), StopConditions::default());
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(node_entry(&outcome, "count").passed.blocks, 5);
}

#[test]
fn stop_drains_programs_in_the_path() {
    let folder = Folder::new();
    let out = folder.file_path("out");
    let until = StopConditions { time_limit_ns: Some(50_000_000), ..StopConditions::default() };
    let text = format!("generate | exec \"cat; echo the end\" | exec \"tail -1 > {out}\"");
    let outcome = run_request(&text, None, until);
    assert!(outcome.stopped && outcome.failures.is_empty(), "{:?}", outcome.failures);
    let last = std::fs::read(&out).expect("what came out");
    assert!(last.ends_with(b"the end\n"), "{last:?}");
    let given = outcome.ledger.sources[0].1.given;
    assert_eq!(outcome.ledger.filters[1].consumed, given, "nothing under way is lost");
    // A program at the head of the request gets SIGTERM once it has installed a handler. Its last
    // output is read, too.
    let mark = folder.file_path("mark");
    let script = format!("trap 'echo the end; exit' TERM; : > {mark}; while :; do echo more; done");
    let text = format!("exec \"{script}\" | exec \"tail -1\" | match \"the end\" | count");
    let hears = EventFd::new().expect("an event");
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            testkit::wait_until("it hears", || Path::new(&mark).exists());
            hears.notify();
        });
        run_request(
            &text,
            None,
            StopConditions { stop_descriptor: Some(hears.as_fd()), ..StopConditions::default() },
        )
    });
    assert!(outcome.stopped && outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(node_entry(&outcome, "count").taken, Amount { blocks: 1, bytes: 8 });
}

#[test]
fn pipes_and_rings_wake_one_space() {
    let folder = Folder::new();
    let lines = folder.write_lines(20_000);
    let bytes = folder.read_file("lines").len() as u64;
    for _ in 0..20 {
        // Blocks from `match` reach `count` over a ring, and blocks from `cat` reach it through a
        // pipe.
        let text = format!(
            "read {lines} block=200 | (match \"line\" @thread0 + exec \"cat\") | count @thread1"
        );
        let outcome = run_to_end(&text);
        assert!(outcome.ledger.edges.iter().any(|edge| edge.kind == EdgeKind::Ring));
        assert!(node_entry(&outcome, "count").taken.bytes > bytes);
    }
}

#[test]
fn programs_run_in_parallel_and_in_sequence() {
    let folder = Folder::new();
    let lines = folder.write_lines(50_000);
    let bytes = folder.read_file("lines").len() as u64;
    let all: Vec<&str> = vec!["exec \"cat\""; 12];
    let outcome = run_to_end(&format!("read {lines} | {} | count", all.join(" | ")));
    assert_eq!(node_entry(&outcome, "count").taken.bytes, bytes);
    let outcome = run_to_end(&format!("read {lines} | ({}) | count", all.join(" + ")));
    assert_eq!(node_entry(&outcome, "count").taken.bytes, 12 * bytes);
    let text =
        format!("read {lines} | ((exec \"cat\" | exec \"cat\") + exec \"cat\") | (count + hist)");
    assert_eq!(node_entry(&run_to_end(&text), "count").taken.bytes, 2 * bytes);
}

#[test]
fn program_inherits_environment_but_only_one_descriptor() {
    let folder = Folder::new();
    let (out, pid) = (folder.file_path("out"), folder.file_path("pid"));
    let script = "ls /proc/self/fd; env | grep -v ^_= | sort; pwd; id";
    let shell = Command::new("sh").args(["-c", &format!("({script}) 2>&1 | cat")]).output();
    run_to_end(&format!("exec \"echo $$ > {pid}; ({script}) 2>&1 | cat\" | exec \"cat > {out}\""));
    let out = folder.read_file("out");
    // The program inherits only the descriptor of the counter of dbuf ids, which a variable names.
    let counter = out.lines().find_map(|line| line.strip_prefix("STREAMLINE_IDS=")).expect("ids");
    let (number, _) = counter.split_once(':').expect("a descriptor and an inode");
    let is_counter =
        |line: &&str| *line == number || line.strip_prefix("STREAMLINE_IDS=").is_some();
    let others: String =
        out.lines().filter(|line| !is_counter(line)).map(|line| format!("{line}\n")).collect();
    // The shell that the test itself starts may inherit the counter of a program of another test.
    let shell = String::from_utf8_lossy(&shell.expect("a shell").stdout).into_owned();
    let is_inherited = |line: &str| line.parse().is_ok_and(|number: u32| number >= 700);
    let shell: String =
        shell.lines().filter(|line| !is_inherited(line)).map(|line| format!("{line}\n")).collect();
    assert_eq!(others, shell);
    assert_process_gone(&folder.read_file("pid"));
}

#[test]
fn failed_build_starts_no_program() {
    let folder = Folder::new();
    let (mark, lines) = (folder.file_path("mark"), folder.write_lines(1));
    let text = format!("read {lines} | exec \"touch {mark}\" | files /proc/none");
    let refused = build(&plan_request(&text), RunSettings::default());
    assert!(matches!(refused, Err(BuildError::Outside { .. })), "{refused:?}");
    assert!(!Path::new(&mark).exists());
    // A program of a path that never runs is killed.
    let pid = folder.file_path("pid");
    let text = format!("exec \"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000\" | count");
    let paths = build(&plan_request(&text), RunSettings::default()).expect("spaces");
    testkit::wait_until("it has started", || Path::new(&pid).exists());
    drop(paths);
    assert_process_gone(&folder.read_file("pid"));
}

/// Asserts that no process has this id, not even an unreaped one.
fn assert_process_gone(pid: &str) {
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "{pid} is still there");
}
