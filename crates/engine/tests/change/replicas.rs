//! Tests of replicas that are added and removed while a path runs.

use crate::common::{
    TIME_LIMIT, blocks_emitted, edit, edit_losslessly, received_numbers, run_while, wait_for_blocks,
};
use engine::change::{SwitchReport, reshape};
use engine::live::PathHandle;
use pipeline::plan::{Costs, FilterCost, Machine};

/// Returns a machine with this many processors, whose costs of `match` and `compress` are so high
/// that the planner replicates these filters over all processors.
fn costly_machine(processors: usize) -> Machine {
    let mut costs = Costs::default();
    for filter in ["match", "compress"] {
        let filter = filter.to_owned();
        costs.set_filter_cost(FilterCost { filter, kernel: false, block: 50_000.0, byte: 0.0 });
    }
    Machine { processors, costs, ..Machine::example() }
}

/// Replicates filters for this many processors, or removes the replicas if `processors` is 1.
/// Asserts that no block is lost, duplicated or reordered.
fn replicate_for_processors(live: &PathHandle, processors: usize) -> SwitchReport {
    let switched = reshape(live, (&[], processors > 1), &costly_machine(processors), TIME_LIMIT);
    let switched = switched.unwrap_or_else(|why| panic!("{processors}: {why}"));
    assert_eq!(
        (switched.lost, switched.duplicated, switched.reordered),
        (0, 0, 0),
        "{processors}: {switched}"
    );
    switched
}

fn replica_count(live: &PathHandle) -> usize {
    live.plan().expect("a plan").replicas.iter().map(|copied| copied.spaces.len()).sum()
}

#[test]
fn n1_v13_replicas_are_added_and_removed_under_load() {
    // The request never changes; only the machine description does.
    let text = "--parallel=latency generate rate=20000 seq=yes | inspect | match hex=ff \
                |all pcap@thread0 copies";
    let ((), outcome) = run_while(text, |live| {
        for processors in [2, 1, 3, 1, 2, 3, 1] {
            wait_for_blocks(live, 200);
            replicate_for_processors(live, processors);
            let wanted = if processors == 1 { 0 } else { processors };
            assert_eq!(replica_count(live), wanted);
            assert_eq!(
                live.request_text().as_deref(),
                Some(text),
                "nobody asked for anything else"
            );
        }
        wait_for_blocks(live, 200);
        replicate_for_processors(live, 2);
        wait_for_blocks(live, 200);
    });
    assert!(
        received_numbers("copies").into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
    let lines = outcome.ledger.filters.iter().filter(|node| node.name == "match");
    let taken: Vec<u64> = lines.map(|node| node.taken.blocks).collect();
    assert_eq!(taken, [blocks_emitted(&outcome)], "one line, whichever copy it was");
}

#[test]
fn n1_v1_section_moves_with_its_operands_behind_added_replicas() {
    for (section, name) in [
        ("(bpf \"udp\" +* !regex \"zzz\")", "classes"),
        // This operand moves the view, so the section asks it about a copy of each block.
        ("(regex \"zzz\" ++ udp)", "views"),
    ] {
        let text = format!(
            "--parallel=latency generate rate=20000 seq=yes | inspect | match hex=ff \
             |all {section} | pcap@thread0 {name}"
        );
        let ((), outcome) = run_while(&text, |live| {
            for processors in [2, 1, 3, 2, 1, 2] {
                wait_for_blocks(live, 200);
                replicate_for_processors(live, processors);
                assert_eq!(replica_count(live), if processors == 1 { 0 } else { processors });
            }
            wait_for_blocks(live, 200);
        });
        assert!(
            received_numbers(name).into_iter().eq(0..blocks_emitted(&outcome)),
            "{name}: each once, in order"
        );
    }
}

#[test]
fn n1_v13_request_with_replicas_is_edited() {
    let text = "--parallel=latency generate rate=20000 seq=yes | inspect | match hex=ff \
                |all pcap edited";
    let ((), outcome) = run_while(text, |live| {
        wait_for_blocks(live, 200);
        replicate_for_processors(live, 2);
        wait_for_blocks(live, 200);
        edit_losslessly(live, "insert dport before match");
        assert_eq!(replica_count(live), 0, "they go, and come again when it pays");
        wait_for_blocks(live, 200);
        replicate_for_processors(live, 2);
        assert_eq!(replica_count(live), 2);
        wait_for_blocks(live, 200);
        edit_losslessly(live, "remove match");
        wait_for_blocks(live, 200);
        assert_eq!(replica_count(live), 0);
        let why = reshape(live, (&[], true), &costly_machine(2), TIME_LIMIT)
            .expect_err("nothing costs much");
        assert!(why.to_string().contains("benefits from replicas"), "{why}");
        assert!(edit(live, "remove match").is_err());
    });
    assert!(
        received_numbers("edited").into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
}

/// Returns the lists of processors on which the threads with this name may run.
fn allowed_processors(name: &str) -> Vec<Vec<usize>> {
    let place = |task: std::fs::DirEntry| {
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let own = comm.trim_end() == name;
        own.then(|| list.trim().split(',').flat_map(expand_range).collect())
    };
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
    tasks.filter_map(Result::ok).filter_map(place).collect()
}

/// Expands a range such as `2-4` to the numbers in it.
fn expand_range(range: &str) -> Vec<usize> {
    let (low, high) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| text.parse().expect("a number");
    (number(low)..=number(high)).collect()
}

#[test]
fn j4_n1_added_replicas_are_pinned_to_one_processor_each() {
    let all = sys::process::allowed_processors().expect("this thread runs somewhere");
    let text = "--parallel=latency generate@thread51 rate=20000 seq=yes | inspect | match hex=ff \
                |all pcap@thread51 places";
    let ((), outcome) = run_while(text, |live| {
        for _ in 0..2 {
            wait_for_blocks(live, 200);
            replicate_for_processors(live, 2);
            wait_for_blocks(live, 200);
            let plan = live.plan().expect("a plan");
            let of_copies = |space: &usize| plan.spaces[*space].name.clone();
            let names: Vec<String> = plan.replicas[0].spaces.iter().map(of_copies).collect();
            assert_eq!(names[0], "thread51", "where the chain ran");
            // No other test has a thread51, but other tests may have a thread with the second name.
            let one_each = || {
                let on = |at: usize| all.get(at).map_or_else(|| all.clone(), |own| vec![*own]);
                allowed_processors(&names[0]) == [on(0)]
                    && allowed_processors(&names[1]).contains(&on(1))
            };
            // A thread is pinned when its space returns to it.
            testkit::wait_until("each copy keeps to a processor of its own", one_each);
            replicate_for_processors(live, 1);
            let anywhere = || allowed_processors(&names[0]) == [all.clone()];
            testkit::wait_until("the only copy runs anywhere again", anywhere);
        }
    });
    assert!(
        received_numbers("places").into_iter().eq(0..blocks_emitted(&outcome)),
        "each once, in order"
    );
}
