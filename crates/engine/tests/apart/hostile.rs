//! Tests of sandbox processes that misbehave, hang or die while their filter's state is saved or
//! restored. The path continues, the change reports the reason, and the ledger balances.

use crate::common::{
    StopGuard, build_paths, edit, edit_losslessly, received_numbers, run_while, wait_for_blocks,
};
use engine::change::ChangeError;
use engine::live::PathHandle;
use engine::run::{RunOutcome, StopConditions, run};
use std::time::{Duration, Instant};
use testkit::wait_until;

/// The tests of this file, by name.
pub(crate) const TESTS: &[(&str, fn())] = &[
    (
        "v18_filter_that_lies_about_its_state_is_ended",
        v18_filter_that_lies_about_its_state_is_ended,
    ),
    (
        "v18_rejected_state_leaves_the_old_filter_running",
        v18_rejected_state_leaves_the_old_filter_running,
    ),
    ("v18_false_state_fails_only_its_own_path", v18_false_state_fails_only_its_own_path),
    (
        "v18_process_killed_at_each_step_refuses_the_change",
        v18_process_killed_at_each_step_refuses_the_change,
    ),
    (
        "v18_process_killed_at_any_time_keeps_blocks_in_order",
        v18_process_killed_at_any_time_keeps_blocks_in_order,
    ),
    (
        "v18_sandbox_process_survives_changes_beside_it",
        v18_sandbox_process_survives_changes_beside_it,
    ),
];

/// Runs a request with a filter in a process of its own. Asserts that a parallel branch receives
/// all blocks.
fn run_with_branch<T>(
    filter: &str,
    file: &str,
    act: impl FnOnce(&PathHandle) -> T,
) -> (T, RunOutcome) {
    let text =
        format!("generate rate=20000 seq=yes | (({filter} | pcap {file}) + pcap {file}.all)");
    let paths = build_paths(&text);
    let live = paths[0].live();
    let (done, outcome) = std::thread::scope(|scope| {
        let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        let stop = StopGuard(&live);
        wait_for_blocks(&live, 500);
        let done = act(&live);
        wait_for_blocks(&live, 500);
        drop(stop);
        (done, run.join().expect("a run"))
    });
    assert_eq!(outcome.ledger.imbalances(), [], "{text}");
    let given = outcome.ledger.sources[0].1.given.blocks;
    let all = received_numbers(&format!("{file}.all"));
    assert!(all.into_iter().eq(0..given), "{filter}: in the other branch");
    (done, outcome)
}

/// Asserts that the output of a request is a prefix of its input. Unless `ended` is true, the
/// output must equal the input.
fn assert_output_is_prefix(outcome: &RunOutcome, file: &str, ended: bool) {
    let given = outcome.ledger.sources[0].1.given.blocks;
    let came = received_numbers(file);
    assert!(came.iter().copied().eq(0..came.len() as u64), "{file}: in order, each once");
    assert!(came.len() as u64 <= given && (ended || came.len() as u64 == given), "{file}");
}

/// Makes a change that must be refused, and returns the reason.
pub(crate) fn expect_change_refusal(live: &PathHandle, words: &str) -> String {
    match edit(live, words) {
        Err(ChangeError::Refused(why)) => why,
        other => panic!("{words}: {other:?}"),
    }
}

/// A sandboxed filter that misbehaves when asked for its state ends, and its later input is
/// dropped.
fn v18_filter_that_lies_about_its_state_is_ended() {
    let lies = [
        ("abort", "was ended by signal 6 (SIGABRT)"),
        ("exit", "ended by itself"),
        ("panic", "a panic, this filter panics on purpose"),
        ("open", "made a forbidden system call: `openat`"),
        ("long", "its state is longer than a ring accepts"),
        ("many", "it exceeds what a filter may hold"),
        ("hang", "made no progress in 2 s of processor time"),
        ("spoof", ""),
        ("cursor", ""),
    ];
    for (lie, expected) in lies {
        let file = format!("liar-{lie}");
        let (why, outcome) = run_with_branch(&format!("liar {lie} untrusted=yes"), &file, |live| {
            expect_change_refusal(live, "upgrade liar")
        });
        assert!(why.starts_with("its state could not be read"), "{lie}: {why}");
        assert!(why.contains(expected), "{lie}: {why}");
        let [failure] = outcome.failures.as_slice() else {
            panic!("{lie}: {:?}", outcome.failures);
        };
        let failure = failure.to_string();
        assert!(failure.contains(expected) && failure.contains("was dropped"), "{lie}: {failure}");
        assert_output_is_prefix(&outcome, &file, true);
    }
}

