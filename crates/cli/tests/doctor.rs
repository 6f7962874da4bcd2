//! Tests of `doctor` with all privileges, with some privileges, and without privileges.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{CommandResult, Folder};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::need;

const PAGE_SECTIONS: [&str; 8] = [
    "\nthis process\n",
    "\nwhat the kernel permits (tried, unless noted)\n",
    "\nlimits\n",
    "\nhelpful programs\n",
    "\nwhat things cost\n",
    "\nthe daemon\n",
    "\ninterfaces\n",
    "\nwhat follows\n",
];

/// A directory that all users can read, with a copy of the program.
struct Fixture {
    folder: Folder,
    program: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let folder = Folder::new();
        let program = folder.path().join("streamline");
        let built = env!("CARGO_BIN_EXE_streamline");
        if std::fs::hard_link(built, &program).is_err() {
            testkit::copy_program(Path::new(built), &program);
        }
        Self { folder, program }
    }

    /// Runs the program with these arguments. `before` contains a wrapper program with its
    /// arguments, or is empty.
    fn run(&self, before: &[&str], words: &[&str]) -> CommandResult {
        let mut command =
            Command::new(before.first().map_or(self.program.as_path(), |first| first.as_ref()));
        if !before.is_empty() {
            command.args(&before[1..]).arg(&self.program);
        }
        command.args(words).current_dir(self.folder.path());
        command.env("NO_COLOR", "1").env("XDG_STATE_HOME", self.folder.path().join("state"));
        command.env("STREAMLINE_DAEMON", self.folder.path().join("no-daemon"));
        CommandResult::from(command.output().unwrap())
    }

    /// Returns the verdict of `doctor rx --json`. Asserts that the exit status is 0 if the verdict
    /// is that capturing works, and otherwise 1.
    fn capture_verdict(&self, before: &[&str]) -> Value {
        let ran = self.run(before, &["doctor", "rx", "--json"]);
        let verdict: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran:?}"));
        let open = verdict["open"].as_bool().unwrap();
        assert_eq!(ran.status, Some(i32::from(!open)), "{ran:?}");
        verdict
    }
}

fn verdict_explanation(verdict: &Value) -> &str {
    verdict["because"].as_str().unwrap()
}

/// Returns the commands that the verdict suggests as remedies.
fn suggested_commands(verdict: &Value) -> Vec<&str> {
    let ways = verdict["ways"].as_array().unwrap().iter();
    ways.map(|way| way["command"].as_str().unwrap()).filter(|line| !line.is_empty()).collect()
}

/// Wrapper that runs a command as an unprivileged user.
const UNPRIVILEGED_WRAPPER: [&str; 6] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"];

