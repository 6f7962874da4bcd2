//! Tests of completion with the tab key in interactive shells on a terminal.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use common::screen::Screen;
use std::fs;
use testkit::need;

/// Keys that a user types, and the words after `streamline` in the completed line, each in angle
/// brackets. `\t` is the tab key.
const COMPLETION_CASES: [(&str, &str); 9] = [
    // Commands and their options.
    ("streamline doc\t", "<doctor>"),
    ("streamline completion fi\t", "<completion><fish>"),
    ("streamline schema spa\t", "<schema><spaces>"),
    // Requests. The quote stays open, because a request can continue.
    ("streamline 'replay x | dp\t |80 cou\t'", "<replay x | dport |80 count>"),
    ("streamline \"replay examples/we\t | json\"", "<replay examples/web.pcap | json>"),
    ("streamline run 'rep\t x sp\t2'", "<run><replay x speed=2>"),
    (
        "streamline explain 'replay x | tcp | http |exch\t'",
        "<explain><replay x | tcp | http |exchange>",
    ),
    // Names of running paths and of their nodes.
    ("streamline stop w\t", "<stop><web>"),
    ("streamline set web remove count\t", "<set><web><remove><count#counted>"),
];

/// Types the keys of each case into a shell. The completed line becomes the argument of `printf`,
/// which prints the words.
fn check_completion_cases(shell: &str, script: &str, start: &str) {
    if need::require_command(shell).is_none() {
        return;
    }
    let folder = Folder::new();
    let _daemon = folder.start_daemon();
    let _path = folder.spawn_named_path("web", "generate rate=10 | count --name=counted | discard");
    testkit::wait_until("the path says what its nodes are", || {
        folder.run(&["complete", "--", "set", "web", "remove"]).out.contains("count#counted")
    });
    fs::write(folder.path().join(script), folder.run(&["completion", shell]).out).unwrap();
    fs::write(folder.path().join("start"), start).unwrap();
    let words = match shell {
        "bash" => "bash --noprofile --rcfile start -i",
        "zsh" => "env ZDOTDIR=zsh zsh -d -i",
        _ => "fish --no-config --init-command 'source start'",
    };
    if shell == "zsh" {
        fs::create_dir(folder.path().join("zsh")).unwrap();
        fs::rename(folder.path().join("start"), folder.path().join("zsh/.zshrc")).unwrap();
    }
    let Some(mut screen) = Screen::start_shell_command(&folder, words) else { return };
    screen.wait_for_text("ready> ");
    for (keys, expected) in COMPLETION_CASES {
        let before = screen.output().len();
        // ^A moves the cursor to the beginning of the line.
        screen.press(&format!("{keys}\u{1}printf '<%s>' \n"), "<streamline>");
        let mut printed = String::new();
        testkit::wait_until("the next line can be typed", || {
            let output = screen.output();
            let words = output.get(before..).and_then(|new| new.split_once("<streamline>"));
            printed = words.map_or(String::new(), |(_, words)| words.to_owned());
            printed.contains("ready> ")
        });
        assert!(printed.starts_with(expected), "{shell}: {keys:?}: {printed:?}");
    }
    screen.press("exit\n", "exit");
    screen.wait_for_exit();
}

#[test]
fn bash_completes_commands_requests_and_names() {
    check_completion_cases("bash", "script", "PS1='ready> '; . ./script");
}

#[test]
fn zsh_completes_commands_requests_and_names() {
    let start = "PROMPT='ready> '; fpath=($PWD $fpath); autoload -U compinit; compinit -u -D";
    check_completion_cases("zsh", "_streamline", start);
}

#[test]
fn fish_completes_commands_requests_and_names() {
    let start = "function fish_prompt; echo 'ready> '; end; source script";
    check_completion_cases("fish", "script", start);
}
