//! Tests of exhausted resources: the message contains the resource, the failed operation, the
//! reason, and a remedy.

use super::Fixture;
use crate::common::CommandResult;
use std::process::{Command, Stdio};
use testkit::need;

/// Runs a shell script in which `$0` is the program and `$1` is the request. Asserts that the
/// script fails and prints all messages in `all`.
fn assert_refused(fixture: &Fixture, script: &str, line: &str, all: &[&str]) {
    let mut command = fixture.set_fixture_environment(Command::new("sh"));
    command.args(["-c", script, env!("CARGO_BIN_EXE_streamline"), line]);
    command.current_dir(fixture.folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = CommandResult::from(command.output().unwrap());
    assert!(ran.status.is_some_and(|status| status > 0), "{script}: {line}: {ran:?}");
    for part in all {
        assert!(ran.err.contains(part), "{script}: {line}: {part:?} is not in {ran:?}");
    }
}

#[test]
fn exhausted_descriptors_and_memory_are_reported_with_remedies() {
    let fixture = Fixture::new();
    let files = "ulimit -n 7; exec \"$0\" run --embedded \"$1\"";
    assert_refused(
        &fixture,
        files,
        "generate count=9 | count",
        &["Too many open files", "ulimit -n"],
    );
    let memory = "ulimit -v 60000; exec \"$0\" run --embedded \"$1\"";
    assert_refused(
        &fixture,
        memory,
        "generate count=9 | count",
        &["annot allocate memory", "free memory"],
    );
    let whole = "exec \"$0\" run --embedded \"$1\"";
    let full = ["write", "/dev/full", "no space left on device", "free space there"];
    assert_refused(&fixture, whole, "generate count=9 | pcap /dev/full", &full);
    let missing = ["no/such/out.pcap", "no such file or directory"];
    assert_refused(&fixture, whole, "generate count=9 | pcap no/such/out.pcap", &missing);
}

#[test]
fn full_disk_and_refused_threads_are_reported_with_remedies() {
    if need::require_root().is_none()
        || need::require_command("setpriv").is_none()
        || need::require_command("prlimit").is_none()
    {
        return;
    }
    let fixture = Fixture::new();
    let disk = "mkdir -p small && unshare -m sh -c 'mount -t tmpfs -o size=64k none small && exec \
                \"$0\" run --embedded \"$1\"' \"$0\" \"$1\"";
    let full = ["write", "small/out.pcap", "no space left on device", "free space there"];
    assert_refused(&fixture, disk, "generate count=99999 | pcap small/out.pcap", &full);
    let threads = "exec prlimit --nproc=1 setpriv --reuid 41009 --clear-groups \"$0\" run \
                   --embedded \"$1\"";
    assert_refused(&fixture, threads, "generate count=9 | count", &["thread", "ulimit -u"]);
    let rights = "exec setpriv --reuid 41009 --clear-groups \"$0\" run --embedded \"$1\"";
    assert_refused(&fixture, rights, "rx lo | count", &["lo", "CAP_NET_RAW"]);
}
