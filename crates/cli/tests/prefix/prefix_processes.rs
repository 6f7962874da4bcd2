//! Tests of the process that runs a prefix: it is killed, stopped, cannot be replaced, or loses
//! frames.

use super::{
    PREFIX, PrefixFixture, Reader, assert_source_remark, http_request_paths, prefix_request,
    shared_source_counters, signal_process,
};
use serde_json::Value;
use std::time::Duration;
use testkit::net::SERVER;
use testkit::wait_until;

#[test]
fn o6_killed_process_of_a_prefix_is_replaced() {
    let Some(site) = PrefixFixture::new() else { return };
    let readers = ["one", "other"].map(|name| site.start(name, &prefix_request("request")));
    site.request_over_separate_connections(10..15);
    readers.iter().for_each(|reader| site.wait_until_printed(reader, 5));
    let servers = site.prefix_server_ids();
    assert_eq!(servers.len(), 1);
    signal_process(servers[0], "-KILL");
    // Both sharers may start a process at the same time, and one process may read the prefix up to
    // `tcp` from the other. Only one process offers the whole prefix.
    wait_until("another took its place", || {
        let now = site.server_ids_by_request(&format!("| share \"{PREFIX} | http\""));
        now.len() == 1 && now != servers
    });
    let has_joined = |reader: &Reader| {
        // The sharers may join at different times, so extra connections are opened until each
        // sharer has printed one.
        site.request_over_separate_connections([7]);
        site.printed_messages(reader).len() > 5
    };
    readers.iter().for_each(|reader| wait_until("it has joined", || has_joined(reader)));
    site.request_over_separate_connections(20..25);
    for reader in readers {
        wait_until("it sees what begins now", || {
            site.printed_messages(&reader).ends_with(&http_request_paths(20..25))
        });
        let report = site.stop(reader);
        let remark = shared_source_counters(&report)["remark"].as_str().unwrap().to_owned();
        assert!(remark.contains("its process ended 1 times and was replaced"), "{remark}");
    }
}

/// Interrupts the process of a prefix, as its user may do. Asserts that another process replaces
/// it.
#[test]
fn o6_stopped_process_of_a_prefix_is_replaced() {
    let Some(site) = PrefixFixture::new() else { return };
    let reader = site.start("one", &prefix_request("request"));
    let servers = site.prefix_server_ids();
    signal_process(servers[0], "-INT");
    wait_until("another took its place", || {
        let now = site.prefix_server_ids();
        now.len() == 1 && now != servers
    });
    wait_until("it has joined", || {
        site.request_over_separate_connections([7]);
        !site.printed_messages(&reader).is_empty()
    });
    let report = site.stop(reader);
    assert_source_remark(&site, &report, "its process ended 1 times and was replaced");
    let errors = site.folder.read("one.err");
    assert!(errors.contains("its process ended 1 times"), "{errors}");
}

/// Renames the interface that a prefix observes, and gives its old name to a second interface.
/// Asserts that a request on the second interface does not join the prefix of the first one.
#[test]
fn o6_new_interface_of_an_old_name_gets_its_own_prefix() {
    let Some(site) = PrefixFixture::new() else { return };
    let line = "--prefix=shared rx named0 both=yes | tcp | http |request json";
    configure_link(&site, &["add", "named0", "type", "veth", "peer", "name", "named1"]);
    configure_link(&site, &["set", "named0", "up"]);
    let mut one = site.start("one", line);
    let servers = site.prefix_server_ids();
    configure_link(&site, &["set", "named0", "down"]);
    configure_link(&site, &["set", "named0", "name", "named2", "up"]);
    configure_link(&site, &["add", "named0", "type", "veth", "peer", "name", "named3"]);
    configure_link(&site, &["set", "named0", "up"]);
    let mut other = site.start("other", line);
    let now = site.prefix_server_ids();
    assert_eq!((servers.len(), now.len()), (1, 2), "{}", site.listed_paths());
    // The first reader cannot continue with the other interface.
    signal_process(servers[0], "-KILL");
    wait_until("it has ended", || one.child.try_wait().unwrap().is_some());
    let errors = site.folder.read("one.err");
    assert!(errors.contains("another interface has the name now"), "{errors}");
    assert_eq!(other.child.try_wait().unwrap(), None, "{}", site.folder.read("other.err"));
}

