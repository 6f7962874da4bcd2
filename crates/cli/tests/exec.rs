//! Tests of programs as filters of a request: output, report and exit status.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;

#[test]
fn a18_programs_of_the_system_run_as_filters() {
    let folder = Folder::new();
    for (line, out) in [
        ("replay examples/web.pcap | tcp |http exec \"grep -a -c '^Host: '\" | exec cat", "8\n"),
        ("exec \"printf 'a\\nb\\nc\\n'\" | match b | exec \"wc -l\"", "3\n"),
        ("exec \"seq 1 100000\" | exec \"gzip\" | exec \"gunzip | tail -1\"", "100000\n"),
        ("exec \"echo $HOME\" | exec cat", "/home/of/this/test\n"),
    ] {
        let ran =
            folder.streamline_command(&[line]).env("HOME", "/home/of/this/test").output().unwrap();
        let ran = CommandResult::from(ran);
        assert_eq!((ran.status, ran.out.trim_start()), (Some(0), out), "{line}: {}", ran.err);
    }
}

#[test]
fn program_output_file_is_complete_when_the_run_ends() {
    let folder = Folder::new();
    let ran = folder.run(&["exec \"seq 1 200000\" | exec \"gzip > x.gz\""]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), ""), "{}", ran.err);
    let same = folder.shell_command("seq 1 200000 > y; gunzip -c x.gz | cmp - y").status().unwrap();
    assert!(same.success());
}

#[test]
fn ledger_counts_input_and_output_of_a_program() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | exec \"head -c 100\" | count";
    let ran = folder.run(&["--json", "--report=report", line]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let report: Value = serde_json::from_str(&folder.read("report")).unwrap();
    assert_eq!((&report["balanced"], &report["lost"]), (&true.into(), &0.into()));
    let named = |list: &str, name: &str, value: &str| -> Value {
        let all = report[list].as_array().unwrap();
        all.iter().find(|one| one[name] == value).unwrap().clone()
    };
    let exec = named("filters", "name", "exec");
    assert_eq!(exec["space"], "process \"head -c 100\"");
    let bytes = |what: &Value| what["bytes"].as_u64().unwrap();
    assert_eq!(bytes(&exec["taken"]), 27_828);
    assert_eq!(
        bytes(&exec["consumed"]) + exec["dropped"].get("program ended").map_or(0, bytes),
        27_828
    );
    assert_eq!((bytes(&exec["made"]), bytes(&exec["passed"])), (100, 100));
    assert_eq!(named("edges", "to", "exec")["kind"], "pipe");
    assert_eq!(named("edges", "from", "exec")["kind"], "pipe");
}

#[test]
fn failed_program_is_reported_with_command_and_status() {
    let folder = Folder::new();
    for (command, message) in [
        ("exit 3", "the program \"exit 3\" ended with status 3\n"),
        (
            "no_such 2>&-",
            "the program \"no_such 2>&-\" ended with status 127: the shell did not find the \
             command\n",
        ),
        (
            "./examples",
            "the program \"./examples\" ended with status 126: the shell cannot execute it\n",
        ),
        ("kill -TERM $$", "the program \"kill -TERM $$\" was ended by signal 15 (SIGTERM)\n"),
    ] {
        for line in [format!("generate | exec '{command}'"), format!("exec '{command}' | discard")]
        {
            let ran = folder.run(&[&line]);
            assert_eq!((ran.status, ran.out.as_str()), (Some(1), ""), "{line}");
            assert!(ran.err.ends_with(&format!("error: `exec`: {message}")), "{line}: {}", ran.err);
        }
    }
    for (line, message) in [
        ("exec \"\"", "error: `exec`: the command is empty\n"),
        ("exec cat README", "error: `exec` takes one command: quote it\n"),
        ("exec \"cat\" @thread1 | print", "error: no space can run `exec`\n"),
    ] {
        let ran = folder.run(&[line]);
        assert_ne!(ran.status, Some(0));
        assert!(ran.err.starts_with(message), "{line}: {}", ran.err);
    }
}

#[test]
fn program_that_stops_reading_early_does_not_fail() {
    let folder = Folder::new();
    let ran = folder
        .shell_command("streamline 'exec yes | exec cat' | head -1; echo read")
        .output()
        .unwrap();
    let ran = CommandResult::from(ran);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("y\nread\n", ""));
    let ran = folder.run(&["-c", "10", "exec yes"]);
    assert_eq!((ran.status, ran.out.lines().count()), (Some(0), 10), "{}", ran.err);
    let ran = folder.run(&["-c", "1", "exec 'echo one; sleep 1000'"]);
    assert_eq!((ran.status, ran.out.lines().count()), (Some(0), 1), "{}", ran.err);
}

#[test]
fn plan_lists_a_program_as_a_space() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | exec 'grep -a Host' | count";
    let text = folder.run(&["explain", line]).out;
    for words in
        ["─ process \"grep -a Host\" ──", "an ordinary program", "reads the output of `exec`"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let plan: Value = serde_json::from_str(&folder.run(&["explain", "--json", line]).out).unwrap();
    let kinds = |list: &str| -> Vec<Value> {
        plan[list].as_array().unwrap().iter().map(|one| one["kind"].clone()).collect()
    };
    assert_eq!(kinds("spaces"), ["thread", "process", "thread"]);
    assert_eq!(kinds("edges"), ["pipe", "pipe", "call"]);
    let help = folder.run(&["filters", "exec"]).out;
    assert!(help.contains("a process of its own") && help.contains("SIGTERM"), "{help}");
    let list = folder.run(&["filters"]).out;
    assert_eq!(list.matches("\n  exec ").count(), 1, "{list}");
}
