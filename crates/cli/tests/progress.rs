//! Tests of the progress line on a terminal, which `script` of util-linux provides. Each update
//! rewrites the line, and any other output first erases it.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use std::path::Path;
use std::process::Stdio;
use testkit::need;

/// The control sequence that erases the line.
const ERASE_LINE: &str = "\r\x1b[K";

/// Runs a shell command on a terminal. Returns its output.
fn run_on_terminal(script: &Path, folder: &Folder, typed: &str) -> String {
    let mut command = folder.shell_command("exec \"$@\"");
    command.arg("sh").arg(script).args(["-qec", typed, "/dev/null"]);
    command.env("TERM", "xterm").stdin(Stdio::null());
    let ran = CommandResult::from(command.output().unwrap());
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""), "{}", ran.out);
    ran.out
}

/// Extracts the status lines of a text, without control sequences.
fn status_lines(output: &str) -> Vec<&str> {
    let after = output.split("\r\x1b[?7l").skip(1);
    after.map(|line| line.split("\x1b[K\x1b[?7h").next().unwrap()).collect()
}

/// Returns the running time in a status line, in seconds.
fn status_seconds(line: &str) -> f64 {
    let seconds = line.trim_start().split(" s").next().and_then(|time| time.parse().ok());
    seconds.unwrap_or_else(|| panic!("{line:?} begins with no time"))
}

/// Asserts that no status line appears more than 0.11 s early. The n-th line is due n times `every`
/// seconds after the start.
fn assert_status_line_interval(lines: &[&str], every: f64) {
    for (number, line) in (1_u32..).zip(lines) {
        assert!(status_seconds(line) + 0.11 > f64::from(number) * every, "{lines:?}");
    }
}

/// Calls `run` with a running time of `ms` milliseconds, and returns the output. While `enough`
/// returns false for the output, repeats the call with twice the time, up to 16 times `ms`, because
/// a busy machine may need more time.
fn rerun_until_output_suffices(
    ms: u32,
    run: impl Fn(u32) -> String,
    enough: impl Fn(&str) -> bool,
) -> String {
    let mut output = String::new();
    for times in [1, 2, 4, 8, 16] {
        output = run(ms * times);
        if enough(&output) {
            return output;
        }
    }
    panic!("too little output in {} ms: {output:?}", 16 * ms);
}

#[test]
fn terminal_progress_line_is_erased_at_the_end() {
    let Some(script) = need::require_command("script") else { return };
    let folder = Folder::new();
    let run = |ms| {
        let line = "generate rate=20000 | pcap out.pcap";
        let typed = format!("streamline '{line}' --for {ms}ms --progress 200ms");
        run_on_terminal(&script, &folder, &typed)
    };
    let output = rerun_until_output_suffices(700, run, |output| !status_lines(output).is_empty());
    let lines = status_lines(&output);
    assert_status_line_interval(&lines, 0.2);
    for line in &lines {
        assert!(line.starts_with(" ") && line.contains(" s  "), "{line:?}");
        assert!(line.contains(" blocks  ") && line.contains(" blocks/s  "), "{line:?}");
        assert!(line.contains("B/s"), "{line:?}");
        assert!(!line.contains("lost"), "{line:?}");
    }
    let (_, end) = output.rsplit_once(ERASE_LINE).unwrap();
    assert!(end.contains(" blocks read, ") && end.ends_with("none lost\r\n"), "{output:?}");
    assert!(!end.contains('\x1b'), "{output:?}");
}

#[test]
fn progress_line_is_erased_before_other_output() {
    let Some(script) = need::require_command("script") else { return };
    let folder = Folder::new();
    let run = |ms| {
        let typed =
            format!("streamline 'generate rate=20000 | count' --for {ms}ms --progress 200ms");
        run_on_terminal(&script, &folder, &typed)
    };
    let output = rerun_until_output_suffices(500, run, |output| !status_lines(output).is_empty());
    // The report of `count` is printed to the same terminal, and must be on a separate line.
    let (_, end) = output.rsplit_once(ERASE_LINE).unwrap();
    assert_eq!(end.lines().count(), 2, "{output:?}");
}

#[test]
fn progress_appears_only_on_a_free_foreground_terminal() {
    let Some(script) = need::require_command("script") else { return };
    let cases = [
        ("generate rate=20 | discard", "", true),
        ("generate rate=20 | print", "", false),
        ("generate rate=20 | print", "> out", true),
        ("generate rate=20 | pcap -", "| cat > out", true),
        ("generate rate=20 | exec \"wc -c\"", "", false),
        ("generate rate=20 | discard", "--quiet", false),
        ("generate rate=20 | discard", "--progress=no", false),
        ("generate rate=20 | discard", "2> err", false),
        ("generate rate=20 | discard", "& wait", false),
    ];
    std::thread::scope(|scope| {
        for (line, words, is_visible) in cases {
            let script = &script;
            scope.spawn(move || {
                let folder = Folder::new();
                // With job control, `&` starts the command in a separate process group.
                let run = |ms| {
                    let typed = format!("set -m; streamline '{line}' --for {ms}ms {words}");
                    run_on_terminal(script, &folder, &typed)
                };
                // The running time suffices for one progress line, which appears after 1 s.
                let output = rerun_until_output_suffices(1500, run, |output| {
                    status_lines(output).is_empty() != is_visible
                });
                assert_status_line_interval(&status_lines(&output), 1.0);
            });
        }
    });
}

#[test]
fn progress_on_request_prints_lines_to_a_file() {
    let folder = Folder::new();
    let words = ["run", "generate rate=20000 | discard", "--for", "700ms"];
    let plain = folder.run(&words);
    assert_eq!(plain.err.lines().count(), 1, "{}", plain.err);
    let run = |ms| {
        let time = format!("{ms}ms");
        folder.run(&[&words[..3], &[&time, "--progress", "200ms"]].concat()).err
    };
    let stderr = rerun_until_output_suffices(700, run, |stderr| stderr.lines().count() > 1);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_status_line_interval(&lines[..lines.len() - 1], 0.2);
    assert!(!stderr.contains(['\r', '\x1b']), "{stderr}");
    let wrong = folder.run(&[&words[..], &["--progress", "often"]].concat());
    assert_eq!(wrong.status, Some(2));
    assert!(wrong.err.contains("write `yes`, `no`, seconds"), "{}", wrong.err);
}

#[test]
fn paced_replay_shows_no_estimate_from_its_file() {
    let folder = Folder::new();
    let run = |ms: u32| {
        let (time, line) = (format!("{ms}ms"), "replay examples/web.pcap speed=0.01 | discard");
        folder.run(&["run", line, "--for", &time, "--progress", "200ms"]).err
    };
    let stderr = rerun_until_output_suffices(700, run, |stderr| stderr.lines().count() > 1);
    assert!(!stderr.contains('%') && !stderr.contains("left"), "{stderr}");
}

#[test]
fn progress_restores_the_terminal() {
    let Some(script) = need::require_command("script") else { return };
    let folder = Folder::new();
    // Each progress line disables and reenables autowrap.
    let typed = "streamline 'generate rate=100 | discard' --for 400ms --progress 100ms";
    let output = run_on_terminal(&script, &folder, typed);
    assert_eq!(output.matches("\x1b[?7l").count(), output.matches("\x1b[?7h").count());
}
