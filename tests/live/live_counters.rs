//! Tests of the counters of running paths with filters in the kernel. While a path runs and after
//! its end, its counters must equal those of its final report. (CONTRACT 19)

use crate::daemon_fixture::{ALICE_UID, DAEMON_POLICY, DaemonFixture};
use crate::frame_sending::send_all;
use crate::shared_program::{RunningRequest, datagrams, quiet_pair};
use engine::kernel::shared_attach_point::AttachPoints;
use member::client::Client;
use member::protocol::Counters;
use runtime::ledger::{EdgeKind, Ledger};
use testkit::net::{NamespacePair, SERVER_DEVICE, WAIT_TIMEOUT, wait_until};

/// Number of frames that a test sends at a time, to four ports in rotation.
const FRAMES: usize = 400;

/// Returns the number of blocks that a node received according to the ledger, summed over the
/// node's entries.
fn blocks_taken_by_node(ledger: &Ledger, name: &str) -> u64 {
    let entries = ledger.filters.iter().filter(|entry| entry.name == name);
    entries.map(|entry| entry.taken.blocks).sum()
}

/// Runs a request whose filters are in the kernel up to `dport`, and in a thread after it. Asserts
/// that the request's counters are right while the request runs, and that they equal the counters
/// of the final report after its end.
fn assert_live_counters_equal_final_counters(pair: &NamespacePair, source: &str) {
    let points = AttachPoints::default();
    let branches = "(|53 count + |80 match \"no such text\")";
    let text = format!("{source} | ip | dport | {branches}");
    let request = RunningRequest::start(pair, &points, &text);
    let lives = request.component_handles().to_vec();
    let ledger = || {
        let mut ledger = Ledger::default();
        lives.iter().for_each(|live| ledger.add(live.take_snapshot(WAIT_TIMEOUT).ledger));
        ledger
    };
    for sent in [FRAMES, 2 * FRAMES] {
        send_all(pair, &datagrams(FRAMES));
        let quarter = sent as u64 / 4;
        wait_until("all frames are counted", || {
            blocks_taken_by_node(&ledger(), "match") == quarter
        });
        let now = ledger();
        assert_eq!(now.imbalances(), [], "{text}: {now:#?}");
        assert_eq!(blocks_taken_by_node(&now, "ip"), sent as u64, "{text}: {now:#?}");
        assert_eq!(blocks_taken_by_node(&now, "dport"), sent as u64, "{text}: {now:#?}");
        assert_eq!(blocks_taken_by_node(&now, "count"), quarter, "{text}: {now:#?}");
        let sources: u64 = now.sources.iter().map(|(_, counters)| counters.given.blocks).sum();
        assert_eq!(sources, sent as u64, "{text}: {now:#?}");
        let mut totals = Ledger::default();
        lives.iter().for_each(|live| totals.add(live.ledger_by_number(WAIT_TIMEOUT)));
        assert_eq!(totals.sources, now.sources, "{text}");
        assert_eq!(totals.imbalances(), [], "{text}");
    }
    let running = ledger();
    let outcome = request.stop();
    assert!(outcome.ledger.edges.iter().any(|edge| edge.kind == EdgeKind::Ring), "{outcome:?}");
    assert_eq!(ledger(), outcome.ledger, "{text}");
    for entry in &running.filters {
        let name = entry.name.to_string();
        assert_eq!(
            blocks_taken_by_node(&running, &name),
            blocks_taken_by_node(&outcome.ledger, &name),
            "{text}: {name}"
        );
    }
}

#[test]
fn live_counters_of_kernel_filters_equal_the_final_counters() {
    let Some(pair) = quiet_pair() else { return };
    assert_live_counters_equal_final_counters(&pair, &format!("rx {SERVER_DEVICE}"));
}

#[test]
fn live_counters_of_redirected_frames_equal_the_final_counters() {
    let Some(pair) = quiet_pair() else { return };
    assert_live_counters_equal_final_counters(&pair, &format!("rx {SERVER_DEVICE} take"));
}

/// Runs filters in the daemon's program. Asserts that the counters that the user's process reports
/// include these filters.
#[test]
fn live_counters_include_filters_that_the_daemon_runs() {
    let Some(fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    let text = format!("rx {SERVER_DEVICE} | udp | dport |53 count");
    let observer = fixture.run_request(ALICE_UID, &text);
    let path = fixture.path_id(&observer);
    let counters = || -> Counters {
        let client = Client::connect_at(&fixture.daemon_directory()).expect("a daemon");
        client.connect(&path.to_string()).expect("a path").counters().expect("counters")
    };
    let taken = |name: &str| {
        let counters = counters();
        let entries = counters.filters.iter().filter(|filter| filter.name == name);
        entries.map(|filter| filter.taken.blocks).sum::<u64>()
    };
    let send = |total: usize| {
        send_all(&fixture.pair, &datagrams(FRAMES));
        let quarter = total as u64 / 4;
        wait_until("all frames are counted", || taken("count") == quarter);
        assert_eq!(taken("dport"), total as u64);
    };
    send(FRAMES);
    // The counts of the replaced program are kept.
    fixture.assert_change_succeeds(ALICE_UID, path, "insert ip before udp");
    send(2 * FRAMES);
    let ran = observer.stop();
    ran.assert_lossless();
    let filters = ran.ledger["filters"].as_array().expect("filters");
    let count = filters.iter().find(|filter| filter["name"] == "count").expect("a filter");
    assert_eq!(count["space"], "kernel", "{}", ran.ledger);
    assert_eq!(count["taken"]["blocks"], 2 * FRAMES as u64 / 4, "{}", ran.ledger);
}
