//! Tests of requests of users who have only some of the capabilities. The requests run in the
//! deepest permitted space, have the same result on the same frames, and report why a deeper
//! placement was refused. Only the test itself runs as root.

use crate::frame_sending::send_all;
use crate::numbered_frames::{FRAME_LENGTH, numbered_frames};
use crate::observer::{Observer, ObserverResult};
use crate::privilege::copy_program_for_every_user;
use crate::scratch::Scratch;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use testkit::need;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE};

/// A user in the server's namespace with only the given capabilities.
struct UnprivilegedUser<'t> {
    pair: &'t NamespacePair,
    setpriv: &'t Path,
    rights: &'t str,
}

impl UnprivilegedUser<'_> {
    fn command(&self, program: &Path) -> Command {
        let mut command = self.pair.server.command(self.setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        for set in ["inh", "ambient"] {
            command.arg(format!("--{set}-caps=-all{}", self.rights));
        }
        command.arg(program);
        command
    }

    /// Returns the output of `explain --json` for a request.
    fn explain(&self, program: &Path, line: &str) -> Value {
        let output = self.command(program).args(["explain", "--json", line]).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("an object")
    }

    /// Runs a request while 100 datagrams are sent to it.
    fn run_request(&self, program: &Path, line: &str) -> ObserverResult {
        let near = &self.pair.server;
        let observer = Observer::start_by_command(near, |_| self.command(program), line);
        send_all(self.pair, &numbered_frames(0..100, FRAME_LENGTH));
        observer.stop()
    }
}

fn filter_entry<'r>(report: &'r Value, name: &str) -> &'r Value {
    let filters = report["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the reason, from `explain --json`, why a filter cannot run in the kernel, or `None` if
/// it can.
fn kernel_refusal(explained: &Value, name: &str) -> Option<String> {
    let candidates = filter_entry(explained, name)["candidates"].as_array().expect("candidates");
    let kernel = candidates.iter().find(|candidate| candidate["space"] == "kernel");
    kernel?["refused"].as_str().map(str::to_owned)
}

/// Sets of capabilities, each with the expected result of loading a program. `None` means that the
/// kernel refuses the program. `Some(true)` means that the program is loaded hardened, that is,
/// without CAP_PERFMON. `Some(false)` means that it is loaded with CAP_PERFMON.
const CAPABILITY_SETS: [(&str, Option<bool>); 6] = [
    (",+net_raw", None),
    (",+net_raw,+net_admin", None),
    (",+net_raw,+bpf", None),
    (",+net_admin,+bpf", Some(true)),
    (",+net_raw,+net_admin,+bpf", Some(true)),
    (",+net_admin,+bpf,+perfmon", Some(false)),
];

#[test]
fn v5_request_runs_with_available_capabilities() {
    let Some(()) = need::require_bpf() else { return };
    let Some(setpriv) = need::require_command("setpriv") else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    }) else {
        return;
    };
    let folder = Scratch::new();
    let program = copy_program_for_every_user(&folder);
    let line = format!("rx {SERVER_DEVICE} | ip | udp | dport |all count");
    for (rights, hardened) in CAPABILITY_SETS {
        let user = UnprivilegedUser { pair: &pair, setpriv: &setpriv, rights };
        let explained = user.explain(&program, &line);
        let kernel = &explained["machine"]["kernel"];
        assert_eq!(kernel["open"].as_bool(), Some(hardened.is_some()), "{rights}: {kernel}");
        assert_eq!(kernel["hardened"].as_bool(), hardened, "{rights}: {kernel}");
        let refused = kernel_refusal(&explained, "udp");
        assert_eq!(refused.is_none(), hardened.is_some(), "{rights}: {refused:?}");
        if let Some(why) = refused {
            assert!(why.contains("not permitted"), "{rights}: {why}");
            assert_eq!(kernel["why"], why, "{rights}");
        }
        let ran = user.run_request(&program, &line);
        ran.assert_lossless();
        let space = if hardened.is_some() { "kernel" } else { "thread0" };
        for name in ["rx", "ip", "udp", "dport", "count"] {
            let filter = filter_entry(&ran.ledger, name);
            assert_eq!(filter["space"], space, "{rights}: {name}: {}", ran.err);
            assert_eq!(filter["taken"]["blocks"].as_u64().map_or(0, |n| n % 100), 0, "{filter}");
        }
        assert_eq!(
            filter_entry(&ran.ledger, "count")["taken"]["blocks"],
            100,
            "{rights}: {}",
            ran.ledger
        );
        // Nothing planned there was refused: the planner knew the rights.
        assert_eq!(ran.ledger["refused"], Value::Array(Vec::new()), "{rights}");
    }
}
