//! Arguments of `sh` and `exec`, which run other programs with shared rings in place of pipes and
//! sockets.

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `sh`.
#[derive(Args, Debug)]
pub(crate) struct ShellArguments {
    /// The command, as for sh -c
    #[arg(short, value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Report for each edge whether it is a ring or a kernel pipe, and why; at the end, how much it
    /// moved
    #[arg(short, long, visible_alias = "explain")]
    pub(crate) verbose: bool,
    /// Use kernel pipes between all programs, which then share no memory
    #[arg(long)]
    pub(crate) isolate: bool,
    /// Pass files by pointer through cat, dd, tee and head: the reader sees the contents that the
    /// file has when it reads
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Exit with the status of the last program that failed, if any
    #[arg(long)]
    pub(crate) pipefail: bool,
    /// A script, if no command is given
    #[arg(value_name = "SCRIPT")]
    pub(crate) script: Option<PathBuf>,
    /// The positional parameters $1, $2…
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub(crate) words: Vec<OsString>,
}

/// A part of a program's I/O that a preloaded library takes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PreloadPart {
    /// Live captures with libpcap. The program reads them from shared rings.
    Pcap,
    /// Pipes. They become streams over shared memory.
    Pipes,
    /// UDP sockets. They receive from rings.
    Udp,
}

/// The name of a part, with the facts that `--help`, `explain exec` and the book contain.
struct PartDescription {
    name: &'static str,
    purpose: &'static str,
    is_default: bool,
    /// The measured effect of the part, which justifies the default.
    figure: &'static str,
}

impl PreloadPart {
    const fn description(self) -> &'static PartDescription {
        match self {
            Self::Pcap => &PartDescription {
                name: "pcap",
                purpose: "live captures, if the program is linked against libpcap, are read from \
                          the rings that all captures of an interface share",
                is_default: true,
                figure: "ten tcpdumps beside a daemon take 2.45 times less processor time, one \
                         0.77 of it",
            },
            Self::Pipes => &PartDescription {
                name: "pipes",
                purpose: "pipes to other programs become rings",
                is_default: true,
                figure: "a pipe that moves less than 64 KB stays a pipe and costs what it did",
            },
            Self::Udp => &PartDescription {
                name: "udp",
                purpose: "UDP sockets that receive 20,000 datagrams a second or more receive them \
                          from a ring",
                is_default: false,
                figure: "at full rate named takes 1.06 to 1.13 times less processor time for a \
                         query, knotd 0.94 to 1.07; at 5,000 a second both keep their sockets",
            },
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        self.description().name
    }

    pub(crate) const fn purpose(self) -> &'static str {
        self.description().purpose
    }

    /// Returns true if `exec` takes over the part by default.
    pub(crate) const fn is_default(self) -> bool {
        self.description().is_default
    }

    pub(crate) const fn measured_effect(self) -> &'static str {
        self.description().figure
    }
}

impl ValueEnum for PreloadPart {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Pcap, Self::Pipes, Self::Udp]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let purpose = self.purpose();
        let (first, rest) = purpose.split_at(1);
        Some(PossibleValue::new(self.name()).help(first.to_uppercase() + rest))
    }
}

/// Returns the help text of `--with`.
fn parts_help() -> String {
    let all = PreloadPart::value_variants().iter().filter(|part| part.is_default());
    let names: Vec<&str> = all.map(|part| part.name()).collect();
    let names = names.join(" and ");
    format!("Parts to take over, also in programs that it starts; by default {names}")
}

/// Arguments of `exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArguments {
    /// The parts to take over.
    #[arg(long, value_delimiter = ',', value_name = "PARTS", help = parts_help())]
    pub(crate) with: Vec<PreloadPart>,
    /// Let the program copy lazily: a write sends the contents that the file has at that time
    #[arg(long)]
    pub(crate) lazy: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    pub(crate) words: Vec<OsString>,
}
