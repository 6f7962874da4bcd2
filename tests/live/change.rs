//! Tests of changes to a path under traffic. In most tests, the first filters of the path run in
//! the kernel. Every delivered frame passes either the old or the new graph, in order. Changes
//! after the kernel leave its programs in place.

use crate::frame_sending::{parse_capture, send_all};
use crate::numbered_frames::{FRAME_LENGTH, frame_number, numbered_frames};
use crate::scratch::Scratch;
use crate::shared_program::{attached_program_ids, quiet_pair};
use engine::build::{RunSettings, build};
use engine::change::{SwitchReport, change};
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{RunOutcome, StopConditions, run};
use pipeline::edit::Edit;
use pipeline::plan::plan;
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::net::{NamespacePair, SERVER_DEVICE, wait_until};

/// Number of frames sent between two changes.
const FRAMES_BETWEEN_CHANGES: u64 = 200;
/// Timeout of one operation, longer than any machine needs for it.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn change_request(live: &PathHandle, words: &str) -> SwitchReport {
    let words: Vec<&str> = words.split(' ').collect();
    let edit = Edit::parse(&words).expect("an edit");
    let switched = change(live, &edit, &engine::machine::inspect_machine(), OPERATION_TIMEOUT);
    let switched = switched.unwrap_or_else(|why| panic!("{words:?}: {why}"));
    let SwitchReport { lost, duplicated, reordered, .. } = switched;
    assert_eq!((lost, duplicated, reordered), (0, 0, 0), "{words:?}: {switched}");
    switched
}

#[test]
fn v3_filters_after_the_kernel_change_under_traffic() {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text = format!("rx@kernel {SERVER_DEVICE} | udp@thread0 | pcap '{}'", file.display());
    let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let paths = pair.server.run_in_network_namespace(|| {
        let plan = plan(graph, &MachineRegistry::Local, &engine::machine::inspect_machine())
            .expect("a plan");
        assert!(!plan.programs.is_empty(), "it begins in the kernel");
        build(&plan, RunSettings::default()).expect("spaces")
    });
    let live = paths[0].live();
    live.set_request_text(&text);
    let runs = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
    let programs = attached_program_ids(&pair);
    let edits = [
        "insert ipproto before udp",
        "insert dport after udp",
        "upgrade udp",
        "remove ipproto",
        "replace dport with inspect",
        "move inspect to thread1",
        "remove inspect",
    ];
    let mut sent = 0;
    for words in edits {
        send_all(&pair, &numbered_frames(sent..sent + FRAMES_BETWEEN_CHANGES, FRAME_LENGTH));
        sent += FRAMES_BETWEEN_CHANGES;
        change_request(&live, words);
    }
    send_all(&pair, &numbered_frames(sent..sent + FRAMES_BETWEEN_CHANGES, FRAME_LENGTH));
    sent += FRAMES_BETWEEN_CHANGES;
    assert_eq!(attached_program_ids(&pair), programs, "the program is the same");
    live.stop();
    let outcome = runs.join().expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    let frames = parse_capture(&std::fs::read(file).expect("a capture"));
    let all = frames.iter().map(|frame| frame_number(frame)).eq(0..sent);
    assert!(all, "each once, in order: {:#?}", outcome.ledger);
}

/// A change of the filters in the kernel replaces programs; every frame runs through either the old
/// or the new program.
#[test]
fn v6_i5_o8_filters_move_in_and_out_of_the_kernel_under_traffic() {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text = format!("rx@kernel {SERVER_DEVICE} | udp | dport |9 pcap '{}'", file.display());
    let line = LiveRequest::start(&pair, &text);
    let edits = [
        ("move dport process", 1),
        ("move udp process", 0),
        ("move udp kernel", 1),
        ("move dport kernel", 2),
        ("insert ip before udp", 3),
        ("insert sample 1 after udp", 4),
        ("move sample process", 2),
        ("remove ip", 1),
        ("move udp process", 0),
    ];
    let mut sent = 0;
    for (words, inside) in edits {
        send_all(&pair, &numbered_frames(sent..sent + FRAMES_BETWEEN_CHANGES, FRAME_LENGTH));
        sent += FRAMES_BETWEEN_CHANGES;
        let switched = change_request(&line.live, words);
        eprintln!("{words}: {switched}");
        assert_eq!(line.kernel_filters().len(), inside, "{words}: {:?}", line.kernel_filters());
        assert_eq!(attached_program_ids(&pair).len(), 1, "{words}");
    }
    send_all(&pair, &numbered_frames(sent..sent + FRAMES_BETWEEN_CHANGES, FRAME_LENGTH));
    sent += FRAMES_BETWEEN_CHANGES;
    let outcome = line.stop();
    assert!(attached_program_ids(&pair).is_empty(), "nothing stays");
    let frames = parse_capture(&std::fs::read(file).expect("a capture"));
    let all = frames.iter().map(|frame| frame_number(frame)).eq(0..sent);
    assert!(all, "each once, in order: {:#?}", outcome.ledger);
}

