//! Programs and packet sockets of other applications at the network interfaces, with their owners
//! and their effect on a request. `doctor` and `explain` print them.
//!
//! The types define the `--json` format of both commands.

use engine::doctor::neighbors::{
    HolderProcess, Neighbor, NeighborKind, Neighbors, TrafficDirection, XdpMode,
};
use pipeline::explain::table::Table;
use serde::Serialize;
use std::fmt::Write as _;

/// The programs and packet sockets of other applications at one interface or at all interfaces.
#[derive(Serialize, Debug)]
pub struct NeighborFindings {
    /// The programs and packet sockets that were found.
    pub neighbors: Vec<NeighborFinding>,
    /// Number of processes whose descriptors could not be read. Any of them may hold one of the
    /// listed programs or sockets open.
    pub hidden: usize,
    /// Kinds of programs and sockets that could not be listed, each with the reason.
    pub unlisted: Vec<String>,
}

/// A program or packet socket of another application.
#[derive(Serialize, Debug)]
pub struct NeighborFinding {
    /// Name of the interface; `null` for all interfaces.
    pub interface: Option<String>,
    /// Kind: `xdp`, `packet socket`, `tcx` or `tc`.
    kind: &'static str,
    /// Direction of the frames: `received` or `sent`; `null` for a packet socket.
    side: Option<&'static str>,
    /// A property that depends on the kind: the mode of an XDP program, the link id of a TCX
    /// program, the classifier and priority of a TC program, or the protocol of a packet socket.
    how: String,
    /// Id of the kernel program; `null` for a packet socket.
    program: Option<u32>,
    /// Name of the kernel program; `null` for a packet socket.
    name: Option<String>,
    /// Id of the user who loaded the program or opened the socket; `null` if unknown.
    uid: Option<u32>,
    holders: Vec<HolderFinding>,
    /// Effect of the program or socket on requests at the same interface, as a clause for messages.
    so: &'static str,
}

/// A process that holds a program or socket open.
#[derive(Serialize, Debug)]
struct HolderFinding {
    process: u32,
    uid: u32,
    command: String,
}

impl NeighborFindings {
    /// Converts the neighbors that a search has found to the form that commands print.
    #[must_use]
    pub fn new(found: &Neighbors) -> Self {
        let unlisted = found.unlisted.iter().map(|(what, refusal)| {
            format!("{what} cannot be listed: {} ({})", refusal.why, refusal.call)
        });
        Self {
            neighbors: found.list.iter().map(NeighborFinding::new).collect(),
            hidden: found.hidden,
            unlisted: unlisted.collect(),
        }
    }

    /// Adds the neighbors found at another interface. A neighbor that is present at all interfaces
    /// is listed only once.
    pub fn extend(&mut self, other: Self) {
        let known = self.neighbors.iter().any(|one| one.interface.is_none());
        let others = other.neighbors.into_iter();
        self.neighbors.extend(others.filter(|one| one.interface.is_some() || !known));
        self.hidden = self.hidden.max(other.hidden);
        for why in other.unlisted {
            if !self.unlisted.contains(&why) {
                self.unlisted.push(why);
            }
        }
    }

    /// Returns true if there is nothing to report.
    pub const fn is_empty(&self) -> bool {
        self.neighbors.is_empty() && self.unlisted.is_empty()
    }

    /// Formats the neighbors as a table with at most `columns` columns of text, followed by the
    /// effect of each kind and by the kinds that could not be listed.
    pub fn format_table(&self, columns: usize) -> String {
        let mut table = Table::new(&["interface", "what", "program", "of"]);
        for one in &self.neighbors {
            table.add_row([
                one.interface.clone().unwrap_or_else(|| "all".to_owned()),
                one.format_kind(),
                one.name_and_id(),
                one.format_holders(self.hidden),
            ]);
        }
        let mut out = if table.is_empty() { String::new() } else { table.format_within(columns) };
        let mut kinds: Vec<(&str, &str)> = Vec::new();
        for one in &self.neighbors {
            if !kinds.contains(&(one.kind, one.so)) {
                kinds.push((one.kind, one.so));
            }
        }
        let legend = kinds.iter().map(|(kind, so)| format!("{}: {so}", kind_title(kind)));
        for text in legend.chain(self.unlisted.iter().cloned()) {
            let lines = pipeline::explain::table::wrap_text(&text, columns.saturating_sub(3));
            for (number, line) in lines.iter().enumerate() {
                let _ = writeln!(out, "{}{line}", if number == 0 { " " } else { "   " });
            }
        }
        out
    }
}

