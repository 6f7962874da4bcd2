//! Tests that validate each output of `--json` against its published schema, with the Python module
//! `jsonschema`. A field that is missing in the schema is an error here.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod common;

use common::schema_validator::validate_outputs;
use common::{ChildGuard, Folder};
use std::process::{Command, Stdio};
use testkit::{need, wait_until};

/// Starts a program with a packet socket of all interfaces, which `explain` and `doctor` report.
/// Waits until the socket is open. Returns `None` if the program cannot be started here.
fn capture_on_all_interfaces(folder: &Folder) -> Option<ChildGuard> {
    need::require_root()?;
    need::require_command("tcpdump")?;
    let mut command = Command::new("tcpdump");
    command.args(["-i", "any", "-w", "/dev/null", "udp port 9"]);
    let capture = ChildGuard(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    wait_until("the socket is reported", || {
        folder.run(&["doctor", "-j"]).out.contains("\"interface\":null")
    });
    Some(capture)
}

#[test]
fn outputs_without_a_daemon_fit_their_schemas() {
    let folder = Folder::new();
    let _capture = capture_on_all_interfaces(&folder);
    let out = |words: &[&str]| folder.run(words).out;
    let web = "examples/web.pcap";
    let mut outputs = Vec::new();
    for line in [
        format!("replay {web} | tcp | http | pcap o.pcap"),
        format!("replay {web} | (dport |80 count + udp | user x)"),
        format!("--parallel=2 replay {web} | tcp | http | hist"),
        "--latency=100ms generate rate=1000 count=200 | pcap p.pcap".to_owned(),
        "--engines=2 generate rate=1000 count=200 | udp | count".to_owned(),
        format!("replay {web} | udp | drop"),
        format!("replay {web} | freeze a.pcap when=\"tcp[0] = 1\""),
    ] {
        let ran = folder.run(&["run", "-j", &line]);
        outputs.push(("run", ran.err));
        if !ran.out.is_empty() {
            outputs.push(("line-end", ran.out));
        }
    }
    for line in ["replay x | htpp | count", "a | | b", "rx lo | count"] {
        outputs.push(("check", out(&["check", "-j", line])));
    }
    outputs.push(("examples", out(&["examples", "--json"])));
    outputs.push(("examples", out(&["examples", "--json", "--write", "written"])));
    outputs.push(("filters", out(&["filters", "-j"])));
    outputs.push(("filters", out(&["filters", "-j", "pcap"])));
    for line in [
        "rx lo | bpf \"tcp\" | tcp | http | json".to_owned(),
        "--prefix=shared rx lo | bpf \"udp\" | tcp | http | count".to_owned(),
        format!("replay {web} | (dport |80 count + user y)"),
        format!("buffer z | discard; replay {web} | freeze a.pcap"),
        "rx lo take | count".to_owned(),
    ] {
        outputs.push(("explain", out(&["explain", "-j", &line])));
    }
    outputs.push(("doctor", out(&["doctor", "-j"])));
    outputs.push(("doctor-subject", out(&["doctor", "-j", "rx"])));
    for line in ["tcp | http | count", "udp | drop"] {
        outputs.push(("why", out(&["why", "-j", "ip", web, line])));
    }
    let Some(verdict) = validate_outputs(&outputs) else { return };
    assert_eq!(
        verdict,
        "checked check doctor doctor-subject examples explain filters line-end run why\n"
    );
}

#[test]
fn outputs_about_paths_fit_their_schemas() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let lines = [
        ("a", "generate rate=1000 | count state=ports"),
        ("b", "--latency=100ms generate rate=1000 | pcap z.pcap"),
        ("c", "--engines=2 generate rate=1000 | udp | count"),
        ("d", "generate rate=1000 | user zz"),
        ("f", "(generate rate=1000 + buffer yy) | freeze f.pcap"),
    ];
    let _paths = lines.map(|(name, line)| folder.spawn_named_path(name, line));
    // The filters of this path run in a kernel program, so the path starts only if this user may
    // load programs.
    let has_kernel = need::require_bpf().is_some();
    let _kernel =
        has_kernel.then(|| folder.spawn_named_path("e", "rx lo | bpf \"udp\" | pcap e.pcap"));
    wait_until("the state is published", || folder.run(&["state"]).out.contains("ports"));
    let out = |words: &[&str]| {
        let ran = folder.run(words);
        assert_eq!(ran.status, Some(0), "{words:?}: {}", ran.err);
        ran.out
    };
    let mut outputs = vec![
        ("ps", out(&["ps", "-j"])),
        ("spaces", out(&["spaces", "-j"])),
        ("states", out(&["state", "--json"])),
        ("state", out(&["state", "--json", "ports"])),
    ];
    outputs.extend(lines.map(|(name, _)| ("top", out(&["top", "--once", "-j", name]))));
    if has_kernel {
        outputs.push(("top", out(&["top", "--once", "-j", "e"])));
    }
    let Some(verdict) = validate_outputs(&outputs) else { return };
    assert_eq!(verdict, "checked ps spaces state states top\n");
}

