//! Peers that decide the same at a device, one at a time: a program at traffic control, nftables,
//! tc.

use crate::processes::{installed, number_behind};
use std::process::Command;
use sys::bpf::{Anchor, Link, Program, Side};
use testkit::net::Namespace;

/// A tool that is told by words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    program: &'static str,
    package: &'static str,
    add: &'static [&'static str],
    remove: &'static str,
    /// The command that prints the number of counted frames, and the text before the number; `None`
    /// if there is none.
    count: Option<(&'static str, &'static str)>,
}

/// All that are known. What they are told is split at blanks but within braces; `server0` is
/// [`testkit::net::SERVER_DEVICE`].
pub(super) const TOOLS: [Tool; 3] = [
    Tool {
        name: "nftables",
        program: "nft",
        package: "nftables",
        add: &[
            "add table netdev streamline",
            "add chain netdev streamline in \
             {type filter hook ingress device \"server0\" priority 0;}",
            "add rule netdev streamline in udp dport 53 counter",
        ],
        remove: "delete table netdev streamline",
        count: Some(("list chain netdev streamline in", "counter packets ")),
    },
    Tool {
        name: "tc flower",
        program: "tc",
        package: "iproute2",
        add: &[
            "qdisc add dev server0 clsact",
            "filter add dev server0 ingress protocol ip flower ip_proto udp dst_port 53 action ok",
        ],
        remove: "qdisc del dev server0 clsact",
        count: Some(("-s filter show dev server0 ingress", " bytes ")),
    },
    Tool {
        name: "tc u32",
        program: "tc",
        package: "iproute2",
        add: &[
            "qdisc add dev server0 clsact",
            "filter add dev server0 ingress protocol ip u32 \
             match ip protocol 17 0xff match ip dport 53 0xffff classid 1:1",
        ],
        remove: "qdisc del dev server0 clsact",
        count: None,
    },
];

impl Tool {
    /// Returns true if the peer is installed and this kernel takes its rules; prints the reason
    /// otherwise.
    pub(super) fn works(&self, space: &Namespace) -> bool {
        if !installed(self.program, self.package) {
            return false;
        }
        match self.begin(space) {
            Ok(()) => self.end(space).is_ok(),
            Err(why) => {
                eprintln!("left out: {}: this kernel does not take its rules: {why}", self.name);
                let _ = self.end(space);
                false
            }
        }
    }

    /// From now on it decides.
    pub(super) fn begin(&self, space: &Namespace) -> Result<(), String> {
        self.add.iter().try_for_each(|words| self.tell(space, words).map(drop))
    }

    /// No longer.
    pub(super) fn end(&self, space: &Namespace) -> Result<(), String> {
        self.tell(space, self.remove).map(drop)
    }

    /// Returns the number of frames that it has counted; `None` if it does not report it.
    pub(super) fn counted(&self, space: &Namespace) -> Result<Option<u64>, String> {
        let Some((words, before)) = self.count else { return Ok(None) };
        Ok(Some(number_behind(&self.tell(space, words)?, before)))
    }

    fn tell(&self, space: &Namespace, words: &str) -> Result<String, String> {
        let (plain, braces) = words.split_at(words.find('{').unwrap_or(words.len()));
        let mut command: Command = space.command(self.program);
        command.args(plain.split_whitespace());
        command.args((!braces.is_empty()).then_some(braces));
        let output = command.output().map_err(|why| format!("{}: {why}", self.program))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// A program at what comes in at a device, until it is dropped.
pub(super) fn hang(program: &Program, space: &Namespace, device: u32) -> Result<Link, String> {
    let link = space.enter(|| Link::tcx(program, device, Side::Ingress, Anchor::Head, None));
    link.map_err(|why| why.to_string())
}