impl NeighborFinding {
    fn new(one: &Neighbor) -> Self {
        let (kind, side, how, so) = kind_columns(&one.kind);
        let holder = |one: &HolderProcess| HolderFinding {
            process: one.process,
            uid: one.uid,
            command: one.command.clone(),
        };
        Self {
            interface: one.interface.clone(),
            kind,
            side,
            how,
            program: one.program.as_ref().map(|program| program.id),
            name: one.program.as_ref().map(|program| program.name.clone()),
            uid: one.uid,
            holders: one.holders.iter().map(holder).collect(),
            so,
        }
    }

    /// Returns the kind and direction of the program or socket, and the property in `how`, such as
    /// `TCX received, link 7`.
    fn format_kind(&self) -> String {
        let side = self.side.map_or_else(String::new, |side| format!(" {side}"));
        let how = if self.how.is_empty() { String::new() } else { format!(", {}", self.how) };
        format!("{}{side}{how}", kind_title(self.kind))
    }

    /// Returns the program's name and id, such as `filter (61)`.
    fn name_and_id(&self) -> String {
        match (self.name.as_deref(), self.program) {
            (None | Some(""), None) => "–".to_owned(),
            (None | Some(""), Some(id)) => format!("({id})"),
            (Some(name), None) => name.to_owned(),
            (Some(name), Some(id)) => format!("{name} ({id})"),
        }
    }

    /// Returns the processes that hold the program or socket open, such as `tcpdump[4711] of user
    /// 0`, or, if none is known, the user and a remark. `hidden` is the number of processes whose
    /// descriptors could not be read.
    fn format_holders(&self, hidden: usize) -> String {
        let holder =
            |one: &HolderFinding| format!("{}[{}] of user {}", one.command, one.process, one.uid);
        if !self.holders.is_empty() {
            return Vec::from_iter(self.holders.iter().map(holder)).join(", ");
        }
        let of = self.uid.map_or_else(String::new, |uid| format!("user {uid}, "));
        match hidden {
            0 if self.kind == "tc" => {
                format!("{of}no process: traffic control keeps it until it is removed")
            }
            0 if self.program.is_some() => {
                format!("{of}no process: it was attached by netlink, or is pinned")
            }
            0 => format!("{of}no visible process"),
            1 => format!("{of}perhaps 1 process that you may not inspect"),
            hidden => format!("{of}perhaps one of {hidden} processes that you may not inspect"),
        }
    }
}

fn kind_title(kind: &str) -> &str {
    match kind {
        "xdp" => "XDP",
        "tcx" => "TCX",
        "tc" => "TC",
        other => other,
    }
}

/// Returns the values of `kind`, `side`, `how` and `so` ([`NeighborFinding`]) for a neighbor.
fn kind_columns(kind: &NeighborKind) -> (&'static str, Option<&'static str>, String, &'static str) {
    let side = |side: &TrafficDirection| match side {
        TrafficDirection::Ingress => Some("received"),
        TrafficDirection::Egress => Some("sent"),
    };
    match kind {
        NeighborKind::Xdp(mode) => {
            let mode = match mode {
                Some(XdpMode::Native) => "in the driver",
                Some(XdpMode::Generic) => "generic",
                Some(XdpMode::Device) => "in the device",
                None => "several modes",
            };
            let so = "receives frames first: no request sees the frames that it drops or \
                      redirects; it occupies XDP, so `take` of a whole interface is refused";
            ("xdp", Some("received"), mode.to_owned(), so)
        }
        NeighborKind::PacketSocket { protocol, cooked } => {
            let protocol = match protocol {
                3 => "all protocols".to_owned(),
                0 => "asleep".to_owned(),
                other => format!("protocol 0x{other:04x}"),
            };
            let cooked = if *cooked { ", without link headers" } else { "" };
            let so = "gets copies before any TC program runs; it disturbs nothing";
            ("packet socket", None, format!("{protocol}{cooked}"), so)
        }
        NeighborKind::Tcx(way, link) => {
            let how = link.map_or_else(|| "no link".to_owned(), |link| format!("link {link}"));
            let so = "stays in the chain: requests that observe run before it and pass every frame \
                      on";
            ("tcx", side(way), how, so)
        }
        NeighborKind::Tc(way, classifier, preference) => {
            let so = "stays: filters of traffic control run after all programs of TCX";
            ("tc", side(way), format!("{classifier}, priority {preference}"), so)
        }
    }
}
