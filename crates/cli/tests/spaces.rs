//! Tests of `streamline spaces` and of pinning. The output is compared with the kernel's
//! information about the same threads and processes.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use testkit::{need, wait_until};

/// Returns the JSON object that `streamline spaces` prints for a path.
fn path_spaces(folder: &Folder, path: &str) -> Value {
    let ran = folder.run(&["spaces", path, "--json"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let all: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(all["paths"].as_array().unwrap().len(), 1, "{all}");
    all["paths"][0].clone()
}

/// Returns the space that runs a filter.
fn space_of_filter(path: &Value, filter: &str) -> Value {
    let all = path["spaces"].as_array().unwrap();
    let has = |space: &&Value| space["filters"].as_array().unwrap().iter().any(|f| f == filter);
    all.iter().find(has).unwrap_or_else(|| panic!("{filter} is nowhere: {path}")).clone()
}

/// Returns the value of a field in `/proc/…/status` of a space's thread or process.
fn proc_status_value(space: &Value, name: &str) -> String {
    let process = &space["process"];
    let thread = space["thread"].as_u64().map_or_else(String::new, |id| format!("/task/{id}"));
    let text = fs::read_to_string(format!("/proc/{process}{thread}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().to_owned()
}

/// Returns the processors that `streamline spaces` reports for a space. Asserts that the kernel
/// reports the same processors.
fn verified_processors(space: &Value) -> Vec<u64> {
    let reported = space["processors"].as_array().unwrap();
    let reported: Vec<u64> = reported.iter().map(|number| number.as_u64().unwrap()).collect();
    let list = proc_status_value(space, "Cpus_allowed_list:");
    let allowed = list.split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        first.parse::<u64>().unwrap()..=last.parse().unwrap()
    });
    assert_eq!(reported, allowed.collect::<Vec<_>>(), "{space}");
    reported
}

fn run_set_spaces(folder: &Folder, words: &[&str]) -> CommandResult {
    folder.run(&[&["set"], words].concat())
}

/// A request with four spaces: a thread, a thread that writes files, a sandboxed filter, and a
/// program.
const FOUR_SPACES_REQUEST: &str = "generate rate=2000 size=200 | (dport untrusted=yes |all \
                    discard) + exec 'cat >/dev/null' + pcap all.pcap";

#[test]
fn j2_k9_spaces_lists_filters_usage_and_rings() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let _run = folder.spawn_named_path("all", FOUR_SPACES_REQUEST);
    let mut path = Value::Null;
    wait_until("all have done something", || {
        path = path_spaces(&folder, "all");
        let did = |space: &Value| space["processor_ns"].as_u64().unwrap() > 0;
        path["spaces"].as_array().unwrap().iter().all(did)
    });
    let runner = path["process"].as_u64().unwrap();
    let (first, files) = (space_of_filter(&path, "generate"), space_of_filter(&path, "pcap"));
    let (apart, program) = (space_of_filter(&path, "dport"), space_of_filter(&path, "exec"));
    for thread in [&first, &files] {
        assert_eq!((&thread["kind"], &thread["process"]), (&"thread".into(), &runner.into()));
        // The kernel reports the same, possibly truncated, name for the thread.
        assert_eq!(thread["name"], proc_status_value(thread, "Name:"), "{thread}");
        assert!(thread["memory"].as_u64().unwrap() > 0, "{thread}");
    }
    for process in [&apart, &program] {
        assert_eq!((&process["kind"], &process["thread"]), (&"process".into(), &Value::Null));
        assert_eq!(proc_status_value(process, "PPid:"), runner.to_string(), "{process}");
        assert!(process["memory"].as_u64().unwrap() > 4096, "{process}");
    }
    assert_ne!(apart["process"], program["process"]);
    let all = [first, files, apart, program];
    for space in &all {
        let here = space["processor"].as_u64().unwrap();
        assert!(verified_processors(space).contains(&here), "it has run where it may: {space}");
    }
    // Every edge between spaces is listed, with the numbers of blocks that were put into and taken
    // from its ring.
    let rings = path["rings"].as_array().unwrap();
    let joins = |from: &str, to: &str| {
        let ends = |ring: &&Value| ring["from"][1] == from && ring["to"][1] == to;
        rings.iter().find(ends).unwrap_or_else(|| panic!("{from} to {to}: {path}"))
    };
    let ring = joins("generate", "pcap");
    assert!(ring["room"].as_u64().unwrap() > 0, "{ring}");
    let count = |what: &str| ring["counted"][what]["blocks"].as_u64().unwrap();
    let lost = ring["counted"]["lost"].as_u64().unwrap();
    assert_eq!(count("put"), count("taken") + count("resident") + lost, "{ring}");
    assert_eq!(joins("generate", "exec")["to"][0], all[3]["name"]);
    let both = ["exec", "pcap"].map(|to| &joins("generate", to)["counted"]["put"]);
    assert_eq!(both[0], both[1], "each gets all: {path}");
    assert_eq!(joins("dport", "discard")["from"][0], all[2]["name"]);
    // The text output has one row for each space.
    let page = folder.run(&["spaces"]).out;
    for space in &all {
        let number = space["thread"].as_u64().or_else(|| space["process"].as_u64()).unwrap();
        let row = page.lines().find(|line| line.contains(&format!(" {number} "))).unwrap();
        assert!(row.starts_with(space["name"].as_str().unwrap()), "{row}\n{page}");
    }
}

#[test]
fn j2_spaces_lists_replicas() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "--parallel=2 generate rate=2000 | dport |all count";
    let _run = folder.spawn_named_path("copied", line);
    let path = path_spaces(&folder, "copied");
    let spaces = path["spaces"].as_array().unwrap();
    let copies = spaces.iter().filter(|space| space["filters"].to_string().contains("dport"));
    assert_eq!(copies.count(), 2, "{path}");
    for space in spaces {
        let name = space["name"].as_str().unwrap();
        assert!(name.starts_with(&proc_status_value(space, "Name:")), "{space}");
    }
}

