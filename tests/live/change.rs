//! A path whose beginning runs in the kernel is changed behind it: the programs stay, and every
//! frame that they hand over reaches exactly one of the old graph and the new one, in order.

use crate::numbers::{SHORT, number, numbered};
use crate::scratch::Scratch;
use crate::send::{frames_of, send_all};
use crate::shared::{chain, silent};
use engine::build::{Settings, build};
use engine::catalogue::House;
use engine::change::{Switched, change};
use engine::live::Live;
use engine::run::{Outcome, Until, run};
use pipeline::edit::Edit;
use pipeline::plan::plan;
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::net::{Pair, SERVER_DEVICE};

/// Frames sent between two changes.
const FRAMES: u64 = 200;
/// Longer than any machine takes to do what it is asked.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn set(live: &Live, words: &str) -> Switched {
    let words: Vec<&str> = words.split(' ').collect();
    let edit = Edit::parse(&words).expect("an edit");
    let switched = change(live, &edit, &engine::machine::look(), LONG);
    let switched = switched.unwrap_or_else(|why| panic!("{words:?}: {why}"));
    let Switched { lost, duplicated, reordered, .. } = switched;
    assert_eq!((lost, duplicated, reordered), (0, 0, 0), "{words:?}: {switched}");
    switched
}

#[test]
fn v3_filters_behind_the_kernel_change_while_frames_come() {
    let Some(pair) = silent() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text = format!("rx@kernel {SERVER_DEVICE} | udp@thread0 | pcap '{}'", file.display());
    let (graph, mistakes) = pipeline::read(&text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let paths = pair.server.enter(|| {
        let plan = plan(graph, &House, &engine::machine::look()).expect("a plan");
        assert!(!plan.programs.is_empty(), "it begins in the kernel");
        build(&plan, Settings::default()).expect("spaces")
    });
    let live = paths[0].live();
    live.says(&text);
    let runs = std::thread::spawn(|| run(paths, Until::default()).expect("a run"));
    let programs = chain(&pair);
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
        send_all(&pair, &numbered(sent..sent + FRAMES, SHORT));
        sent += FRAMES;
        set(&live, words);
    }
    send_all(&pair, &numbered(sent..sent + FRAMES, SHORT));
    sent += FRAMES;
    assert_eq!(chain(&pair), programs, "the program is the same");
    live.stop();
    let outcome = runs.join().expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    let frames = frames_of(&std::fs::read(file).expect("a capture"));
    let all = frames.iter().map(|frame| number(frame)).eq(0..sent);
    assert!(all, "each once, in order: {:#?}", outcome.ledger);
}

/// A change of the kernel's part swaps programs, and every frame meets exactly one of both.
#[test]
fn v6_i5_o8_filters_move_in_and_out_of_the_kernel_under_traffic() {
    let Some(pair) = silent() else { return };
    let scratch = Scratch::new();
    let file = scratch.path("all.pcap");
    let text = format!("rx@kernel {SERVER_DEVICE} | udp | dport |9 pcap '{}'", file.display());
    let line = Line::start(&pair, &text);
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
        send_all(&pair, &numbered(sent..sent + FRAMES, SHORT));
        sent += FRAMES;
        let switched = set(&line.live, words);
        eprintln!("{words}: {switched}");
        assert_eq!(line.in_kernel().len(), inside, "{words}: {:?}", line.in_kernel());
        assert_eq!(chain(&pair).len(), 1, "{words}");
    }
    send_all(&pair, &numbered(sent..sent + FRAMES, SHORT));
    sent += FRAMES;
    let outcome = line.stop();
    assert!(chain(&pair).is_empty(), "nothing stays");
    let frames = frames_of(&std::fs::read(file).expect("a capture"));
    let all = frames.iter().map(|frame| number(frame)).eq(0..sent);
    assert!(all, "each once, in order: {:#?}", outcome.ledger);
}

/// A line that runs.
pub(crate) struct Line {
    pub(crate) live: Live,
    thread: JoinHandle<Outcome>,
}

impl Line {
    pub(crate) fn start(pair: &Pair, text: &str) -> Self {
        let (graph, mistakes) = pipeline::read(text, &House);
        assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
        let paths = pair.server.enter(|| {
            let plan = plan(graph, &House, &engine::machine::look()).expect("a plan");
            assert!(!plan.programs.is_empty(), "it begins in the kernel");
            build(&plan, Settings::default()).expect("spaces")
        });
        let live = paths[0].live();
        live.says(text);
        let thread = std::thread::spawn(|| run(paths, Until::default()).expect("a run"));
        Self { live, thread }
    }

    /// The filters that run in the kernel.
    pub(crate) fn in_kernel(&self) -> Vec<String> {
        let plan = self.live.plan().expect("a plan");
        let steps = plan.programs.iter().flat_map(|program| &program.steps);
        let nodes = steps.flat_map(|step| &step.nodes);
        nodes.map(|id| plan.graph.node(*id).name().to_owned()).collect()
    }

    /// Returns the blocks that the threads have received so far.
    pub(crate) fn given(&self) -> u64 {
        let ledger = self.live.counters(LONG).ledger;
        ledger.filters.iter().map(|node| node.taken.blocks).sum()
    }

    pub(crate) fn stop(self) -> Outcome {
        self.live.stop();
        let outcome = self.thread.join().expect("a run");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
        outcome
    }
}