fn configure_link(site: &PrefixFixture, words: &[&str]) {
    let done = site.pair.server.command("ip").arg("link").args(words).status();
    assert!(done.unwrap().success(), "{words:?}");
}

/// Deletes the interface of a prefix, so that its process ends and cannot be replaced. Asserts that
/// the request that reads the prefix fails with the reason.
#[test]
fn o6_reader_fails_when_the_interface_of_its_prefix_is_gone() {
    let Some(site) = PrefixFixture::new() else { return };
    configure_link(&site, &["add", "gone0", "type", "veth", "peer", "name", "gone1"]);
    configure_link(&site, &["set", "gone0", "up"]);
    let mut reader =
        site.start("one", "--prefix=shared rx gone0 both=yes | tcp | http |request json");
    configure_link(&site, &["delete", "gone0"]);
    wait_until("it has ended", || reader.child.try_wait().unwrap().is_some());
    let errors = site.folder.read("one.err");
    assert_eq!(reader.child.wait().unwrap().code(), Some(1), "{errors}");
    assert!(errors.contains("gone0"), "{errors}");
}

#[test]
fn o6_reader_reports_losses_of_its_prefix_process() {
    const FRAMES: usize = 400_000;
    let Some(site) = PrefixFixture::new() else { return };
    let reader = site.start("one", &prefix_request("request"));
    site.request_over_separate_connections([7]);
    site.wait_until_printed(&reader, 1);
    let servers = site.prefix_server_ids();
    signal_process(servers[0], "-STOP");
    // The number of datagrams exceeds the capacity of the kernel's ring many times.
    site.pair.client.run_in_network_namespace(|| {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        for _ in 0..FRAMES {
            // No socket receives the datagrams, so a call may report that an earlier one was
            // refused.
            let _ = socket.send_to(&[0; 1000], (SERVER, 9));
        }
    });
    signal_process(servers[0], "-CONT");
    let lost = |name: &str| {
        let top: Value =
            serde_json::from_str(&site.run(&["top", "--once", "--json", name]).out).unwrap();
        top["lost"].as_array().is_some_and(|places| !places.is_empty())
    };
    wait_until("the reader knows of the loss", || lost("one"));
    let report = site.stop(reader);
    assert!(report["lost"].as_u64().unwrap() > 0, "{report}");
    assert!(shared_source_counters(&report)["dropped"]["prefix"].as_u64().unwrap() > 0, "{report}");
    let errors = site.folder.read("one.err");
    assert!(errors.contains("prefix"), "{errors}");
}

/// Returns the number of times that the threads of a process have slept.
fn count_sleeps(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let sleeps = |status: String| {
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses.map(sleeps).sum()
}

#[test]
fn process_of_a_prefix_sleeps_while_nothing_arrives() {
    let Some(site) = PrefixFixture::new() else { return };
    let reader = site.start("one", &prefix_request("request"));
    site.request_over_separate_connections([7]);
    site.wait_until_printed(&reader, 1);
    let server = site.prefix_server_ids()[0];
    // Maximum number of wake-ups of each process in a second. Periodic work would exceed it.
    const WAKEUPS_MAX: u64 = 4;
    wait_until("a second passes in which they sleep", || {
        let count = || [server, reader.child.id()].map(count_sleeps);
        let before = count();
        std::thread::sleep(Duration::from_secs(1));
        let after = count();
        before.iter().zip(after).all(|(before, after)| {
            // If a thread has exited, its sleeps are missing from the sum.
            after.checked_sub(*before).is_some_and(|wakeups| wakeups <= WAKEUPS_MAX)
        })
    });
    // Later blocks are still processed.
    site.request_over_separate_connections([8]);
    site.wait_until_printed(&reader, 2);
    site.stop(reader);
}
