//! Tests of signals to `streamline sh` and its programs.

use super::*;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;

#[test]
fn signals_reach_all_stages_and_exit_statuses_are_returned() {
    let mut child = shell_command(&[], "sleep 1000 | sleep 1000").spawn().unwrap();
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    wait_until("both members are there", || {
        std::fs::read_to_string(&path).unwrap_or_default().split_whitespace().count() == 2
    });
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

/// Runs the command `start`, and waits until both programs of its pipeline are running. Returns the
/// process and the process ids of the two programs.
fn spawn_and_wait_for_stages(start: &mut Command) -> (std::process::Child, Vec<String>) {
    let child = start.spawn().unwrap();
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let stages = || std::fs::read_to_string(&path).unwrap_or_default();
    wait_until("both members are there", || stages().split_whitespace().count() == 2);
    let members = stages().split_whitespace().map(str::to_owned).collect();
    (child, members)
}

/// A handler that a signal runs ends a wait in the ring, as it ends a read or a write of a pipe.
#[test]
fn handled_signal_interrupts_a_wait_in_the_ring() {
    if Command::new("python3").arg("--version").output().is_err() {
        let _: Option<()> = need::report_skip("no `python3`: a program with a signal handler");
        return;
    }
    let begin = "import os, signal, sys, time\n\
                 def on_alarm(*_): raise TimeoutError\n\
                 signal.signal(signal.SIGALRM, on_alarm)\n";
    let attempt = |call: &str| {
        format!(
            "{begin}signal.setitimer(signal.ITIMER_REAL, 0.5)\n\
             try:\n    while True: {call}\n\
             except TimeoutError: print('interrupted', file=sys.stderr)\n"
        )
    };
    let wait = "import time; time.sleep(2)";
    let write = "import os, time; os.write(1, bytes(1000000)); time.sleep(2)";
    for (first, second) in [
        (write, attempt("os.read(0, 65536)").as_str()),
        (attempt("os.write(1, bytes(65536))").as_str(), wait),
    ] {
        let mut command = shell_command(&[], "python3 -c \"$W\" | python3 -c \"$R\"");
        command.env("W", first).env("R", second);
        let output = run_with_timeout(command);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.starts_with("interrupted\n"), "{text}");
    }
}

/// Returns a signal mask of a process, such as `SigIgn`, from `/proc/PID/status`.
fn signal_mask(id: &str, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    u64::from_str_radix(mask.unwrap(), 16).unwrap()
}

/// Returns a command like [`shell_command`] in which SIGINT and SIGQUIT have their default actions.
/// If a shell runs the tests in the background, the tests inherit that these signals are ignored.
fn interruptible_command(script: &str) -> Command {
    common::build_pipes_library();
    let mut command = Command::new("env");
    command.arg("--default-signal=INT,QUIT").arg(env!("CARGO_BIN_EXE_streamline"));
    command.args(["sh", "-c", script]);
    command
}

#[test]
fn interrupted_pipeline_ends_by_the_signal() {
    for (name, number) in [("INT", 2), ("QUIT", 3)] {
        let (mut child, _) =
            spawn_and_wait_for_stages(&mut interruptible_command("sleep 1000 | sleep 1000"));
        let id = child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().signal(), Some(number), "a script would go on");
    }
    let trapped = "sleep 1000 | sh -c 'trap \"exit 7\" INT; echo set; while :; do sleep 0.1; done'";
    let mut child = interruptible_command(trapped).stdout(Stdio::piped()).spawn().unwrap();
    // The mask of caught signals would not do: before its exec, a stage has the handlers of `sh`.
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "set\n");
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn ignored_signals_stay_ignored_by_all_stages() {
    common::build_pipes_library();
    let mut command = Command::new("sh");
    let line = "trap '' HUP INT; exec \"$0\" sh -c 'sleep 1000 | sleep 1000'";
    command.args(["-c", line, env!("CARGO_BIN_EXE_streamline")]);
    let (mut child, members) = spawn_and_wait_for_stages(&mut command);
    let ignored = |id: &String| signal_mask(id, "SigIgn") & 3;
    let id = child.id().to_string();
    assert_eq!(members.iter().chain([&id]).map(ignored).collect::<Vec<_>>(), [3, 3, 3]);
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(143));
}
