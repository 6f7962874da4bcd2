//! Peers that select and count the same frames at a device, one at a time: a BPF program at tc, an
//! nftables rule, and tc's own filters.

use crate::processes::{is_installed, number_after};
use std::process::Command;
use sys::bpf::{ChainPosition, Link, Program, TrafficDirection};
use testkit::net::Namespace;

/// A third-party tool that selects and counts frames, and is configured by commands.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterTool {
    pub(super) name: &'static str,
    program: &'static str,
    package: &'static str,
    add: &'static [&'static str],
    remove: &'static str,
    /// The command that prints the frame count, and the text before the count. `None` if the tool
    /// does not count.
    count: Option<(&'static str, &'static str)>,
}

/// The third-party tools that `bench kernel` measures. Their commands are split at blanks outside
/// braces; `server0` is [`testkit::net::SERVER_DEVICE`].
pub(super) const FILTER_TOOLS: [FilterTool; 3] = [
    FilterTool {
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
    FilterTool {
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
    FilterTool {
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

impl FilterTool {
    /// Returns true if the tool is installed and the kernel accepts its rules; otherwise, prints
    /// the reason.
    pub(super) fn is_usable(&self, space: &Namespace) -> bool {
        if !is_installed(self.program, self.package) {
            return false;
        }
        match self.add_rules(space) {
            Ok(()) => self.remove_rules(space).is_ok(),
            Err(why) => {
                eprintln!("left out: {}: this kernel does not take its rules: {why}", self.name);
                let _ = self.remove_rules(space);
                false
            }
        }
    }

    /// Adds the tool's rules, which select and count frames, in the namespace.
    pub(super) fn add_rules(&self, space: &Namespace) -> Result<(), String> {
        self.add.iter().try_for_each(|words| self.run_command(space, words).map(drop))
    }

    /// Removes the rules that [`Self::add_rules`] has added in the namespace.
    pub(super) fn remove_rules(&self, space: &Namespace) -> Result<(), String> {
        self.run_command(space, self.remove).map(drop)
    }

    /// Returns the number of counted frames, or `None` for a tool that does not count.
    pub(super) fn counted_frames(&self, space: &Namespace) -> Result<Option<u64>, String> {
        let Some((words, before)) = self.count else { return Ok(None) };
        Ok(Some(number_after(&self.run_command(space, words)?, before)))
    }

    fn run_command(&self, space: &Namespace, words: &str) -> Result<String, String> {
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

/// Attaches a program to the ingress of a device. Dropping the returned link detaches the program.
pub(super) fn attach_to_ingress(
    program: &Program,
    space: &Namespace,
    device: u32,
) -> Result<Link, String> {
    let link = space.run_in_network_namespace(|| {
        Link::attach_tcx(program, device, TrafficDirection::Ingress, ChainPosition::Head, None)
    });
    link.map_err(|why| why.to_string())
}
