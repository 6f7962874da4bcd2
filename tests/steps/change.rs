//! Tests in which each step of a change fails once. The path must then run as before, with the same
//! resources. The resources are counted in a child process in which no other test runs.

use crate::scratch::Scratch;
use engine::build::{RunSettings, build};
use engine::change::{ChangeError, SwitchReport, change_with_rollback_log};
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{StopConditions, run};
use pipeline::edit::Edit;
use pipeline::plan::plan;
use std::fs;
use std::net::UdpSocket;
use std::time::Duration;
use sys::rollback::{InjectedFault, RollbackLog};
use testkit::net::{DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE};
use testkit::resources::Resources;
use testkit::{need, wait_until};

/// Changes to a path, each with the change that undoes it.
const CHANGES_AND_UNDO: [(&[&str], &[&str]); 3] = [
    // A change within the kernel.
    (&["insert", "ip", "before", "udp"], &["remove", "ip"]),
    // Moves out of the kernel, and into it.
    (&["move", "udp", "process"], &["move", "udp", "kernel"]),
    // A sink that writes a file in its own space.
    (&["insert", "pcap more.pcap", "at", "udp"], &["remove", "pcap"]),
];

/// Timeout of one operation, longer than any machine needs for it.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(60);
const DATAGRAMS_PER_CHECK: u64 = 5;

#[test]
fn o4_failing_step_of_a_change_leaves_the_path_running() {
    if testkit::run_in_separate_process(
        "change::o4_failing_step_of_a_change_leaves_the_path_running",
    ) {
        fail_each_step();
    }
}

fn fail_each_step() {
    if need::require_bpf().is_none() || need::require_root().is_none() {
        return;
    }
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let folder = Scratch::new();
    std::env::set_current_dir(folder.path("")).expect("our folder");
    let text =
        format!("rx@kernel {SERVER_DEVICE} ring=1MB | ipproto |17 udp | dport |9 count@thread0");
    let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    let paths = pair.server.run_in_network_namespace(|| {
        let plan = plan(graph, &MachineRegistry::Local, &engine::machine::inspect_machine())
            .expect("a plan");
        build(&plan, RunSettings::default()).expect("spaces")
    });
    let live = paths[0].live();
    live.set_request_text(&text);
    let runs = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
    let mut trial = ChangeTrial { pair, folder, live, sent: 0 };
    let (mut failed, mut survived) = (0, 0);
    for (there, back) in CHANGES_AND_UNDO {
        // The first change creates everything that is created once per process.
        trial.change(there, &RollbackLog::default()).expect("it changes");
        trial.change(back, &RollbackLog::default()).expect("and back");
        for (edit, undo) in [(there, back), (back, there)] {
            let (no, yes) = trial.try_each_step(edit, undo);
            (failed, survived) = (failed + no, survived + yes);
        }
    }
    wait_until("all has come", || {
        let ledger = trial.live.take_snapshot(OPERATION_TIMEOUT).ledger;
        let count = ledger.filters.iter().find(|node| node.name == "count");
        count.is_some_and(|count| count.taken.blocks + ledger.lost_blocks() >= trial.sent)
    });
    trial.live.stop();
    let outcome = runs.join().expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    let count = outcome.reports.iter().find(|report| report.name == "count").expect("a report");
    let counted = count.report.rows[0].1;
    assert_eq!(counted + outcome.ledger.lost_blocks(), trial.sent, "{:#?}", outcome.ledger);
    eprintln!("{failed} steps failed, {survived} of changes that went on without");
}

/// A running path to which changes are made while one step of a change fails.
struct ChangeTrial {
    pair: NamespacePair,
    folder: Scratch,
    live: PathHandle,
    /// Number of datagrams sent to the path.
    sent: u64,
}

impl ChangeTrial {
    fn change(&mut self, words: &[&str], steps: &RollbackLog) -> Result<SwitchReport, ChangeError> {
        let edit = Edit::parse(words).expect("an edit");
        let machine = engine::machine::inspect_machine();
        let switched =
            change_with_rollback_log(&self.live, &edit, &machine, OPERATION_TIMEOUT, steps);
        if let Ok(SwitchReport { lost, duplicated, reordered, .. }) = &switched {
            assert_eq!((*lost, *duplicated, *reordered), (0, 0, 0), "{words:?}");
        }
        // Written files remain and are not compared.
        if switched.is_ok() {
            let _ = fs::remove_file(self.folder.path("more.pcap"));
        }
        switched
    }

    fn resources(&self) -> Resources {
        Resources::of_this_process(&self.pair, &self.folder.path(""))
    }

    /// Sends datagrams to the path, and adds their number to `sent`. The counts at the end of the
    /// test show if the path received all of them.
    fn assert_receives(&mut self) {
        let socket = self
            .pair
            .client
            .run_in_network_namespace(|| UdpSocket::bind("0.0.0.0:0").expect("a socket"));
        for _ in 0..DATAGRAMS_PER_CHECK {
            // The port has no listener, which the next call reports.
            wait_until("a datagram is sent", || socket.send_to(b"something", (SERVER, 9)).is_ok());
        }
        self.sent += DATAGRAMS_PER_CHECK;
    }

    /// Repeats a change of the path, and makes a different step fail each time, until all steps
    /// have failed once. Returns the numbers of attempts in which the change failed and succeeded.
    fn try_each_step(&mut self, edit: &[&str], undo: &[&str]) -> (u32, u32) {
        let (mut failed, mut survived) = (0, 0);
        let mut base = self.stable_resources();
        loop {
            let number = failed + survived;
            let steps = RollbackLog::with_fault(InjectedFault::Fail(number));
            let before = self.live.request_text();
            let changed = self.change(edit, &steps);
            let taken = steps.announced_steps();
            self.assert_receives();
            let Some(step) = taken.get(number as usize) else {
                changed.unwrap_or_else(|why| panic!("{edit:?}: {why}"));
                assert!(number > 0, "{edit:?}: no step at all");
                return (failed, survived);
            };
            let what = format!("{edit:?}: step {number}, {step}");
            match changed {
                Err(why) => {
                    assert!(why.to_string().len() > 10, "{what}: {why}");
                    assert_eq!(self.live.request_text(), before, "{what}");
                    failed += 1;
                }
                Ok(_) => {
                    survived += 1;
                    self.change(undo, &RollbackLog::default()).unwrap_or_else(|why| {
                        panic!("{what}: {undo:?}: {why}");
                    });
                    base = base.max(&self.stable_resources());
                }
            }
            drop(steps);
            self.assert_resources_restored(&base, &what);
        }
    }

    /// Waits until the process releases no more resources, and returns the resources that it has
    /// then.
    fn stable_resources(&self) -> Resources {
        let mut last = self.resources();
        let mut same = 0;
        wait_until("nothing goes any more", || {
            std::thread::park_timeout(Duration::from_millis(1));
            let now = self.resources();
            same = if last.excess_over(&now).is_empty() { same + 1 } else { 0 };
            last = now;
            same >= 20
        });
        last
    }

    fn assert_resources_restored(&self, base: &Resources, what: &str) {
        let mut more = Vec::new();
        let mut looks = 0;
        wait_until(&format!("nothing stays of {what}"), || {
            more = self.resources().excess_over(base);
            looks += 1;
            if looks % 5000 == 0 {
                eprintln!("{what}: this is still there: {}", more.join(", "));
            }
            more.is_empty()
        });
    }
}