#[test]
fn outputs_of_start_set_and_stop_fit_their_schemas() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let run = |words: &[&str], status| {
        let ran = folder.run(words);
        assert_eq!(ran.status, Some(status), "{words:?}: {}", ran.err);
        ran.out
    };
    let started = run(&["start", "--json", "web", "generate rate=1000 | count"], 0);
    let unnamed = run(&["start", "-j", "generate rate=1000 | count"], 0);
    let set = run(&["set", "--json", "web", "insert", "udp", "after", "generate"], 0);
    let stopped = run(&["stop", "--json", "web", "nobody", "2"], 3);
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    let (start, change, stop) = (parse(&started), parse(&set), parse(&stopped));
    assert_eq!((&start["path"], &start["name"]), (&1.into(), &"web".into()));
    assert!(std::path::Path::new(start["log"].as_str().unwrap()).is_file());
    assert_eq!(parse(&unnamed)["name"], serde_json::Value::Null);
    assert_eq!(change["request"], "generate rate=1000 | udp | count");
    assert!(change["report"].as_str().unwrap().contains("lost 0"), "{set}");
    let paths = stop["paths"].as_array().unwrap();
    let ended: Vec<_> = paths.iter().map(|path| path["ended"].as_bool().unwrap()).collect();
    assert_eq!(ended, [true, false, true], "{stopped}");
    assert_eq!(paths[0]["status"], 0);
    assert!(paths[0]["report"].as_str().unwrap().contains("blocks"), "{stopped}");
    assert!(paths[1]["error"].as_str().unwrap().contains("nobody"), "{stopped}");
    let outputs = [("start", started), ("start", unnamed), ("set", set), ("stop", stopped)];
    let Some(verdict) = validate_outputs(&outputs) else { return };
    assert_eq!(verdict, "checked set start stop\n");
}

#[test]
fn check_reports_the_position_of_each_mistake() {
    let folder = Folder::new();
    let ran = folder.run(&["check", "--json", "replay x |\n htpp | count"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(2), ""));
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let first = &found["mistakes"][0];
    assert_eq!(found["correct"], false);
    assert_eq!((&first["line"], &first["column"]), (&2.into(), &2.into()));
    assert_eq!((&first["start"], &first["end"]), (&12.into(), &16.into()));
    assert_eq!(first["text"], "htpp");
    let ran = folder.run(&["check", "--json", "replay x|count"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(found["request"], "replay x | count");
}

#[test]
fn schema_command_prints_the_published_files() {
    let folder = Folder::new();
    let completed = folder.run(&["complete", "--", "schema"]).out;
    assert!(completed.lines().any(|name| name == "states"), "{completed}");
    assert_eq!(folder.run(&["complete", "--", "schema", "run"]).out, "");
    let listed = folder.run(&["schema"]);
    assert_eq!(listed.status, Some(0));
    for line in listed.out.lines() {
        let name = line.split_whitespace().next().unwrap();
        let file = format!("docs/schema/{name}.v1.json");
        let text = std::fs::read_to_string(testkit::cases::workspace_root().join(file)).unwrap();
        assert_eq!(folder.run(&["schema", name]).out, text);
    }
    assert_eq!(listed.out.lines().count(), 18);
    let wrong = folder.run(&["schema", "runs"]);
    assert_eq!(wrong.status, Some(3));
    assert!(wrong.err.contains("did you mean `run`?"), "{}", wrong.err);
}