/// A new filter that rejects the saved state is not installed, and the old filter continues.
fn v18_rejected_state_leaves_the_old_filter_running() {
    let lies = [
        ("shape", "that is not a number of blocks"),
        ("taught-exit", "ended by itself"),
        ("taught-panic", "a panic, this filter panics on purpose"),
        ("taught-hang", "made no progress in 2 s of processor time"),
    ];
    for (lie, expected) in lies {
        let file = format!("taught-{lie}");
        let line = format!("liar {lie} untrusted=yes");
        let (why, outcome) =
            run_with_branch(&line, &file, |live| expect_change_refusal(live, "upgrade liar"));
        assert!(why.contains(expected) && why.starts_with("the new filter "), "{lie}: {why}");
        assert!(outcome.failures.is_empty(), "{lie}: {:?}", outcome.failures);
        assert_output_is_prefix(&outcome, &file, false);
    }
    // A move into this process: the new filter in this process rejects the state.
    let (why, outcome) = run_with_branch("liar shape untrusted=yes", "home", |live| {
        expect_change_refusal(live, "move liar process")
    });
    assert!(why.contains("that is not a number of blocks"), "{why}");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_output_is_prefix(&outcome, "home", false);
    // A move into a process that ends while it restores the state.
    let (why, outcome) = run_with_branch("liar taught-exit", "away", |live| {
        expect_change_refusal(live, "move liar sandbox")
    });
    assert!(why.contains("ended by itself"), "{why}");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_output_is_prefix(&outcome, "away", false);
}

/// A restored filter accepts a state with a valid format and a false number of blocks, and then
/// panics. The path ends with the message of this panic, and another path in this process
/// continues.
fn v18_false_state_fails_only_its_own_path() {
    let ((), run_with_branch) =
        run_while("generate rate=20000 seq=yes | count | pcap sane", |sane| {
            let paths =
                build_paths("generate rate=20000 seq=yes | liar false untrusted=yes | pcap spoilt");
            let live = paths[0].live();
            let outcome = std::thread::scope(|scope| {
                let run = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
                let stop = StopGuard(&live);
                wait_for_blocks(&live, 500);
                edit_losslessly(&live, "move liar process");
                let outcome = run.join().expect("a run");
                drop(stop);
                outcome
            });
            let [failure] = outcome.failures.as_slice() else { panic!("{:?}", outcome.failures) };
            let message = failure.to_string();
            assert!(
                message.contains("liar") && message.contains("fewer than 2^64 blocks"),
                "{message}"
            );
            assert_eq!(outcome.ledger.imbalances(), []);
            assert_output_is_prefix(&outcome, "spoilt", true);
            wait_for_blocks(sane, 500);
        });
    assert_output_is_prefix(&run_with_branch, "sane", false);
}

/// Returns the ids of the sandbox processes of this test, in ascending order.
fn sandbox_process_ids() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("our threads");
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    let lists = tasks.filter_map(Result::ok).filter_map(|task| of(task).ok());
    let mut all: Vec<u32> = lists
        .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    all.sort_unstable();
    all
}