#[test]
fn j3_stopped_program_is_reported_and_can_be_pinned() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    // The program stops itself and does not read, so the thread that writes to it never replies.
    let line = "generate | exec 'kill -STOP $$; cat >/dev/null'";
    let _run = folder.spawn_named_path("stuck", line);
    let mut path = Value::Null;
    wait_until("the program stands", || {
        path = path_spaces(&folder, "stuck");
        space_of_filter(&path, "exec")["state"] == "stopped"
    });
    let process = space_of_filter(&path, "exec")["process"].to_string();
    assert!(proc_status_value(&space_of_filter(&path, "exec"), "State:").starts_with('T'));
    let pinned = run_set_spaces(&folder, &["stuck", "pin", "exec", "any"]);
    assert_eq!(pinned.status, Some(0), "{pinned:?}");
    assert!(Command::new("kill").args(["-CONT", &process]).status().unwrap().success());
    wait_until("it goes on", || {
        space_of_filter(&path_spaces(&folder, "stuck"), "exec")["state"] != "stopped"
    });
    let stopped = folder.run(&["stop", "stuck"]);
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
}

#[test]
fn j3_blocked_thread_reports_the_full_ring() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let made = Command::new("mkfifo").arg(folder.path().join("pipe")).status();
    assert!(made.unwrap().success());
    let _run = folder.spawn_without_output(&["run", "-q", "--as", "full", "generate | pcap pipe"]);
    // The reader opens the pipe but does not read, so the sink blocks, and then its source.
    let mut read = fs::File::open(folder.path().join("pipe")).unwrap();
    folder.wait_until_listed("full");
    let mut path = Value::Null;
    wait_until("its room is waited for", || {
        path = path_spaces(&folder, "full");
        space_of_filter(&path, "generate")["state"] == "waits"
    });
    let first = space_of_filter(&path, "generate");
    let ring = &path["rings"][0];
    assert_eq!(first["waits"], "room in the ring from generate to pcap", "{path}");
    assert_eq!(ring["to"][0], space_of_filter(&path, "pcap")["name"], "{path}");
    let page = folder.run(&["spaces", "full"]).out;
    assert!(page.contains("waits for room in the ring from generate to pcap"), "{page}");
    let stopped = std::thread::scope(|scope| {
        scope.spawn(move || std::io::copy(&mut read, &mut std::io::sink()));
        folder.run(&["stop", "full"])
    });
    assert_eq!(stopped.status, Some(0), "{stopped:?}");
}

#[test]
fn j4_pinned_space_stays_on_its_processor() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let _run = folder.spawn_named_path("all", FOUR_SPACES_REQUEST);
    let before = path_spaces(&folder, "all");
    let any = verified_processors(&space_of_filter(&before, "generate"));
    let last = any.last().unwrap().to_string();
    let keeps =
        |filter: &str| verified_processors(&space_of_filter(&path_spaces(&folder, "all"), filter));
    // The command accepts the name of a space or of a node in it. The tested spaces are a thread, a
    // sandboxed filter and a program.
    let first = space_of_filter(&before, "generate")["name"].as_str().unwrap().to_owned();
    for (filter, named) in [("generate", first.as_str()), ("dport", "dport"), ("exec", "exec")] {
        let pinned = run_set_spaces(&folder, &["all", "pin", named, &last]);
        assert_eq!(pinned.status, Some(0), "{pinned:?}");
        let name = space_of_filter(&before, filter)["name"].as_str().unwrap().to_owned();
        assert_eq!(pinned.out, format!("{name} is pinned to processor {last}\n"), "{pinned:?}");
        assert_eq!(keeps(filter).len(), 1, "{filter}");
    }
    assert_eq!(keeps("pcap"), any, "of which nobody said anything");
    let freed = run_set_spaces(&folder, &["all", "pin", &first, "any"]);
    assert_eq!((freed.status, keeps("generate")), (Some(0), any), "{freed:?}");
    for (words, why) in [
        (["all", "pin", &first, "4000"], "its process may run on"),
        (["all", "pin", "thread77", "0"], "it has no space called `thread77`"),
        (["all", "pin", &first, "first"], "`first` is not a processor"),
    ] {
        let refused = run_set_spaces(&folder, &words);
        assert!(refused.status != Some(0) && refused.err.contains(why), "{refused:?}");
    }
}

