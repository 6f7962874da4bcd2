//! Test of the main use case: an observer beside a web server writes the same log as the server.

use crate::client;
use crate::nginx::Nginx;
use crate::observer::Observer;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};

/// Number of HTTP requests that the client sends.
const REQUEST_COUNT: usize = 20_000;

/// Returns the lines that are in only one of two sorted logs. Lines of our log are marked with `<`,
/// lines of the server's log with `>`.
fn differing_lines<'l>(ours: &'l [String], theirs: &'l [String]) -> Vec<String> {
    let (mut ours, mut theirs) = (ours.iter().peekable(), theirs.iter().peekable());
    let mut found = Vec::new();
    loop {
        match (ours.peek(), theirs.peek()) {
            (Some(one), Some(other)) if one == other => {
                ours.next();
                theirs.next();
            }
            (Some(one), other) if other.is_none_or(|other| one < other) => {
                found.push(format!("< {one}"));
                ours.next();
            }
            (_, Some(other)) => {
                found.push(format!("> {other}"));
                theirs.next();
            }
            (_, None) => return found,
        }
    }
}

/// Returns the sorted lines of a log, omitting the timestamps of exchanges that straddle a second
/// boundary.
fn sorted_lines(log: &[u8], across_second_boundaries: &[String]) -> Vec<String> {
    let log = String::from_utf8_lossy(log);
    let mut lines: Vec<String> = log
        .lines()
        .map(|line| {
            let path = line.split(' ').nth(6).unwrap_or_default();
            if !across_second_boundaries.iter().any(|at| at == path) {
                return line.to_owned();
            }
            let (before, rest) = line.split_once('[').unwrap_or((line, ""));
            format!("{before}{}", rest.split_once(']').map_or(rest, |(_, behind)| behind))
        })
        .collect();
    lines.sort_unstable();
    lines
}

#[test]
fn v22_weblog_equals_the_server_log() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let Some(nginx) = Nginx::start(&pair.server) else { return };
    let line =
        format!("rx {SERVER_DEVICE} both=yes | bpf \"tcp port 80\" | tcp | http |exchange weblog");
    let observer = Observer::start(&pair.server, &line);
    let sent = client::send_requests(&pair.client, REQUEST_COUNT);
    let expected = nginx.stop();
    let ran = observer.stop();
    ran.assert_lossless();

    let few = sent.across_second_boundaries.len() * 10 <= REQUEST_COUNT;
    assert!(few, "the machine is too busy: {} at a change", sent.across_second_boundaries.len());
    let ours = sorted_lines(&ran.out, &sent.across_second_boundaries);
    let theirs = sorted_lines(expected.as_bytes(), &sent.across_second_boundaries);
    let differences = differing_lines(&ours, &theirs);
    assert_eq!(differences, <[String; 0]>::default(), "{}", ran.ledger);
    assert_eq!(ours.len(), REQUEST_COUNT);
}
