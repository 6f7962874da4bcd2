//! Tests of conflicting commands that run at the same time. One command must succeed, and the
//! others must report the reason for their failure.

use super::Fixture;
use crate::common::ChildGuard;
use std::io::Read as _;
use std::process::{Command, Stdio};
use testkit::net::{DevicePairSettings, NamespacePair};
use testkit::{need, wait_until};

/// Starts all commands without a pause, and waits until at most one command is still running.
/// Returns the running commands, and the error messages of the others.
fn start_concurrently(commands: Vec<Command>) -> (Vec<ChildGuard>, Vec<String>) {
    let start = |mut command: Command| ChildGuard(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut all: Vec<ChildGuard> = commands.into_iter().map(start).collect();
    wait_until("one is left, or none", || {
        all.iter_mut().filter_map(|guard| guard.0.try_wait().unwrap()).count() + 1 >= all.len()
    });
    let (mut running, mut errors) = (Vec::new(), Vec::new());
    for mut guard in all {
        match guard.0.try_wait().unwrap() {
            None => running.push(guard),
            Some(status) => {
                let mut text = String::new();
                guard.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
                assert!(!status.success(), "{text}");
                errors.push(text);
            }
        }
    }
    (running, errors)
}

#[test]
fn o10_one_of_concurrent_paths_with_one_name_wins() {
    let fixture = Fixture::new();
    let _daemon = fixture.start_daemon();
    let words = ["run", "--as", "web", "-q", "generate rate=1000 | count"];
    let (running, errors) = start_concurrently((0..4).map(|_| fixture.command(&words)).collect());
    assert_eq!((running.len(), errors.len()), (1, 3), "{errors:?}");
    for text in errors {
        assert!(text.contains("`web`") && text.contains("your path "), "{text}");
        assert!(text.contains("choose another, or `streamline stop web`"), "{text}");
    }
    assert_eq!(fixture.list_paths().len(), 1);
    fixture.wait_for_progress("web");
}

#[test]
fn o10_one_of_concurrent_exclusive_captures_wins() {
    if need::require_bpf().is_none() {
        return;
    }
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let fixture = Fixture::new();
    let take = || {
        let mut command = pair.server.command(env!("CARGO_BIN_EXE_streamline"));
        command.args(["run", "--embedded", "-q", "rx server0 take | count"]);
        fixture.set_fixture_environment(command)
    };
    let (running, errors) = start_concurrently((0..3).map(|_| take()).collect());
    assert_eq!((running.len(), errors.len()), (1, 2), "{errors:?}");
    for text in errors {
        assert!(text.contains("server0"), "{text}");
    }
    drop(running);
    wait_until("it can be taken from again", || {
        let mut command = take();
        command.args(["--for", "1ms"]);
        command.status().unwrap().success()
    });
}

#[test]
fn o10_v3_concurrent_changes_apply_one_after_another() {
    let fixture = Fixture::new();
    let _daemon = fixture.start_daemon();
    let _web = fixture.spawn(&["run", "--as", "web", "-q", "generate rate=1000 | eth | count"]);
    wait_until("it is registered", || fixture.list_paths().len() == 1);
    let remove = || {
        let mut command = fixture.command(&["set", "web", "remove", "eth"]);
        ChildGuard(command.stderr(Stdio::piped()).spawn().unwrap())
    };
    let mut all: Vec<ChildGuard> = (0..3).map(|_| remove()).collect();
    let (mut won, mut errors) = (0, Vec::new());
    for guard in &mut all {
        let mut text = String::new();
        guard.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        match guard.0.wait().unwrap().success() {
            true => won += 1,
            false => errors.push(text),
        }
    }
    assert_eq!(won, 1, "{errors:?}");
    assert!(errors.iter().all(|text| text.contains("the path runs as before")), "{errors:?}");
    assert_eq!(fixture.list_paths()[0].line.as_deref(), Some("generate rate=1000 | count"));
    fixture.wait_for_progress("web");
}