#[test]
fn j4_pinned_space_stays_pinned_through_a_change() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "generate rate=2000 | count | pcap all.pcap";
    let _run = folder.spawn_named_path("all", line);
    let first = || verified_processors(&space_of_filter(&path_spaces(&folder, "all"), "generate"));
    let wanted = first()[0];
    let pinned = run_set_spaces(&folder, &["all", "pin", "generate", &wanted.to_string()]);
    assert_eq!(pinned.status, Some(0), "{pinned:?}");
    wait_until("the line is changed", || {
        let changed = run_set_spaces(&folder, &["all", "insert", "eth", "before", "count"]);
        let busy = changed.err.contains("did not start the command in time");
        assert!(busy || changed.out.contains("lost 0, duplicated 0, reordered 0"), "{changed:?}");
        !busy
    });
    assert_eq!(first(), [wanted]);
}

#[test]
fn j4_worker_process_can_be_pinned_elsewhere() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let line = "--engines=2 generate rate=1000 | dport |all discard";
    let _run = folder.spawn_named_path("both", line);
    let engines = || {
        let path = path_spaces(&folder, "both");
        let all = path["spaces"].as_array().unwrap().clone();
        assert!(all.iter().all(|engine| engine["kind"] == "engine"), "{path}");
        all
    };
    let before = engines();
    assert_eq!(before.len(), 2);
    let (first, last) = (verified_processors(&before[0]), verified_processors(&before[1]));
    let pinned = run_set_spaces(&folder, &["both", "pin", "engine2", &first[0].to_string()]);
    assert_eq!(pinned.status, Some(0), "{pinned:?}");
    let after = engines();
    assert_eq!(
        (verified_processors(&after[0]), verified_processors(&after[1])),
        (first.clone(), first),
        "{last:?}"
    );
    // All threads of the process are pinned.
    for entry in fs::read_dir(format!("/proc/{}/task", after[1]["process"])).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path().join("status")).unwrap();
        let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(list.trim(), proc_status_value(&after[1], "Cpus_allowed_list:"));
    }
}

const ALICE: u32 = 41_001;
const BOB: u32 = 41_002;

#[test]
fn j2_j4_users_list_and_pin_only_their_own_spaces() {
    if need::require_root().is_none() {
        return;
    }
    let folder = Folder::accessible_to_all();
    let _daemon = folder.start_daemon();
    let of = |uid: u32, words: &[&str]| {
        let mut command = folder.command_as_user((uid, uid), None);
        command.args(words);
        command
    };
    let run = |uid: u32, words: &[&str]| CommandResult::from(of(uid, words).output().unwrap());
    let line = "generate rate=100 | count";
    let mut runs = [ALICE, BOB].map(|uid| {
        let mut command = of(uid, &["run", "-q", "--as", "own", line]);
        common::ChildGuard(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    });
    wait_until("both are listed", || folder.run(&["ps"]).out.matches(" own ").count() == 2);
    let listed_uids = |ran: CommandResult| {
        assert_eq!(ran.status, Some(0), "{ran:?}");
        let list: Value = serde_json::from_str(&ran.out).unwrap();
        let paths = list["paths"].as_array().unwrap().clone();
        paths.into_iter().map(|path| path["uid"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(listed_uids(run(ALICE, &["spaces", "--json"])), [u64::from(ALICE)]);
    let mut all = listed_uids(folder.run(&["spaces", "--json"]));
    all.sort_unstable();
    assert_eq!(all, [ALICE, BOB].map(u64::from), "root sees all");
    let others = format!("{BOB}/own");
    for words in [&["spaces", &others][..], &["set", &others, "pin", "thread0", "0"]] {
        let refused = run(ALICE, words);
        assert!(refused.status != Some(0) && refused.err.contains(&BOB.to_string()), "{refused:?}");
    }
    let own = run(ALICE, &["set", "own", "pin", "thread0", "any"]);
    assert_eq!(own.status, Some(0), "{own:?}");
    for run in &mut runs {
        assert!(run.0.try_wait().unwrap().is_none(), "both run on");
    }
}
