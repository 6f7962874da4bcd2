//! Tests without privileges. The error names the missing capability and the remedy; in a namespace
//! of the user's own, observation works.

use crate::frame_sending::parse_capture;
use crate::scratch::Scratch;
use std::path::PathBuf;
use std::process::Command;
use testkit::need;
use testkit::net::Namespace;
use testkit::streamline_program;

/// Copies the program to a path where every user may execute it, and returns the path.
pub(crate) fn copy_program_for_every_user(folder: &Scratch) -> PathBuf {
    let copy = folder.path("streamline");
    testkit::copy_program(streamline_program(), &copy);
    copy
}

/// Extends a command by arguments of setpriv(1), so that it runs `words` as an unprivileged user.
fn command_as_overflow_user(mut command: Command, words: &[&str]) -> Command {
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.args(words);
    command
}

#[test]
fn missing_privilege_is_named_with_a_remedy() {
    let Some(space) = Namespace::new() else { return };
    let Some(setpriv) = need::require_command("setpriv") else { return };
    let folder = Scratch::new();
    let program = copy_program_for_every_user(&folder).display().to_string();
    let output =
        command_as_overflow_user(space.command(setpriv), &[&program, "run", "rx lo | count"])
            .output();
    let output = output.expect("setpriv");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for hint in ["CAP_NET_RAW", "setcap", "unshare -Urn", "systemd"] {
        assert!(stderr.contains(hint), "{hint} is not named: {stderr}");
    }
}

/// A shell script that sends packets to itself and observes them until it has received three.
const OBSERVE_SELF_SCRIPT: &str = "
ip link set lo up || exit 9
\"$0\" run --count=3 'rx lo | bpf \"udp port 9\" | pcap -' > seen.pcap &
observer=$!
while kill -0 $observer 2>/dev/null; do echo datagram > /dev/udp/127.0.0.1/9; done
wait $observer
";

#[test]
fn any_user_may_observe_in_its_own_namespace() {
    let Some(space) = Namespace::new() else { return };
    let (Some(setpriv), Some(_)) =
        (need::require_command("setpriv"), need::require_command("unshare"))
    else {
        return;
    };
    let own = ["unshare", "-Urn", "--", "true"];
    if !command_as_overflow_user(space.command(&setpriv), &own).status().expect("setpriv").success()
    {
        need::report_skip::<()>("needs namespaces that anybody may make");
        return;
    }
    let folder = Scratch::new();
    let program = copy_program_for_every_user(&folder).display().to_string();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(""), everybody).expect("our folder");
    let words =
        ["timeout", "30", "unshare", "-Urn", "--", "bash", "-c", OBSERVE_SELF_SCRIPT, &program];
    let output = command_as_overflow_user(space.command(setpriv), &words)
        .current_dir(folder.path(""))
        .output();
    let output = output.expect("setpriv");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let frames = parse_capture(&std::fs::read(folder.path("seen.pcap")).expect("a capture"));
    assert_eq!(frames.len(), 3);
    assert!(frames.iter().all(|frame| frame.ends_with(b"datagram\n")), "{frames:x?}");
}
