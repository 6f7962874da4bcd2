//! Tests of `--latency`: blocks that exceed the bound are counted, and reported during the run.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use serde_json::Value;
use testkit::wait_until;

/// Runs a request. Returns the latency in its report, its warnings, and its running time in
/// seconds.
fn run_and_read_latency(line: &str) -> (Value, Vec<String>, f64) {
    let ran = Folder::new().run(&["run", "--embedded", "--json", line]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    let last = ran.err.lines().last().unwrap();
    let report: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{}", ran.err));
    let warned = ran.err.lines().filter(|line| line.starts_with("warning: "));
    let seconds = report["elapsed_ns"].as_f64().unwrap() / 1e9;
    (report["latency"].clone(), warned.map(str::to_owned).collect(), seconds)
}

#[test]
fn v14_slow_program_exceeds_the_bound_and_alarms_each_second() {
    // A pipe holds 46 of these blocks. The next block waits until the program reads.
    let line = "--latency=20ms generate count=400 size=1400 | exec 'sleep 2; cat >/dev/null'";
    let (latency, warned, seconds) = run_and_read_latency(line);
    let way = &latency["ways"][0];
    assert_eq!((&way["name"], &way["blocks"]), (&"exec".into(), &400.into()), "{latency}");
    assert!(way["late"].as_u64().unwrap() >= 1, "{latency}");
    assert!(way["worst_ns"].as_u64().unwrap() > 1_000_000_000, "{latency}");
    assert!(!warned.is_empty() && warned.len() as f64 <= seconds + 1.0, "{seconds} s: {warned:?}");
    assert_eq!(latency["alarms"], warned.len(), "{warned:?}");
    let names_program_and_bound =
        |text: &String| text.contains("when `exec` received it") && text.contains("20ms");
    assert!(warned.iter().all(names_program_and_bound), "{warned:?}");
}

#[test]
fn v14_blocks_waiting_in_a_ring_raise_an_alarm() {
    // The program blocks the second thread, so that it does not read its ring.
    let line = "--latency=20ms generate count=2000 size=1400 | match hex=00 @thread1 |all \
                exec 'sleep 3; cat >/dev/null'";
    let (latency, warned, _) = run_and_read_latency(line);
    let wait = &latency["waits"][0];
    assert_eq!(wait["name"], "generate → match", "{latency}");
    assert!(wait["late"].as_u64().unwrap() >= 1, "{latency}");
    let alarm =
        warned.iter().find(|text| text.contains("generate → match: a block has waited for"));
    assert!(alarm.is_some(), "before the sink has taken any: {warned:?}");
}

#[test]
fn v14_request_within_its_bound_raises_no_alarm() {
    // Even a very slow machine meets this bound.
    let line = "--latency=60s generate count=500 rate=2000 | inspect | count @thread1";
    let (latency, warned, _) = run_and_read_latency(line);
    assert_eq!((latency["alarms"].as_u64(), warned.len()), (Some(0), 0), "{warned:?}");
    let way = &latency["ways"][0];
    assert_eq!((&way["blocks"], &way["late"]), (&500.into(), &0.into()), "{latency}");
    let wait = &latency["waits"][0];
    assert!(wait["blocks"].as_u64().unwrap() > 0, "the ring was looked at: {latency}");
    assert_eq!((&wait["late"], &wait["share_ns"]), (&0.into(), &60_000_000_000_u64.into()));
}

#[test]
fn v14_request_without_a_bound_reports_no_latency() {
    let (latency, warned, _) = run_and_read_latency("generate count=100 | count");
    assert_eq!((latency, warned), (Value::Null, Vec::new()));
}

#[test]
fn v14_ps_and_top_report_an_exceeded_bound() {
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    // The program does not read for 2 s, so blocks are late.
    let line = "--latency=20ms generate rate=1000 size=1400 | exec 'sleep 2; cat >/dev/null'";
    let _late = folder.spawn_named_path("late", line);
    let _soon = folder.spawn_named_path("soon", "--latency=60s generate rate=1000 | count");
    let _none = folder.spawn_named_path("none", "generate rate=1000 | count");
    let mut listing = String::new();
    wait_until("ps tells which path is late", || {
        listing = folder.run(&["ps"]).out;
        listing.contains(" late: ")
    });
    let number = |name: &str| {
        let row = listing.lines().find(|row| row.split_whitespace().nth(1) == Some(name)).unwrap();
        row.split_whitespace().next().unwrap().to_owned()
    };
    let late: Vec<&str> = listing.lines().filter(|row| row.contains(" late: ")).collect();
    assert_eq!(late.len(), 1, "{listing}");
    assert!(late[0].starts_with(&format!("{} late: ", number("late"))), "{listing}");
    assert!(late[0].contains("exec took ") && late[0].contains(" of 20 ms"), "{listing}");
    let picture = folder.run(&["top", "--once", "late"]);
    assert_eq!(picture.status, Some(0), "{picture:?}");
    assert!(picture.out.contains("late: ") && picture.out.contains("exec took "), "{picture:?}");
    let picture = folder.run(&["top", "--once", "soon"]);
    assert!(picture.status == Some(0) && !picture.out.contains("late: "), "{picture:?}");
    let listed = folder.run(&["ps", "--json"]);
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    for row in listed["paths"].as_array().unwrap() {
        let latency = &row["counters"]["latency"];
        let way = &latency["ways"][0];
        match row["name"].as_str().unwrap() {
            "late" => {
                assert_eq!(latency["asked_ns"], 20_000_000, "{latency}");
                assert!(way["late"].as_u64().unwrap() >= 1, "{latency}");
                assert!(way["worst_ns"].as_u64().unwrap() > 20_000_000, "{latency}");
            }
            "soon" => assert_eq!((&latency["alarms"], &way["late"]), (&0.into(), &0.into())),
            _ => assert!(latency.is_null(), "{latency}"),
        }
    }
}

#[test]
fn v14_replayed_record_measures_no_latency() {
    let folder = Folder::new();
    let line = "--latency=1ms generate count=50 rate=1000 | print";
    let made = folder.run(&["run", "--embedded", "--record=r.pcapng", line]);
    assert_eq!(made.status, Some(0), "{}", made.err);
    // The blocks of a record are older than any bound.
    let again = folder.run(&["run", "--embedded", "--json", "--replay", "r.pcapng"]);
    assert_eq!((again.status, &again.out.is_empty()), (Some(0), &false), "{}", again.err);
    assert!(!again.err.contains("old when"), "{}", again.err);
    assert!(!again.err.contains("\"latency\""), "{}", again.err);
}