#[test]
fn doctor_page_is_complete_in_80_columns() {
    let ran = Fixture::new().run(&[], &["doctor"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let mut from = 0;
    for section in PAGE_SECTIONS {
        let at = ran.out[from..].find(section).unwrap_or_else(|| panic!("{section}: {}", ran.out));
        from += at;
    }
    assert!(!ran.out.contains('\x1b'), "no colours in a pipe");
    let copied =
        |line: &str| line.trim_start().starts_with("sudo ") || line.contains(" doctor unit ");
    for line in ran.out.lines().filter(|line| !copied(line) && !line.contains("/streamline")) {
        assert!(line.chars().count() <= 80, "{line:?}");
        assert_eq!(line, line.trim_end(), "nothing behind it");
    }
    assert!(ran.out.ends_with(" ✓ captures (replay)  always\n"), "{}", ran.out);
}

#[test]
fn o3_calibration_is_saved_and_reported() {
    let fixture = Fixture::new();
    let ran = fixture.run(&[], &["doctor", "--calibrate", "--json"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let costs_file = fixture.folder.path().join("state/streamline/costs");
    assert_eq!(report["path"].as_str().unwrap(), costs_file.display().to_string());
    let filters = report["filters"].as_array().unwrap();
    let cost_of = |name: &str, space: &str| {
        filters.iter().find(|cost| cost["filter"] == name && cost["space"] == space)
    };
    assert!(cost_of("bpf", "thread").unwrap()["block_ns"].as_f64().unwrap() > 0.0);
    assert!(report["costs"]["copy"].as_f64().unwrap() > 0.0);
    let unmeasured = report["missing"].as_array().unwrap().iter();
    let kernel = unmeasured.filter(|one| one["what"].as_str().unwrap().contains("in the kernel"));
    assert!(kernel.count() > 0 || cost_of("bpf", "kernel").is_some());

    let page = fixture.run(&[], &["doctor"]).out;
    assert!(page.contains("table              measured just now"), "{page}");
    let line = fixture.folder.path().join("a.pcap").display().to_string();
    std::fs::write(&line, b"").unwrap();
    let explained = fixture.run(&[], &["explain", "replay a.pcap | bpf udp | count"]).out;
    assert!(explained.contains(" calibration  measured here just now, version 5"), "{explained}");

    let text = std::fs::read_to_string(&costs_file).unwrap();
    std::fs::write(&costs_file, text.replacen("kernel ", "kernel 0.", 1)).unwrap();
    let page = fixture.run(&[], &["doctor"]).out;
    assert!(page.contains("not used: measured on Linux 0."), "{page}");
}

#[test]
fn doctor_json_has_all_findings() {
    let ran = Fixture::new().run(&[], &["doctor", "--json"]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["version"], 1);
    let names = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&report["doors"]), ["rx", "tx", "kernel", "replay"]);
    let process_rows = names(&report["sections"][0]["rows"]);
    for row in ["user", "program", "CAP_NET_RAW", "CAP_BPF", "no_new_privs", "seccomp"] {
        assert!(process_rows.iter().any(|name| name == row), "{row}: {process_rows:?}");
    }
    let kernel_rows = names(&report["sections"][1]["rows"]);
    let apart = kernel_rows.iter().position(|name| name == "seccomp filters").unwrap();
    assert_eq!(kernel_rows[apart + 1], "Landlock", "what `untrusted=yes` can have");
    assert!(names(&report["interfaces"]).contains(&"lo".to_owned()));
    for section in report["sections"].as_array().unwrap() {
        for row in section["rows"].as_array().unwrap() {
            let bad = row["state"] == "bad";
            assert_eq!(row["advice"].is_string(), bad, "what is bad says what to do: {row}");
        }
    }
}

#[test]
fn privileged_user_can_capture() {
    let (Some(()), Some(unshare)) = (need::require_root(), need::require_command("unshare")) else {
        return;
    };
    let fixture = Fixture::new();
    // The program runs in a new network namespace, whose only interface is down.
    let unshare = unshare.to_str().unwrap();
    let verdict = fixture.capture_verdict(&[unshare, "-n"]);
    assert!(verdict["open"].as_bool().unwrap(), "{verdict}");
    let why = "but only lo is up: no packet will arrive until another interface is up";
    assert_eq!(verdict_explanation(&verdict), why);
}

#[test]
fn cap_net_raw_alone_suffices_to_capture() {
    let (Some(()), Some(()), Some(setpriv)) =
        (need::require_root(), need::require_net_raw(), need::require_command("setpriv"))
    else {
        return;
    };
    // The capability is granted in the same way as by the systemd unit.
    let setpriv_options = ["--inh-caps=-all,+net_raw", "--ambient-caps=+net_raw", "--no-new-privs"];
    let bound = "--bounding-set=-all,+net_raw";
    let before = [
        &[setpriv.to_str().unwrap()],
        &UNPRIVILEGED_WRAPPER[1..4],
        &setpriv_options,
        &[bound, "--"],
    ]
    .concat();
    let fixture = Fixture::new();
    assert!(fixture.capture_verdict(&before)["open"].as_bool().unwrap());
    let ran = fixture.run(&before, &["run", "--for", "100ms", "rx lo both=yes | count"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
}

#[test]
fn file_capability_suffices_to_capture() {
    let (Some(()), Some(()), Some(_)) =
        (need::require_root(), need::require_net_raw(), need::require_command("setpriv"))
    else {
        return;
    };
    let Some(setcap) = need::require_command("setcap") else { return };
    let fixture = Fixture::new();
    // The program must be a separate copy: with a hard link, setcap would modify the file that
    // cargo built.
    let own = fixture.folder.path().join("own");
    testkit::copy_program(&fixture.program, &own);
    std::fs::rename(&own, &fixture.program).unwrap();
    let verdict = fixture.capture_verdict(&UNPRIVILEGED_WRAPPER);
    if !suggested_commands(&verdict).iter().any(|line| line.starts_with("sudo setcap ")) {
        let _: Option<()> = need::report_skip("needs a folder for temporary files without nosuid");
        return;
    }
    let given = Command::new(setcap).arg("cap_net_raw+ep").arg(&fixture.program).output();
    assert!(given.as_ref().is_ok_and(|output| output.status.success()), "{given:?}");
    assert!(fixture.capture_verdict(&UNPRIVILEGED_WRAPPER)["open"].as_bool().unwrap());
    let ran = fixture.run(&UNPRIVILEGED_WRAPPER, &["run", "--for", "100ms", "rx lo | count"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    // A file capability has no effect with `no_new_privs`.
    let bound = [&UNPRIVILEGED_WRAPPER[..], &["setpriv", "--no-new-privs", "--"]].concat();
    assert!(!fixture.capture_verdict(&bound)["open"].as_bool().unwrap());
}

#[test]
fn terminal_marks_are_colored() {
    let Some(script) = need::require_command("script") else { return };
    let folder = Folder::new();
    let mut command = folder.shell_command("unset NO_COLOR; exec \"$@\"");
    command.arg("sh").arg(script).args(["-qec", "streamline doctor", "/dev/null"]);
    let output = CommandResult::from(command.env("TERM", "xterm").output().unwrap()).out;
    assert!(output.contains("\x1b[1mthis process\x1b[0m\r\n"), "{output:?}");
    assert!(output.contains(" \x1b[32m✓\x1b[0m captures (replay)  always\r\n"), "{output:?}");
}

#[test]
fn unprivileged_user_sees_capability_and_remedies() {
    let (Some(()), Some(_)) = (need::require_root(), need::require_command("setpriv")) else {
        return;
    };
    let fixture = Fixture::new();
    let verdict = fixture.capture_verdict(&UNPRIVILEGED_WRAPPER);
    assert_eq!(
        verdict_explanation(&verdict),
        "CAP_NET_RAW is missing, without which no process may open packet sockets"
    );
    let program = fixture.program.display();
    let commands = suggested_commands(&verdict);
    assert_eq!(commands[0], format!("sudo {program} 'rx | count'"));
    assert!(commands.contains(&"unshare -Urn"), "{commands:?}");
    // On a temporary directory mounted with nosuid, setcap would have no effect.
    let setcap = format!("sudo setcap cap_net_raw+ep {program}");
    let install = format!("sudo install -m 755 {program} /usr/local/bin/streamline");
    assert!(commands[1] == setcap || commands[1] == install, "{commands:?}");

    let page = fixture.run(&UNPRIVILEGED_WRAPPER, &["doctor"]);
    assert_eq!(page.status, Some(0), "looking is no failure");
    assert!(page.out.contains("\n ✗ packet socket "), "{}", page.out);
    assert!(page.out.contains("→ see the end: capturing (rx)\n"), "{}", page.out);
    assert!(page.out.contains("\n ✗ sending (tx)       no: the same\n"), "{}", page.out);
}

#[test]
fn unobtainable_capability_is_distinguished() {
    let (Some(()), Some(setpriv)) = (need::require_root(), need::require_command("setpriv")) else {
        return;
    };
    let fixture = Fixture::new();
    let bound = [setpriv.to_str().unwrap(), "--bounding-set=-net_raw", "--inh-caps=-net_raw", "--"];
    let verdict = fixture.capture_verdict(&bound);
    assert!(verdict_explanation(&verdict).contains("not in the bounding set"), "{verdict}");
    assert_eq!(suggested_commands(&verdict), ["unshare -Urn"]);
    let setpriv_options = [&UNPRIVILEGED_WRAPPER[..5], &["--no-new-privs", "--"]].concat();
    let verdict = fixture.capture_verdict(&setpriv_options);
    assert!(
        verdict["ways"][0]["says"].as_str().unwrap().starts_with("no_new_privs is set"),
        "{verdict}"
    );
    assert_eq!(suggested_commands(&verdict), ["unshare -Urn"]);
}

#[test]
fn root_of_a_user_namespace_cannot_capture() {
    let Some(unshare) = need::require_command("unshare") else { return };
    let unshare = unshare.to_str().unwrap();
    if !Command::new(unshare).args(["-Urn", "true"]).output().unwrap().status.success() {
        let _: Option<()> = need::report_skip("needs user namespaces");
        return;
    }
    let fixture = Fixture::new();
    let verdict = fixture.capture_verdict(&[unshare, "-Ur"]);
    assert!(
        verdict_explanation(&verdict).starts_with("CAP_NET_RAW is there and does not help"),
        "{verdict}"
    );
    assert!(verdict_explanation(&verdict).contains("user namespace"), "{verdict}");
    assert_eq!(suggested_commands(&verdict), ["unshare -Urn"]);
    let verdict = fixture.capture_verdict(&[unshare, "-Urn"]);
    assert!(verdict["open"].as_bool().unwrap(), "and its own network namespace has: {verdict}");
}

#[test]
fn seccomp_filter_is_named_if_the_capability_is_present() {
    let (Some(()), Some(())) = (need::require_root(), need::require_net_raw()) else { return };
    let Some(python) = need::require_command("python3") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/doctor/seccomp.py");
    let fixture = Fixture::new();
    // The seccomp filter returns EPERM, like the filters of container runtimes, and then
    // EAFNOSUPPORT, like the filter of systemd.
    for errno in ["1", "97"] {
        let before = [python.to_str().unwrap(), script, errno];
        let verdict = fixture.capture_verdict(&before);
        assert!(verdict_explanation(&verdict).contains("CAP_NET_RAW is there"), "{verdict}");
        assert!(verdict_explanation(&verdict).contains("a seccomp filter refuses"), "{verdict}");
        assert!(
            suggested_commands(&verdict).is_empty(),
            "neither sudo nor setcap helps: {verdict}"
        );
        let ran = fixture.run(&before, &["run", "rx@thread0 lo | count"]);
        assert_eq!(ran.status, Some(1), "{ran:?}");
        assert!(ran.err.contains("\nnote: CAP_NET_RAW is there and does not help"), "{}", ran.err);
        assert!(!ran.err.contains("setcap"), "{}", ran.err);
    }
}

#[test]
fn unprivileged_request_prints_remedies() {
    let (Some(()), Some(_)) = (need::require_root(), need::require_command("setpriv")) else {
        return;
    };
    let fixture = Fixture::new();
    let line = "rx lo | match \"it's\" | count";
    let ran = fixture.run(&UNPRIVILEGED_WRAPPER, &["run", line]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.err.contains("error: cannot watch lo: "), "{}", ran.err);
    assert!(ran.err.contains("\nnote: CAP_NET_RAW is missing"), "{}", ran.err);
    // A suggested command is on a separate line and quotes the request correctly.
    let remedy = ran.err.lines().map(str::trim).find(|line| line.starts_with("sudo ")).unwrap();
    let remedy_command = remedy.strip_prefix("sudo ").unwrap();
    let words =
        fixture.folder.shell_command(&format!("printf '%s\\n' {remedy_command}")).output().unwrap();
    let words = CommandResult::from(words).out;
    assert_eq!(words, format!("{}\n{line}\n", fixture.program.display()));
    // `explain` also reports the missing capability, but starts nothing.
    let explained = fixture.run(&UNPRIVILEGED_WRAPPER, &["explain", line]);
    assert_eq!(explained.status, Some(0), "{explained:?}");
    assert!(
        explained.err.starts_with("note: this request would not start: CAP_NET_RAW is"),
        "{explained:?}"
    );
    assert!(explained.err.lines().any(|err_line| err_line.trim() == remedy), "{explained:?}");
    assert!(!explained.out.contains("run as root"), "{explained:?}");
    let page = fixture.run(&UNPRIVILEGED_WRAPPER, &["doctor"]);
    assert!(page.out.contains("TCX") && !page.out.contains("run as root"), "{page:?}");
    let explained = fixture.run(&UNPRIVILEGED_WRAPPER, &["explain", "generate | count"]);
    assert_eq!((explained.status, explained.err.as_str()), (Some(0), ""), "it lacks nothing");
    // For a request that enters a namespace, the remedies do not include a file capability.
    let ran = fixture.run(&UNPRIVILEGED_WRAPPER, &["run", "rx netns=/proc/self/ns/net | count"]);
    assert!(ran.err.contains("CAP_SYS_ADMIN is missing"), "{}", ran.err);
    assert!(ran.err.contains("\n  sudo ") && !ran.err.contains("setcap"), "{}", ran.err);
    // Errors for other reasons do not mention privileges.
    for (line, hint) in [
        ("rx nosuch0 | count", "there are lo"),
        ("generate count=1 | tx nosuch0", "there are lo"),
        ("rx lo netns=nosuch0 | count", "`ip netns list` shows"),
    ] {
        let ran = fixture.run(&UNPRIVILEGED_WRAPPER, &["run", line]);
        assert!(!ran.err.contains("is missing") && ran.err.contains(hint), "{line}: {ran:?}");
    }
}

#[test]
fn unit_is_accepted_by_systemd() {
    let folder = Folder::new();
    let line = "rx lo both=yes | bpf \"tcp port 80\" | tcp | http |exchange weblog access.log";
    let ran = folder.run(&["doctor", "unit", line]);
    assert_eq!((ran.status, ran.err.as_str()), (Some(0), ""));
    for setting in ["DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"] {
        assert!(ran.out.contains(&format!("\n{setting}\n")), "{}", ran.out);
    }
    let raw = "\nAmbientCapabilities=CAP_NET_RAW\nCapabilityBoundingSet=CAP_NET_RAW\n";
    assert!(ran.out.contains(raw), "{}", ran.out);
    let Some(systemd) = need::require_command("systemd-analyze") else { return };
    let unit = folder.path().join("streamline.service");
    // systemd checks that the program exists, so the test substitutes a program that does.
    let with_existing_program = |line: &str| match line.strip_prefix("ExecStart=") {
        Some(words) => format!("ExecStart=/bin/sh {}\n", words.split_once(' ').unwrap().1),
        None => format!("{line}\n"),
    };
    std::fs::write(&unit, ran.out.lines().map(with_existing_program).collect::<String>()).unwrap();
    let output = Command::new(systemd).arg("verify").arg(&unit).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !stderr.contains("streamline.service"), "{stderr}");
}

#[test]
fn unit_of_a_faulty_request_reports_its_mistakes() {
    let folder = Folder::new();
    let ran = folder.run(&["doctor", "unit", "generate | dpotr"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("did you mean `dport`?"), "{}", ran.err);
    let ran = folder.run(&["doctor", "unit", "rx netns=blue | count"]);
    assert_eq!((ran.status, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("NetworkNamespacePath=/run/netns/blue"), "{}", ran.err);
    let ran = folder.run(&["doctor", "unit"]);
    assert_eq!(ran.status, Some(2), "{}", ran.err);
}
