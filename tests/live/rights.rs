//! With some capabilities and not with others: a line runs wherever it may, on the same frames with
//! the same outcome, and says where, and why nowhere deeper. Nobody here is root but the test.

use crate::numbers::{SHORT, numbered};
use crate::observer::{Observer, Ran};
use crate::privilege::for_everybody;
use crate::scratch::Scratch;
use crate::send::send_all;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use testkit::need;
use testkit::net::{Cable, Pair, SERVER_DEVICE};

/// A user with these capabilities and no others, in the namespace of the server.
struct Somebody<'t> {
    pair: &'t Pair,
    setpriv: &'t Path,
    rights: &'t str,
}

impl Somebody<'_> {
    fn command(&self, program: &Path) -> Command {
        let mut command = self.pair.server.command(self.setpriv);
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        for set in ["inh", "ambient"] {
            command.arg(format!("--{set}-caps=-all{}", self.rights));
        }
        command.arg(program);
        command
    }

    /// Returns `explain --json` of a line.
    fn explained(&self, program: &Path, line: &str) -> Value {
        let output = self.command(program).args(["explain", "--json", line]).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("an object")
    }

    /// Runs a line over a hundred datagrams.
    fn runs(&self, program: &Path, line: &str) -> Ran {
        let near = &self.pair.server;
        let observer = Observer::attached(near, |_| self.command(program), line);
        send_all(self.pair, &numbered(0..100, SHORT));
        observer.stop()
    }
}

fn filter<'r>(told: &'r Value, name: &str) -> &'r Value {
    let filters = told["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the refusal of a filter in the kernel, from `explain --json`.
fn refusal(explained: &Value, name: &str) -> Option<String> {
    let candidates = filter(explained, name)["candidates"].as_array().expect("candidates");
    let kernel = candidates.iter().find(|candidate| candidate["space"] == "kernel");
    kernel?["refused"].as_str().map(str::to_owned)
}

/// Sets of capabilities, with the kernel's verdict: programs taken, and verified hardened or not.
const SOMEBODIES: [(&str, Option<bool>); 6] = [
    (",+net_raw", None),
    (",+net_raw,+net_admin", None),
    (",+net_raw,+bpf", None),
    (",+net_admin,+bpf", Some(true)),
    (",+net_raw,+net_admin,+bpf", Some(true)),
    (",+net_admin,+bpf,+perfmon", Some(false)),
];

#[test]
fn v5_a_line_runs_with_the_capabilities_that_there_are() {
    let Some(()) = need::bpf() else { return };
    let Some(setpriv) = need::command("setpriv") else { return };
    let Some(pair) = Pair::new(Cable { addresses: false, ..Cable::default() }) else { return };
    let folder = Scratch::new();
    let program = for_everybody(&folder);
    let line = format!("rx {SERVER_DEVICE} | ip | udp | dport |all count");
    for (rights, hardened) in SOMEBODIES {
        let somebody = Somebody { pair: &pair, setpriv: &setpriv, rights };
        let explained = somebody.explained(&program, &line);
        let kernel = &explained["machine"]["kernel"];
        assert_eq!(kernel["open"].as_bool(), Some(hardened.is_some()), "{rights}: {kernel}");
        assert_eq!(kernel["hardened"].as_bool(), hardened, "{rights}: {kernel}");
        let refused = refusal(&explained, "udp");
        assert_eq!(refused.is_none(), hardened.is_some(), "{rights}: {refused:?}");
        if let Some(why) = refused {
            assert!(why.contains("not permitted"), "{rights}: {why}");
            assert_eq!(kernel["why"], why, "{rights}");
        }
        let ran = somebody.runs(&program, &line);
        ran.assert_whole();
        let space = if hardened.is_some() { "kernel" } else { "thread0" };
        for name in ["rx", "ip", "udp", "dport", "count"] {
            let filter = filter(&ran.ledger, name);
            assert_eq!(filter["space"], space, "{rights}: {name}: {}", ran.err);
            assert_eq!(filter["taken"]["blocks"].as_u64().map_or(0, |n| n % 100), 0, "{filter}");
        }
        assert_eq!(
            filter(&ran.ledger, "count")["taken"]["blocks"],
            100,
            "{rights}: {}",
            ran.ledger
        );
        // Nothing that was planned there was refused: it was known before.
        assert_eq!(ran.ledger["refused"], Value::Array(Vec::new()), "{rights}");
    }
}
