//! Tests of the watchdog: a test that hangs fails and reports the location of the hang.

mod common;

use std::process::Command;
use streamline_buffer::stream::{Config, stream};

/// Hangs. Runs only in a process that `hanging_test_fails_and_reports_its_location` starts.
#[test]
#[ignore = "hangs on purpose"]
fn hangs_on_purpose() {
    let (mut output, _offers) = stream(&Config::new(common::dbuf_id(1)).capacity(4096)).unwrap();
    // No reader reads, and none has left.
    common::write(&mut output, 0..100).unwrap();
}

#[test]
#[ignore = "hangs on purpose"]
fn hangs_in_a_thread_on_purpose() {
    let forever = common::spawn_test_thread(|| common::wait_to_be_killed(()));
    forever.join()
}

#[test]
fn hanging_test_fails_and_reports_its_location() {
    for (name, expected) in [
        ("hangs_on_purpose", "waits at crates/buffer/tests/patience.rs:14:5"),
        ("hangs_in_a_thread_on_purpose", "patience.rs:21:13"),
    ] {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "--ignored", "--nocapture", name]);
        let output = test.env("STREAMLINE_TEST_LIMIT", "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(expected), "{text}");
    }
}
