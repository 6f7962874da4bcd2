//! Tests of the catalog on the command line: help for filters, examples, completion, explanations
//! and benchmarks.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use engine::registry::MachineRegistry;
use pipeline::Registry;
use serde_json::Value;
use std::fs;

#[test]
fn every_filter_is_listed_and_described() {
    let folder = Folder::new();
    let list = folder.run(&["filters"]).out;
    for name in MachineRegistry::Local.names() {
        assert!(
            list.lines().any(|line| line.trim_start().starts_with(&format!("{name} "))),
            "{name}"
        );
        let description = folder.run(&["filters", name]);
        assert_eq!(description.status, Some(0));
        assert!(
            description.out.starts_with(&format!("{name}: "))
                && description.out.lines().count() > 8,
            "{name}"
        );
        let entry = MachineRegistry::Local.find(name).unwrap();
        for known in entry.parameters {
            assert!(
                description.out.contains(known.help.split(' ').next().unwrap()),
                "{name} {}",
                known.name
            );
        }
    }
}

/// The introduction of the book's page about all filters.
const FILTERS_PAGE_HEAD: &str = "\
# Filters

All sources, filters and sinks, as `streamline filters NAME` prints them. This page is generated:
`UPDATE=1 cargo test -p streamline-cli --test catalog` writes it again.

Every filter between source and sink also takes these parameters:

```text
untrusted     run the filter in a sandboxed process that can only compute (yes or no; optional)
state         publish the state of the filter under this name (`streamline state NAME`) (a name;
              optional)
state_mode    who may read the state: you alone (600, the default), your group, everybody (600
              or 640 or 644; optional)
```
";

/// Compares the book's page about filters with their descriptions. With `UPDATE=1`, writes the
/// page.
#[test]
fn filters_page_of_the_book_matches_the_descriptions() {
    let folder = Folder::new();
    let mut page = FILTERS_PAGE_HEAD.to_owned();
    let of_every_filter: String = FILTERS_PAGE_HEAD
        .split("```text\n")
        .skip(1)
        .flat_map(|rest| rest.split("```").next().unwrap().lines())
        .map(|line| format!("    {line}\n"))
        .collect();
    let of_every_filter = format!("Parameters of every filter\n{of_every_filter}\n");
    let mut removed = 0;
    for line in folder.run(&["filters"]).out.lines() {
        match line.strip_prefix("  ").and_then(|entry| entry.split(' ').next()) {
            Some(_) if line.ends_with("only in test builds") => {}
            // If a name belongs to a source and a sink, `filters NAME` describes both at once.
            Some(name) if page.contains(&format!("\n### {name}\n")) => {}
            Some(name) => {
                let description = folder.run(&["filters", name]).out;
                removed += description.matches(&of_every_filter).count();
                let description = description.replace(&of_every_filter, "");
                page.push_str(&format!(
                    "\n### {name}\n\n```text\n{}\n```\n",
                    description.trim_end()
                ));
            }
            None if line.is_empty() || line.starts_with('`') => {}
            None => page.push_str(&format!("\n## {line}\n")),
        }
    }
    assert!(removed > 20, "the parameters of every filter are described in other words: {removed}");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/filters.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(file, &page).unwrap();
    }
    let current = fs::read_to_string(file).unwrap_or_default() == page;
    assert!(current, "docs/book/filters.md is old: write it again with UPDATE=1");
}

#[test]
fn request_options_are_in_help_and_book() {
    let folder = Folder::new();
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/02-language.md");
    let book = fs::read_to_string(book).unwrap();
    for command in ["run", "start", "check", "explain"] {
        let help = folder.run(&[command, "--help"]).out;
        for known in pipeline::check::REQUEST_OPTIONS {
            let option = format!("  --{}", known.name);
            assert!(help.contains(&option), "{command}: {option}");
            assert!(book.contains(&format!("`--{}", known.name)), "{option} is not in the book");
        }
    }
}

