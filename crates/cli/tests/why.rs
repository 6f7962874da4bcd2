//! Tests of `streamline why`, which traces a flow. (v12)

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use serde_json::Value;

/// Returns the traced nodes that `why` prints as JSON.
fn node_fates(folder: &Folder, words: &[&str]) -> Vec<Value> {
    let ran = folder.run(&[&["why", "--json"], words].concat());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["version"], 1);
    value["nodes"].as_array().unwrap().clone()
}

fn json_number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn v12_trace_of_one_connection_ignores_others() {
    let folder = Folder::new();
    let line = "tcp | http |get files got/ per=message";
    let whole = "replay examples/web.pcap | tcp | http |get files got/ per=message";
    let made = folder.run(&["run", "--record=r.pcapng", whole]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let flow = folder.run(&["replay examples/web.pcap | bpf \"tcp port 80\" | print", "-c1"]);
    let words: Vec<&str> = flow.out.split_whitespace().collect();
    let at = words.iter().position(|word| *word == ">").unwrap();
    let ends = (words[at - 1], words[at + 1].trim_end_matches(':'));
    let flow = format!("tcp {} {}", ends.0, ends.1);
    let expression = {
        let end = |text: &str| {
            let (host, port) = text.rsplit_once(':').unwrap();
            format!("host {host} and port {port}")
        };
        format!("tcp and {} and {}", end(ends.0), end(ends.1))
    };
    // The reference is a run that uses the same expression as its filter.
    let text = format!("replay examples/web.pcap | bpf \"{expression}\" | print");
    let packets = folder.run(&[&*text, "-q"]).out.lines().count() as u64;
    assert!(packets > 5, "{text}");
    let before = std::fs::read_dir(folder.path().join("got")).unwrap().count();
    for words in [&[&*flow, "examples/web.pcap", line][..], &[&flow, "r.pcapng"]] {
        let nodes = node_fates(&folder, words);
        let names: Vec<_> = nodes.iter().map(|node| node["filter"].as_str().unwrap()).collect();
        assert_eq!(names, ["replay", "tcp", "http", "files"]);
        assert_eq!(json_number(&nodes[0]["answered"]["yes"]), packets);
        assert_eq!(nodes[0]["packets"].as_array().unwrap().len() as u64, packets);
        let tcp = &nodes[1];
        assert_eq!(json_number(&tcp["blocks"]), packets);
        let left: u64 = tcp["answered"].as_object().unwrap().values().map(json_number).sum();
        let back = json_number(&tcp["released"]) + json_number(&tcp["made"]);
        let stayed = json_number(&tcp["consumed"]) + json_number(&tcp["held"]);
        assert_eq!(packets + back, left + stayed, "{tcp}");
        assert!(json_number(&nodes[3]["blocks"]) > 0);
        assert!(json_number(&nodes[2]["answered"]["get"]) >= json_number(&nodes[3]["blocks"]));
    }
    let after = std::fs::read_dir(folder.path().join("got")).unwrap().count();
    assert_eq!(before, after, "nothing is written");
}

#[test]
fn v12_trace_has_reasons_for_drops_and_waits() {
    let folder = Folder::new();
    let nodes = node_fates(&folder, &["port 53", "examples/web.pcap", "tcp | discard"]);
    let (source, tcp) = (&nodes[0], &nodes[1]);
    let came = json_number(&source["answered"]["yes"]);
    assert_eq!(json_number(&tcp["unanswered"]["not tcp"]), came);
    assert_eq!((json_number(&tcp["unselected"]), nodes.len()), (came, 2));
    let limited =
        node_fates(&folder, &["ip", "examples/web.pcap", "dport | ratelimit 1 | discard"]);
    let names: Vec<_> = limited.iter().map(|node| node["filter"].as_str().unwrap()).collect();
    assert_eq!(names, ["replay", "dport", "ratelimit", "discard"]);
    let rate = &limited[2];
    assert_eq!(
        json_number(&rate["blocks"]),
        json_number(&rate["answered"]["yes"]) + {
            let reasons =
                ["dropped", "unanswered"].map(|what| rate[what].as_object().unwrap().clone());
            reasons.iter().flat_map(|all| all.values()).map(json_number).sum::<u64>()
        }
    );
    let table = folder.run(&["why", "port 53", "examples/web.pcap", "tcp | discard"]);
    assert!(table.out.contains("not answered"), "{}", table.out);
}

#[test]
fn v12_untraceable_run_is_refused_with_a_reason() {
    let folder = Folder::new();
    let none = folder.run(&["why", "tcp port 9", "examples/web.pcap", "count"]);
    assert_eq!(none.status, Some(3), "{none:?}");
    let wrong = folder.run(&["why", "tcp prt 9", "examples/web.pcap", "count"]);
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    let bare = folder.run(&["why", "tcp", "examples/web.pcap"]);
    assert!(bare.err.contains("is a capture and no record"), "{}", bare.err);
}