/// Adds branches below filters in the kernel, moves them and removes them again. Asserts that a
/// sink that stays throughout receives every frame once, in order.
#[test]
fn v3_v6_subtrees_change_below_filters_in_the_kernel_under_traffic() {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let (file, added) = (scratch.path("all.pcap"), scratch.path("added.pcap"));
    let text = format!("rx@kernel {SERVER_DEVICE} | udp | dport |9 pcap '{}'", file.display());
    let line = LiveRequest::start(&pair, &text);
    let add = format!("add pcap '{}' below dport/9", added.display());
    let edits = [
        (add.as_str(), 2),
        ("move pcap:1 from dport/9 below udp", 2),
        ("add count below udp/all", 2),
        ("move pcap:2 below dport/9", 2),
        ("join pcap:1 below udp", 2),
        ("sever pcap:1 from udp", 2),
        ("remove count all", 2),
        ("move dport process", 1),
        ("remove pcap:1 leaf", 1),
    ];
    let (mut sent, each) = (0, FRAMES_BETWEEN_CHANGES);
    for (words, inside) in edits {
        send_all(&pair, &numbered_frames(sent..sent + each, FRAME_LENGTH));
        sent += each;
        let switched = change_request(&line.live, words);
        eprintln!("{words}: {switched}: {}", switched.text);
        assert_eq!(line.kernel_filters().len(), inside, "{words}: {:?}", line.kernel_filters());
    }
    send_all(&pair, &numbered_frames(sent..sent + each, FRAME_LENGTH));
    sent += each;
    let outcome = line.stop();
    assert!(attached_program_ids(&pair).is_empty(), "nothing stays");
    let numbers = |file| -> Vec<u64> {
        let frames = parse_capture(&std::fs::read(file).expect("a capture"));
        frames.iter().map(|frame| frame_number(frame)).collect()
    };
    assert!(numbers(file).into_iter().eq(0..sent), "each once, in order: {:#?}", outcome.ledger);
    let added = numbers(added);
    assert_eq!(added[0], each, "from the change on");
    let twice = |number: u64| if (5 * each..6 * each).contains(&number) { 2 } else { 1 };
    let wanted = (each..9 * each).flat_map(|n| std::iter::repeat_n(n, twice(n)));
    // `dport` runs in the process by now: of the last frames before the removal, the thread may
    // have read some only after it.
    assert!(added.last() >= Some(&(8 * each - 1)), "{:?}", added.last());
    let (wanted, count) = (wanted.take(added.len()), added.len());
    assert!(added.into_iter().eq(wanted), "while it was there, twice with two parents: {count}");
}

