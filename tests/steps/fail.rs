//! Each step of an allocation fails once. What this process has is looked at in a process of its
//! own, where no other test runs beside.

use crate::scratch::Scratch;
use crate::shapes::{SHAPES, Shape};
use engine::build::{Extras, Settings, build_with};
use engine::catalogue::House;
use engine::kernel::point::Points;
use engine::record::{Head, Recording, Tape};
use engine::run::{Until, run};
use pipeline::plan::plan;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sys::steps::{InjectedFault, Steps};
use testkit::net::{Cable, Pair};
use testkit::resources::Resources;
use testkit::{need, until};

#[test]
fn a17_o4_a_failing_step_leaves_the_machine_as_before() {
    if testkit::alone("fail::a17_o4_a_failing_step_leaves_the_machine_as_before") {
        each_step_of(|shape| shape.always);
    }
}

#[test]
#[ignore = "two minutes: cargo test -p streamline-tests --test steps -- --ignored each_step_of_all"]
fn a17_o4_each_step_of_all_requests_fails_and_the_machine_is_as_before() {
    assert!(SHAPES.len() >= 50, "{} shapes", SHAPES.len());
    if testkit::alone("fail::a17_o4_each_step_of_all_requests_fails_and_the_machine_is_as_before") {
        each_step_of(|_| true);
    }
}

fn each_step_of(wanted: impl Fn(&Shape) -> bool) {
    if need::bpf().is_none() || need::root().is_none() {
        return;
    }
    let cable = Cable { addresses: false, ..Cable::default() };
    let Some(pair) = Pair::new(cable) else { return };
    let mut trial = Trial::new(pair);
    let (mut shapes, mut steps, mut went_on) = (0, 0, 0);
    for shape in SHAPES.iter().filter(|shape| wanted(shape)) {
        let (failed, survived) = trial.try_each_step(shape);
        shapes += 1;
        steps += failed + survived;
        went_on += survived;
    }
    eprintln!("{shapes} requests, {steps} steps failed, {went_on} of them were gone on without");
}

/// The setting in which requests are tried.
struct Trial {
    pair: Pair,
    /// The folder in which requests write.
    folder: Scratch,
    capture: PathBuf,
    /// The state of this process without a request.
    base: Resources,
}

impl Trial {
    fn new(pair: Pair) -> Self {
        let folder = Scratch::new();
        fs::create_dir(folder.path("here")).expect("a folder");
        let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/web.pcap");
        let base = Resources::alone(&pair, &folder.path("here"));
        Self { pair, folder, capture, base }
    }

    fn here(&self) -> PathBuf {
        self.folder.path("here")
    }

    /// Answers how many steps failed with the request, and how many without.
    fn try_each_step(&mut self, shape: &Shape) -> (u32, u32) {
        let line = shape.line(&self.here(), &self.capture);
        // What a process makes once and keeps is made now: a timer, a table of types.
        let kept = self.attempt(shape, &line, &Steps::default());
        kept.unwrap_or_else(|why| panic!("{line}: {why}"));
        self.clean();
        self.warmed(&line);
        let (mut failed, mut survived) = (0, 0);
        loop {
            let number = failed + survived;
            let steps = Steps::with(InjectedFault::Fail(number));
            let attempted = self.attempt(shape, &line, &steps);
            let taken = steps.taken();
            let Some(step) = taken.get(number as usize) else {
                attempted.unwrap_or_else(|why| panic!("{line}: {why}"));
                assert!(number > 0, "{line}: no step at all");
                self.clean();
                self.is_as_before(&format!("{line}: it ran"));
                return (failed, survived);
            };
            let what = format!("{line}: step {number}, {step}");
            match attempted {
                Err(why) => {
                    assert!(why.len() > 10, "{what}: {why}");
                    failed += 1;
                }
                Ok(()) => {
                    survived += 1;
                    self.clean();
                }
            }
            drop(steps);
            self.is_as_before(&what);
        }
    }

    /// Builds and runs a request; it ends by itself or after a moment.
    fn attempt(&self, shape: &Shape, line: &str, steps: &Steps) -> Result<(), String> {
        self.pair.server.enter(|| {
            let (graph, mistakes) = pipeline::read(line, &House);
            assert!(mistakes.is_empty(), "{}", pipeline::render(line, &mistakes, false));
            let mut machine = engine::machine::look();
            if shape.recorded {
                machine = Head::outside_kernel(machine);
            }
            let plan = plan(graph, &House, &machine).map_err(|why| format!("{why:?}"))?;
            let mut extras = Extras { steps: steps.clone(), ..Extras::default() };
            if shape.recorded {
                let head = Head::new(line, &plan, &machine, None);
                let path = self.here().join("record");
                let recording = Recording::create(&path, &head, 1 << 20, steps);
                let recording = recording.map_err(|why| why.to_string())?;
                extras.tape = Tape::Record(Arc::clone(&recording));
            }
            let points = Points::default();
            let built = build_with(&plan, Settings::default(), &points, &extras);
            let paths = built.map_err(|why| why.to_string());
            if paths.is_err() {
                steps.roll_back();
            }
            let ran = run(paths?, Until { elapsed: Some(1_000_000), ..Until::default() });
            let outcome = ran.map_err(|why| why.to_string())?;
            assert_eq!(outcome.ledger.imbalances(), [], "{line}: {:#?}", outcome.ledger);
            Ok(())
        })
    }

    /// Removes what a request wrote that ran.
    fn clean(&self) {
        fs::remove_dir_all(self.here()).expect("a folder");
        fs::create_dir(self.here()).expect("a folder");
    }

    fn now(&self) -> Resources {
        Resources::alone(&self.pair, &self.here())
    }

    /// Records the state after the first run of a request: what has not gone in a while stays in
    /// the process.
    fn warmed(&mut self, line: &str) {
        for _ in 0..200 {
            if self.now().beyond(&self.base).is_empty() {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        let now = self.now();
        eprintln!("kept by the process since {line}: {}", now.beyond(&self.base).join(", "));
        self.base = self.base.or(&now);
    }

    fn is_as_before(&self, what: &str) {
        let mut looks = 0;
        until(&format!("nothing stays of {what}"), || {
            let more = self.now().beyond(&self.base);
            looks += 1;
            if looks % 5000 == 0 {
                eprintln!("{what}: this is still there: {}", more.join(", "));
            }
            more.is_empty()
        });
    }
}
