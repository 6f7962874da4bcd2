//! Tests of the warning that a source captures only one direction of the traffic, although a later
//! filter combines both. `check`, `explain` and `run` print the warning for an interface with an
//! address, but not for an interface without an address.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE};

const ONE_SIDED_WARNING: &str = "`http` produces no results that need both directions";

/// Runs the subcommand `verb` on a request that begins with the source `source`. The source
/// captures in the server's namespace of `pair`.
fn run_subcommand(
    folder: &Folder,
    pair: &NamespacePair,
    verb: &[&str],
    source: &str,
) -> CommandResult {
    let netns = pair.server.path();
    let source = source.replacen(' ', &format!(" netns={} ", netns.display()), 1);
    let line = format!("{source} | tcp | http |exchange weblog");
    let words: Vec<&str> = verb.iter().copied().chain([line.as_str()]).collect();
    CommandResult::from(folder.streamline_command(&words).output().unwrap())
}

#[test]
fn one_sided_source_of_exchanges_causes_a_warning() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let folder = Folder::new();
    let one = format!("rx {SERVER_DEVICE}");
    for verb in [&["check"][..], &["explain"], &["run", "--for=1ms"]] {
        let ran = run_subcommand(&folder, &pair, verb, &one);
        assert_eq!(ran.status, Some(0), "{verb:?}: {}", ran.err);
        assert!(ran.err.contains(ONE_SIDED_WARNING), "{verb:?}: {}", ran.err);
        let hint = format!("write `rx {SERVER_DEVICE} both=yes`");
        assert!(ran.err.contains(&hint), "{verb:?}: {}", ran.err);
    }
    let both = run_subcommand(&folder, &pair, &["check"], &format!("rx {SERVER_DEVICE} both=yes"));
    assert_eq!((both.status, both.err.as_str()), (Some(0), ""));
    let lo = run_subcommand(&folder, &pair, &["check"], "rx lo");
    assert_eq!((lo.status, lo.err.as_str()), (Some(0), ""));
    let other = run_subcommand(&folder, &pair, &["check"], &format!("rx {CLIENT_DEVICE}"));
    assert_eq!((other.status, other.err.as_str()), (Some(0), ""), "it is in the other namespace");
}

#[test]
fn mirror_port_without_address_causes_no_warning() {
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let ran = run_subcommand(&Folder::new(), &pair, &["check"], &format!("rx {SERVER_DEVICE}"));
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
}
