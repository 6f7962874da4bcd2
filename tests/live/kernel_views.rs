//! Tests of the views of blocks that leave the kernel. The frames are tagged, and the kernel stores
//! the outer tag outside the frame. For each frame, a twin must set the same view as its user
//! implementation does for the frame in a capture, for classified and for unanswered blocks.

use crate::frame_sending::{send_all, write_capture};
use crate::frames::tagged_frames;
use crate::observer::{Observer, ObserverResult};
use crate::scratch::Scratch;
use filter::FilterKind;
use filter::catalog::FILTERS;
use std::process::Command;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};
use testkit::{need, streamline_program};

/// Number of requests that observe the frames at the same time.
const CONCURRENT_REQUESTS: usize = 10;

/// Returns the twins that do not edit frames, each as a node of a request. Omits the twins whose
/// class depends on a seed, a key, or the time.
fn twin_nodes() -> Vec<String> {
    let all = FILTERS.iter().filter(|entry| entry.emit_twin.is_some());
    let all = all.filter(|entry| entry.kind != FilterKind::Editing);
    let names = all.map(|entry| entry.name);
    let names = names.filter(|name| !["split", "split_rr", "token", "ratelimit"].contains(name));
    let words = |name: &str| match name {
        "bpf" => "\"udp\"",
        "match" => "at=0 hex=45 hex=020000",
        "sample" => "3",
        "hist" => "of=length",
        "shard" => "1 of=2",
        _ => "",
    };
    names.map(|name| format!("{name}@kernel {}", words(name)).trim_end().to_owned()).collect()
}

/// Returns the chains under test: every twin alone, and some twins after filters that move the
/// view.
fn chains_under_test() -> Vec<String> {
    let mut all = twin_nodes();
    all.push("ip@kernel defragment=no".to_owned());
    for before in ["eth", "vlan", "vlan |all vlan", "eth |all vlan", "ip"] {
        for last in ["vlan@kernel", "ip@kernel", "udp@kernel", "dport@kernel"] {
            let is_packet = before == "ip" && !last.starts_with(['u', 'd']);
            all.extend((!is_packet).then(|| format!("{before} |all {last}")));
        }
    }
    all
}

/// Returns a request that counts the blocks that leave `chain`, by their length and by the first
/// bytes of their view. It counts unanswered blocks on one edge, and all blocks on another. No
/// filter after the chain uses sessions, which the kernel does not assign.
fn counting_request(source: &str, chain: &str) -> String {
    let lengths = "(count@thread0 |all hist@thread0 of=length)";
    // The link address, IPv4, IPv6, the payload, and a tag behind another.
    let begins = "hex=020000 hex=45 hex=60 hex=746167676564 hex=0005";
    let counts = (1..=5).map(|class| format!("|{class} count@thread0")).collect::<Vec<_>>();
    format!(
        "{source} | {chain} | (|0 {lengths} + |all {lengths}) |all match@thread0 at=0 {begins} \
         | ({}) | discard",
        counts.join(" + ")
    )
}

/// Returns the reports of all filters `count` and `hist`, in a fixed order.
fn count_and_hist_reports(ran: &ObserverResult) -> Vec<String> {
    let filters = ran.ledger["filters"].as_array().expect("filters").iter();
    let reports = filters.filter_map(|filter| {
        let name = filter["name"].as_str()?.split('#').next()?;
        ["count", "hist"].contains(&name).then(|| format!("{name} {}", filter["report"]))
    });
    let mut reports: Vec<String> = reports.collect();
    reports.sort();
    reports
}

#[test]
fn k1_v4_views_of_tagged_frames_equal_those_of_a_file() {
    let Some(()) = need::require_bpf() else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let scratch = Scratch::new();
    // A device pads a shorter frame, of which the file would know nothing.
    let frames: Vec<_> = tagged_frames().into_iter().filter(|frame| frame.len() >= 60).collect();
    let file = write_capture(&scratch, "tagged.pcap", &frames);
    let file = format!("replay '{}'", file.display());
    for chains in chains_under_test().chunks(CONCURRENT_REQUESTS) {
        let observers = chains.iter().map(|chain| {
            let line = counting_request(&format!("rx {SERVER_DEVICE}"), chain);
            Observer::start(&pair.server, &line)
        });
        let observers: Vec<Observer> = observers.collect();
        send_all(&pair, &frames);
        for (chain, observer) in chains.iter().zip(observers) {
            let live = observer.stop();
            live.assert_lossless();
            let line = counting_request(&file, &chain.replace("@kernel", ""));
            let file = Observer::spawn(Command::new(streamline_program()), &line).wait();
            file.assert_balanced();
            assert_eq!(live.source().given, frames.len() as u64, "{chain}");
            assert_eq!(count_and_hist_reports(&live), count_and_hist_reports(&file), "{chain}");
        }
    }
}