#[test]
fn printed_examples_run_as_typed() {
    let folder = Folder::new();
    let printed = folder.run(&["examples"]).out;
    let lines: Vec<&str> =
        printed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines.len() >= 8);
    for line in lines {
        assert_eq!(folder.run(&["check", line]).status, Some(0), "{line}");
    }
}

/// A user who has only the program can obtain the book's example requests and the capture that they
/// read.
#[test]
fn examples_are_written_once_and_run() {
    let folder = Folder::new();
    let ran = folder.run(&["examples", "--write", "new/tour"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let tour = folder.path().join("new/tour");
    let same = |name: &str| {
        fs::read(tour.join(name)).unwrap()
            == fs::read(common::examples_directory().join(name)).unwrap()
    };
    assert!(same("web.pcap") && same("packets.pipe"));
    let typed = ran.out.lines().find_map(|line| line.trim_start().strip_prefix("streamline "));
    let mut shell = folder.shell_command(&format!("streamline {} | head -1", typed.unwrap()));
    let printed = CommandResult::from(shell.output().unwrap());
    assert!(printed.out.contains(" TCP ") || printed.out.contains("tcp"), "{printed:?}");
    // A second call succeeds without changes. A modified file is preserved and reported.
    assert_eq!(folder.run(&["examples", "--write", "new/tour"]).status, Some(0));
    fs::write(tour.join("count.pipe"), "# mine\n").unwrap();
    let refused = folder.run(&["examples", "--write", "new/tour"]);
    assert!(refused.status == Some(1) && refused.err.contains("count.pipe"), "{refused:?}");
    assert_eq!(fs::read_to_string(tour.join("count.pipe")).unwrap(), "# mine\n");
}

#[test]
fn explain_has_text_json_and_dot_forms() {
    let folder = Folder::new();
    let line = "replay examples/web.pcap | dport |80 count @thread1 | discard";
    let text = folder.run(&["explain", line]);
    assert_eq!(text.status, Some(0), "{}", text.err);
    for word in ["refused elsewhere", "pinned to thread1", "calibration", "○  replay"] {
        assert!(text.out.contains(word), "{word}: {}", text.out);
    }
    let json: Value = serde_json::from_str(&folder.run(&["explain", "--json", line]).out).unwrap();
    assert_eq!(json["version"], 1);
    let filters = json["filters"].as_array().unwrap();
    assert_eq!(filters.len(), 4);
    let spaces = json["spaces"].as_array().unwrap();
    let count = filters.iter().find(|filter| filter["name"] == "count").unwrap();
    assert_eq!(
        spaces[usize::try_from(count["space"].as_u64().unwrap()).unwrap()]["name"],
        "thread1"
    );
    assert_eq!(json["edges"].as_array().unwrap().len(), 3);
    let dot = folder.run(&["explain", "--dot", line]).out;
    assert!(dot.starts_with("digraph ") && dot.contains("cluster_0"), "{dot}");
}

#[test]
fn kernel_prefilter_is_explained_without_an_interface() {
    let folder = Folder::new();
    let offloadable = "rx nowhere0 both=yes | bpf \"tcp port 80\" | count";
    let unsupported = "tx@thread0 nowhere0 | bpf \"ip protochain 51\" | count";
    let prefilters_of = |line| {
        let ran = folder.run(&["explain", "--json", line]);
        assert_eq!(ran.status, Some(0), "{}", ran.err);
        serde_json::from_str::<Value>(&ran.out).unwrap()["ahead"].clone()
    };
    let prefilters = prefilters_of(offloadable);
    assert_eq!(
        (&prefilters[0]["source"], &prefilters[0]["filter"]),
        (&"rx".into(), &"bpf".into()),
        "{prefilters}"
    );
    assert!(
        prefilters[0]["except"].is_null() && prefilters[0]["refused"].is_null(),
        "{prefilters}"
    );
    let refused = prefilters_of(unsupported)[0]["refused"].as_str().unwrap().to_owned();
    assert!(
        refused.ends_with("its program has a loop, which the kernel does not accept"),
        "{refused}"
    );
    assert_eq!(prefilters_of("replay examples/web.pcap | bpf tcp | count"), serde_json::json!([]));
    let text = folder.run(&["explain", offloadable]).out;
    assert!(text.contains(" bpf: runs in the kernel too, as the socket filter of rx: "), "{text}");
}

#[test]
fn analyze_prints_measurements() {
    let folder = Folder::new();
    let ran = folder.run(&["explain", "--analyze", "replay examples/web.pcap | count"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(0), "105 blocks, 27828 bytes\n"));
    for word in ["refused elsewhere", "ns/block", "the ledger balances"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
}

#[test]
fn v1_analyze_prints_and_saves_measurements_and_estimates() {
    let folder = Folder::new();
    // The run has fewer than 64 blocks. With more blocks, costs would be saved if a busy machine
    // made the run last 2 ms.
    let few = folder.run(&["explain", "--analyze", "generate count=50 | ip | count"]);
    assert!(few.err.contains("received fewer than 4096 blocks: "), "{}", few.err);
    let costs = folder.path().join("state/streamline/costs");
    assert!(!fs::read_to_string(&costs).unwrap().contains("filter thread "));
    let web = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap")).unwrap();
    let (head, packets) = web.split_at(24);
    let many = folder.path().join("many.pcap");
    fs::write(&many, [head, &packets.repeat(60)].concat()).unwrap();
    let line = &format!("replay {} | bpf \"tcp port 80\" | ip | count", many.display());
    let ran = folder.run(&["explain", "--analyze", line]);
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    for word in ["expected", "blocks/s", "per call", "replay → bpf", "share", "wake-ups"] {
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
    }
    // Both notes are possible, because costs measured on a busy machine may favor another plan.
    let is_saved = ["measurements saved: ", "next time "].iter().any(|t| ran.err.contains(t));
    assert!(is_saved, "{}", ran.err);
    let kept = folder.path().join("state/streamline");
    let costs = fs::read_to_string(kept.join("costs")).unwrap();
    assert!(costs.lines().any(|l| l.starts_with("filter thread ") && l.ends_with(" ip")));
    let share = costs.lines().find(|l| l.starts_with("share ") && l.contains(" bpf ")).unwrap();
    let share: f64 = share.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(share > 0.0 && share < 1.0, "{share}");
    let explained = folder.run(&["explain", line]);
    let provenance = "a block of a source, by measured flows";
    assert!(explained.out.contains(provenance), "{}", explained.out);
    let counted = folder.run(&["explain", "--analyze", "-c", "10", "generate | print"]);
    assert_eq!(counted.status, Some(0), "{}", counted.err);
    let timed =
        folder.run(&["explain", "--analyze", "--for", "20ms", "generate | discard@thread1"]);
    assert!(timed.err.contains(" of 4096"), "the ring's fill: {}", timed.err);
    assert_eq!(folder.run(&["explain", "-c", "10", "generate | print"]).status, Some(2));
}

#[test]
fn v6_explain_reports_differences_to_the_analyzed_plan() {
    let folder = Folder::new();
    let line = "generate count=1000 | count | discard";
    assert_eq!(folder.run(&["explain", "--analyze", line]).status, Some(0));
    let plans = folder.path().join("state/streamline/plans");
    let kept = fs::read_dir(plans).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&kept).unwrap();
    assert!(text.contains("\nthread0 1 thread0 ") && text.contains(" count\n"), "{text}");
    // Modifies the saved plan, as if `count` had run in another thread.
    let moved = text.replacen("thread0 1 thread0", "thread1 1 thread1", 3);
    fs::write(&kept, moved).unwrap();
    let explained = folder.run(&["explain", line]);
    let note = "since it was analyzed: `count` runs in thread0 now, not in thread1: thread0 ";
    assert!(explained.err.contains(note), "{}", explained.err);
    assert!(explained.err.contains("thread1 refuses it now, then "), "{}", explained.err);
}

#[test]
fn unplaceable_filter_is_explained_by_the_plan_table() {
    let folder = Folder::new();
    for command in ["explain", "run"] {
        let ran = folder.run(&[command, "replay examples/web.pcap | dport @kernel |53 count"]);
        assert_eq!((ran.status, ran.out.as_str()), (Some(1), ""), "{}", ran.err);
        assert!(ran.err.starts_with("error: no space can run `dport`\n  replay"), "{}", ran.err);
        assert!(ran.err.contains("refused elsewhere"), "{}", ran.err);
    }
}

#[test]
fn completion_scripts_are_accepted_by_their_shells() {
    let folder = Folder::new();
    let asked = "
        . ./script
        COMP_WORDS=(streamline \"'replay x | dp\") COMP_CWORD=1
        _streamline_or_line streamline 'replay x | dp' streamline
        echo \"${COMPREPLY[0]}\"
        for typed in 'doctor k' 'schema spa' 'completion fi'; do
            COMP_WORDS=(streamline $typed) COMP_CWORD=2
            _streamline_or_line streamline \"${COMP_WORDS[2]}\" \"${COMP_WORDS[1]}\"
            echo \"${COMPREPLY[*]}\"
        done";
    fs::write(folder.path().join("asked"), asked).unwrap();
    let script = "streamline completion bash > script && bash -n script && bash asked";
    let ran = CommandResult::from(folder.shell_command(script).output().unwrap());
    assert_eq!(ran.out, "replay x | dport\nkernel\nspaces\nfish\n", "{}", ran.err);
    for shell in ["zsh", "fish"] {
        assert!(folder.run(&["completion", shell]).out.contains("streamline"));
    }
}

#[test]
fn bench_and_page_run_the_programs_in_their_directory() {
    let folder = Folder::new();
    // The shell copies the program. If this process copied it, the copy might still be open for
    // writing in a child of another test, so that it could not be executed (ETXTBSY).
    let copied = format!("cp '{}' streamline", env!("CARGO_BIN_EXE_streamline"));
    assert!(folder.shell_command(&copied).status().unwrap().success());
    for (name, install) in [("bench", "xtask install --bench"), ("page", "xtask install")] {
        let ran = folder.shell_command(&format!("PATH=/nowhere ./streamline {name} chain"));
        let ran = CommandResult::from({ ran }.output().unwrap());
        assert_eq!(ran.status, Some(3));
        assert!(ran.err.contains(install), "{}", ran.err);
        let script = format!(
            "printf '#!/bin/sh\\necho \"$@\"\\nexit 7\\n' > streamline-{name}
            chmod +x streamline-{name}
            ./streamline {name} chain --json --help"
        );
        let ran = CommandResult::from(folder.shell_command(&script).output().unwrap());
        let expected = (Some(7), "chain --json --help\n");
        assert_eq!((ran.status, ran.out.as_str()), expected, "{}", ran.err);
    }
}

/// The filter `pcap`, not the sink, takes its own parameters and those of every filter.
#[test]
fn filter_with_the_name_of_a_sink_takes_its_parameters() {
    let folder = Folder::new();
    for given in ["", "sessions=5", "untrusted=yes"] {
        let line = format!("replay examples/web.pcap | tcp | pcap {given} | compress | files out");
        let checked = folder.run(&["check", &line]);
        assert_eq!(checked.status, Some(0), "{given}: {checked:?}");
    }
    // The sandbox, too, starts the filter.
    let line = "replay examples/web.pcap | tcp | pcap untrusted=yes | count";
    let ran = folder.run(&["run", "--quiet", line]);
    let trusted = folder.run(&["run", "--quiet", &line.replace(" untrusted=yes", "")]);
    assert_eq!((ran.status, &ran.out), (Some(0), &trusted.out), "{ran:?}");
    for given in ["x.pcap", "per=session", "file=x.pcap"] {
        let line = format!("replay examples/web.pcap | tcp | pcap {given} | compress | files out");
        assert_eq!(folder.run(&["check", &line]).status, Some(2), "{given}");
    }
}