/// Adds an interface to a running path as a source, and removes it again.
#[test]
fn v3_interface_source_is_added_under_traffic() {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let (file, added) = (scratch.path("all.pcap"), scratch.path("added.pcap"));
    let text = format!("rx@thread0 {SERVER_DEVICE} | udp | pcap '{}'", file.display());
    let paths = pair.server.run_in_network_namespace(|| {
        let (graph, _) = pipeline::read_request(&text, &MachineRegistry::Local);
        let machine = engine::machine::inspect_machine();
        build(
            &plan(graph, &MachineRegistry::Local, &machine).expect("a plan"),
            RunSettings::default(),
        )
        .expect("spaces")
    });
    let live = paths[0].live();
    live.set_request_text(&text);
    let thread = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
    let each = FRAMES_BETWEEN_CHANGES;
    let received = || live.take_snapshot(OPERATION_TIMEOUT).ledger.sources;
    let given = |at: usize| received().get(at).map_or(0, |(_, source)| source.given.blocks);
    send_all(&pair, &numbered_frames(0..each, FRAME_LENGTH));
    wait_until("the first frames", || given(0) == each);
    let add = format!("add rx@thread0 {SERVER_DEVICE} | pcap '{}'", added.display());
    pair.server.run_in_network_namespace(|| change_request(&live, &add));
    send_all(&pair, &numbered_frames(each..2 * each, FRAME_LENGTH));
    wait_until("both sources", || given(0) == 2 * each && given(1) == each);
    // Both have emitted all frames, so that the sink gets each of them once whatever its parent.
    let moved = change_request(&live, "move udp below rx:2");
    assert!(moved.text.contains("| discard"), "{}", moved.text);
    send_all(&pair, &numbered_frames(2 * each..3 * each, FRAME_LENGTH));
    wait_until("both sources", || given(0) == 3 * each && given(1) == 2 * each);
    change_request(&live, "remove rx:1 all");
    send_all(&pair, &numbered_frames(3 * each..4 * each, FRAME_LENGTH));
    live.stop();
    let outcome = thread.join().expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    let numbers = |file| -> Vec<u64> {
        let frames = parse_capture(&std::fs::read(file).expect("a capture"));
        frames.iter().map(|frame| frame_number(frame)).collect()
    };
    assert!(numbers(file).into_iter().eq(0..4 * each), "each once, in order");
    assert!(numbers(added).into_iter().eq(each..4 * each), "from the change on");
}

/// Changes an argument of `sample` in the kernel twice. Asserts that each new program uses the new
/// value, and continues the count of the previous one.
#[test]
fn v3_argument_of_a_filter_in_the_kernel_is_set_under_traffic() {
    let Some(pair) = quiet_pair() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text = format!("rx@kernel {SERVER_DEVICE} | sample@kernel 3 | pcap '{}'", file.display());
    let line = LiveRequest::start(&pair, &text);
    let mut wanted = Vec::new();
    for (round, every) in [3, 7, 2].into_iter().enumerate() {
        if round > 0 {
            let switched = change_request(&line.live, &format!("arg sample every={every}"));
            assert!(switched.text.contains(&format!("| sample@kernel {every} |")));
        }
        assert_eq!(line.kernel_filters(), ["sample"]);
        let from = round as u64 * FRAMES_BETWEEN_CHANGES;
        send_all(&pair, &numbered_frames(from..from + FRAMES_BETWEEN_CHANGES, FRAME_LENGTH));
        wanted.extend(
            (from..from + FRAMES_BETWEEN_CHANGES).filter(|number| number.is_multiple_of(every)),
        );
    }
    line.stop();
    assert!(attached_program_ids(&pair).is_empty(), "nothing stays");
    let frames = parse_capture(&std::fs::read(file).expect("a capture"));
    assert!(frames.iter().map(|frame| frame_number(frame)).eq(wanted));
}

/// A running request, which runs in a thread of the test.
pub(crate) struct LiveRequest {
    pub(crate) live: PathHandle,
    thread: JoinHandle<RunOutcome>,
}

impl LiveRequest {
    pub(crate) fn start(pair: &NamespacePair, text: &str) -> Self {
        let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
        assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
        let paths = pair.server.run_in_network_namespace(|| {
            let plan = plan(graph, &MachineRegistry::Local, &engine::machine::inspect_machine())
                .expect("a plan");
            assert!(!plan.programs.is_empty(), "it begins in the kernel");
            build(&plan, RunSettings::default()).expect("spaces")
        });
        let live = paths[0].live();
        live.set_request_text(text);
        let thread = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
        Self { live, thread }
    }

    /// Returns the filters that run in the kernel.
    pub(crate) fn kernel_filters(&self) -> Vec<String> {
        let plan = self.live.plan().expect("a plan");
        let steps = plan.programs.iter().flat_map(|program| &program.steps);
        let nodes = steps.flat_map(|step| &step.nodes);
        nodes.map(|id| plan.graph.node(*id).name().to_owned()).collect()
    }

    /// Returns the number of blocks that the sink `pcap` has received so far.
    pub(crate) fn blocks_received(&self) -> u64 {
        let ledger = self.live.take_snapshot(OPERATION_TIMEOUT).ledger;
        let sink = ledger.filters.iter().find(|node| node.name == "pcap");
        sink.map_or(0, |node| node.taken.blocks)
    }

    /// Stops the request, waits for its end, and returns its outcome.
    pub(crate) fn stop(self) -> RunOutcome {
        self.live.stop();
        let outcome = self.thread.join().expect("a run");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
        outcome
    }
}
