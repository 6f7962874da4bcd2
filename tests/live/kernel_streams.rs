//! Tests of files of PipesFS at a source whose filters run in the kernel: operations that the file
//! cannot perform are refused, with the reason. FEATURES B8, B10

use crate::scratch::Scratch;
use crate::second_job::{Mounted, spawn, streamline};
use std::fs;
use std::process::{Command, Stdio};
use testkit::need;
use testkit::net::{Cable, Pair, SERVER_DEVICE, wait_until};

/// Runs a request whose filters are in the kernel, and a shell command in the mount, which must
/// fail. Returns the reason that the mount gives for the failure, or `None` if the machine cannot
/// run the test.
fn failure_of(request: &str, filter: &str, command: &str) -> Option<String> {
    need::require_root()?;
    need::require_file("/dev/fuse")?;
    let pair = Pair::new(Cable::default())?;
    let folder = Scratch::new();
    let (daemon, pipes) = (folder.path("daemon").display().to_string(), folder.path("pipes"));
    fs::create_dir(&pipes).expect("a folder");
    // The daemon attaches the program, so it runs where the interface is.
    let mut served = pair.server.command(testkit::streamline_program());
    served.args(["daemon", "--socket", &daemon]);
    let _daemon = spawn(served);
    wait_until("a daemon answers", || {
        streamline(&["ps"], &daemon).output().is_ok_and(|ran| ran.status.success())
    });
    let mut path = pair.server.command(testkit::streamline_program());
    let request = request.replace("rx", &format!("rx {SERVER_DEVICE}"));
    path.args(["run", "-q", "--no-adapt", &request]).env("STREAMLINE_DAEMON", &daemon);
    let _path = spawn(path);
    let mounted = Mounted(pipes.clone());
    let mut mount = streamline(&["mount"], &daemon);
    assert!(mount.arg(&pipes).stderr(Stdio::null()).status().expect("a mount").success());
    let place = pipes.join(format!("rx:{SERVER_DEVICE}")).join(filter).join("place");
    wait_until("the path is shown", || fs::read_to_string(&place).is_ok());
    assert_eq!(fs::read_to_string(&place).expect("a place").trim(), "kernel");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &command.replace("rx/", &format!("rx:{SERVER_DEVICE}/"))])
        .current_dir(&pipes)
        .stderr(Stdio::null());
    assert!(!shell.status().expect("a shell").success(), "{command}");
    let why = fs::read_to_string(pipes.join(".error")).expect("a reason");
    drop(mounted);
    Some(why)
}

#[test]
fn b10_stream_of_a_source_that_passes_nothing_on_is_refused() {
    let command = "timeout 20 head -c 1 rx/all.pcap | grep -q .";
    let Some(why) = failure_of("rx | discard", "discard", command) else { return };
    assert!(why.contains("all blocks of `rx` stay in the kernel, where `discard` runs"), "{why}");
}

#[test]
fn b8_writes_that_would_bypass_filters_in_the_kernel_are_refused() {
    let Some(why) = failure_of("rx | udp | dport |53 count", "udp", "printf x > rx/all.pcap")
    else {
        return;
    };
    assert!(why.contains("`udp` runs in the kernel, and would not get what is written"), "{why}");
}