/// Returns true if the main thread of a process sleeps.
fn main_thread_sleeps(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn kill_process(process: u32) {
    let kill = std::process::Command::new("kill").args(["-9", &process.to_string()]).output();
    // `kill` fails for a process that has already ended, which is fine.
    assert!(kill.is_ok());
}

/// Kills a process while a change waits for it: the old process sleeps instead of saving its state,
/// or the new process sleeps instead of restoring that state.
fn v18_process_killed_at_each_step_refuses_the_change() {
    for (lie, new, move_to) in [
        ("sleep", false, "upgrade liar"),
        ("sleep", false, "move liar process"),
        ("taught-sleep", true, "upgrade liar"),
    ] {
        let file = format!("killed-{lie}-{}", move_to.replace(' ', "-"));
        let (why, outcome) = run_with_branch(&format!("liar {lie} untrusted=yes"), &file, |live| {
            let before = sandbox_process_ids();
            std::thread::scope(|scope| {
                let change = scope.spawn(|| expect_change_refusal(live, move_to));
                let meant = || match new {
                    true => sandbox_process_ids().into_iter().find(|child| !before.contains(child)),
                    false => before.first().copied(),
                };
                // When no block arrives any more, the process has been asked for its state and
                // sleeps.
                let (mut last, mut since) = (0, Instant::now());
                wait_until("it stands still", || {
                    let came = received_numbers(&format!("{file}.all")).len();
                    if came != last {
                        (last, since) = (came, Instant::now());
                    }
                    let still = since.elapsed() > Duration::from_millis(500);
                    let child = meant().filter(|child| still && main_thread_sleeps(*child));
                    child.into_iter().for_each(kill_process);
                    child.is_some()
                });
                change.join().expect("a change")
            })
        });
        assert!(why.contains("was ended by signal 9 (SIGKILL)"), "{lie}: {why}");
        assert_eq!(outcome.failures.is_empty(), new, "{lie}: {:?}", outcome.failures);
        assert_output_is_prefix(&outcome, &file, !new);
    }
}

/// Kills a process at many different points in a change. The change either succeeds or is refused,
/// and the output stays in order.
fn v18_process_killed_at_any_time_keeps_blocks_in_order() {
    for round in 0..24u32 {
        let (line, words) = match round % 3 {
            0 => ("udp untrusted=yes", "upgrade udp"),
            1 => ("udp untrusted=yes", "move udp process"),
            _ => ("udp", "move udp sandbox"),
        };
        let file = format!("any-{round}");
        let ((), outcome) = run_with_branch(line, &file, |live| {
            let before = sandbox_process_ids();
            std::thread::scope(|scope| {
                let change = scope.spawn(|| edit(live, words));
                // The kill falls between the start of the change and its end.
                let begin = Instant::now();
                let wait = Duration::from_millis(u64::from(round / 3) * 4);
                let found = || match round % 2 {
                    0 => sandbox_process_ids().into_iter().find(|child| !before.contains(child)),
                    _ => before.first().copied(),
                };
                while begin.elapsed() < wait || found().is_none() && !change.is_finished() {
                    std::thread::yield_now();
                }
                found().into_iter().for_each(kill_process);
                match change.join().expect("a change") {
                    Ok(switched) => {
                        let zeros = (switched.lost, switched.duplicated, switched.reordered);
                        assert_eq!(zeros, (0, 0, 0), "{words}: {switched}");
                    }
                    Err(ChangeError::Refused(_) | ChangeError::Build(_)) => {}
                    Err(other) => panic!("{words}: {other}"),
                }
            });
        });
        let ended = !outcome.failures.is_empty();
        assert_output_is_prefix(&outcome, &file, ended);
    }
}

/// A request with an untrusted filter between trusted filters.
const MIXED_TRUST_REQUEST: &str = "inspect | liar none untrusted=yes | ipproto |all inspect";

/// Checks that changes to other filters do not restart the process of an untrusted filter.
fn v18_sandbox_process_survives_changes_beside_it() {
    let ((), outcome) = run_with_branch(MIXED_TRUST_REQUEST, "stays", |live| {
        let before = sandbox_process_ids();
        assert_eq!(before.len(), 1);
        for words in [
            "insert dport before liar",
            "insert eth after liar",
            "remove eth",
            "replace dport with ip",
            "remove ip",
            "replace ipproto with dport",
        ] {
            edit_losslessly(live, words);
            wait_for_blocks(live, 100);
            assert_eq!(sandbox_process_ids(), before, "{words}");
        }
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_output_is_prefix(&outcome, "stays", false);
}
