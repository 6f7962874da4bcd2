//! Tests in which each step of building a request fails once. The resources are counted in a child
//! process in which no other test runs.

use crate::scratch::Scratch;
use crate::shapes::{REQUEST_SHAPES, RequestShape};
use engine::build::{PathOptions, RunSettings, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::record::{RecordMode, Recording, RecordingHead};
use engine::registry::MachineRegistry;
use engine::run::{StopConditions, run};
use pipeline::plan::plan;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use sys::rollback::{InjectedFault, RollbackLog};
use testkit::net::{DevicePairSettings, NamespacePair};
use testkit::resources::Resources;
use testkit::{need, wait_until};

#[test]
fn a17_o4_failing_step_leaves_the_machine_unchanged() {
    if testkit::run_in_separate_process("fail::a17_o4_failing_step_leaves_the_machine_unchanged") {
        fail_each_step_of_requests(|shape| shape.in_every_run);
    }
}

#[test]
#[ignore = "two minutes: cargo test -p streamline-tests --test steps -- --ignored any_failing_step"]
fn a17_o4_any_failing_step_of_any_request_changes_nothing() {
    assert!(REQUEST_SHAPES.len() >= 50, "{} shapes", REQUEST_SHAPES.len());
    if testkit::run_in_separate_process(
        "fail::a17_o4_any_failing_step_of_any_request_changes_nothing",
    ) {
        fail_each_step_of_requests(|_| true);
    }
}

fn fail_each_step_of_requests(wanted: impl Fn(&RequestShape) -> bool) {
    if need::require_bpf().is_none() || need::require_root().is_none() {
        return;
    }
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let Some(pair) = NamespacePair::new(cable) else { return };
    let mut trial = RequestTrial::new(pair);
    let (mut shapes, mut steps, mut went_on) = (0, 0, 0);
    for shape in REQUEST_SHAPES.iter().filter(|shape| wanted(shape)) {
        let (failed, survived) = trial.try_each_step(shape);
        shapes += 1;
        steps += failed + survived;
        went_on += survived;
    }
    eprintln!("{shapes} requests, {steps} steps failed, {went_on} of them were gone on without");
}

/// Fixture of the tests of failing steps: a directory, a network, and the baseline of the
/// resources.
struct RequestTrial {
    pair: NamespacePair,
    /// The directory that contains the working directory of requests, to which they write their
    /// files.
    folder: Scratch,
    capture: PathBuf,
    /// The baseline: the resources of this process before any request, and those that it keeps
    /// after the first run of a request.
    baseline: Resources,
}

impl RequestTrial {
    fn new(pair: NamespacePair) -> Self {
        let folder = Scratch::new();
        fs::create_dir(folder.path("here")).expect("a folder");
        let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/web.pcap");
        let baseline = Resources::of_this_process(&pair, &folder.path("here"));
        Self { pair, folder, capture, baseline }
    }

    fn working_directory(&self) -> PathBuf {
        self.folder.path("here")
    }

    /// Starts a request repeatedly, and makes a different step fail each time, until all steps have
    /// failed once. Returns the numbers of attempts in which the request failed and succeeded.
    fn try_each_step(&mut self, shape: &RequestShape) -> (u32, u32) {
        let line = shape.request_text_for(&self.working_directory(), &self.capture);
        // Creates what is created once per process: a timer, a table of types.
        let kept = self.run_with_failing_step(shape, &line, &RollbackLog::default());
        kept.unwrap_or_else(|why| panic!("{line}: {why}"));
        self.remove_files();
        self.record_baseline(&line);
        let (mut failed, mut survived) = (0, 0);
        loop {
            let number = failed + survived;
            let steps = RollbackLog::with_fault(InjectedFault::Fail(number));
            let attempted = self.run_with_failing_step(shape, &line, &steps);
            let taken = steps.announced_steps();
            let Some(step) = taken.get(number as usize) else {
                attempted.unwrap_or_else(|why| panic!("{line}: {why}"));
                assert!(number > 0, "{line}: no step at all");
                self.remove_files();
                self.assert_resources_restored(&format!("{line}: it ran"));
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
                    self.remove_files();
                }
            }
            drop(steps);
            self.assert_resources_restored(&what);
        }
    }

    /// Builds and runs a request, in which a step of the build may fail according to `steps`. The
    /// request ends by itself or is stopped after a short time.
    fn run_with_failing_step(
        &self,
        shape: &RequestShape,
        line: &str,
        steps: &RollbackLog,
    ) -> Result<(), String> {
        self.pair.server.run_in_network_namespace(|| {
            let (graph, mistakes) = pipeline::read_request(line, &MachineRegistry::Local);
            assert!(mistakes.is_empty(), "{}", pipeline::render(line, &mistakes, false));
            let mut machine = engine::machine::inspect_machine();
            if shape.recorded {
                machine = RecordingHead::replay_machine(machine);
            }
            let plan =
                plan(graph, &MachineRegistry::Local, &machine).map_err(|why| format!("{why:?}"))?;
            let mut extras = PathOptions { steps: steps.clone(), ..PathOptions::default() };
            if shape.recorded {
                let head = RecordingHead::new(line, &plan, &machine, None);
                let path = self.working_directory().join("record");
                let recording = Recording::create(&path, &head, 1 << 20, steps);
                let recording = recording.map_err(|why| why.to_string())?;
                extras.record_mode = RecordMode::Record(Arc::clone(&recording));
            }
            let points = AttachPoints::default();
            let built = build_with_options(&plan, RunSettings::default(), &points, &extras);
            let paths = built.map_err(|why| why.to_string());
            if paths.is_err() {
                steps.roll_back();
            }
            let ran = run(
                paths?,
                StopConditions { time_limit_ns: Some(1_000_000), ..StopConditions::default() },
            );
            let outcome = ran.map_err(|why| why.to_string())?;
            assert_eq!(outcome.ledger.imbalances(), [], "{line}: {:#?}", outcome.ledger);
            Ok(())
        })
    }

    /// Removes the files that a request wrote.
    fn remove_files(&self) {
        fs::remove_dir_all(self.working_directory()).expect("a folder");
        fs::create_dir(self.working_directory()).expect("a folder");
    }

    fn resources(&self) -> Resources {
        Resources::of_this_process(&self.pair, &self.working_directory())
    }

    /// Adds to the baseline the resources that remain after the first run of the request `line`,
    /// because the process keeps them for later requests.
    fn record_baseline(&mut self, line: &str) {
        for _ in 0..200 {
            if self.resources().excess_over(&self.baseline).is_empty() {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        let now = self.resources();
        eprintln!(
            "kept by the process since {line}: {}",
            now.excess_over(&self.baseline).join(", ")
        );
        self.baseline = self.baseline.max(&now);
    }

    fn assert_resources_restored(&self, what: &str) {
        let mut looks = 0;
        wait_until(&format!("nothing stays of {what}"), || {
            let more = self.resources().excess_over(&self.baseline);
            looks += 1;
            if looks % 5000 == 0 {
                eprintln!("{what}: this is still there: {}", more.join(", "));
            }
            more.is_empty()
        });
    }
}
