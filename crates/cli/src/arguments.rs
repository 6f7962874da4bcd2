//! The words of the command, with what each is for: help, completion and manual are made from them.
//!
//! A line may stand in one word in quotes or in several, and options of the command may stand
//! before or behind it: see [`crate::arranged`].

use crate::progress::{self, Wish};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use engine::catalogue::House;
use engine::kernel::Refuses;
use pipeline::explain;
use std::ffi::OsString;
use std::path::PathBuf;
use sys::steps::{InjectedFault, Steps};

/// The introduction for a first-time user.
pub(crate) const ABOUT: &str =
    "Streamline runs one line of filters over packets, files or streams, where each runs best.";

/// Commands to begin with, and what each is for.
pub(crate) const FIRST: &[(&str, &str)] = &[
    ("streamline examples --write .", "write web.pcap, the capture of these lines, here"),
    (r#"streamline 'replay web.pcap | bpf "tcp port 80" | print'"#, "look at some packets"),
    ("streamline 'replay web.pcap | dport |53 count'", "count what goes to one port"),
    (
        "streamline 'replay web.pcap | udp | pcap udp.pcap' --stats",
        "write a capture, and say what became of every block",
    ),
    (
        r#"sudo streamline 'rx eth0 | bpf "udp port 53" | udp | dns | print'"#,
        "look at names that are asked for",
    ),
    ("streamline doctor", "say what works on this machine"),
    ("streamline explain 'replay web.pcap | dport |80 count'", "say what would run where, and why"),
    ("streamline filters dport", "what a filter does"),
    ("streamline examples", "more lines to try"),
];

/// The exit statuses.
pub(crate) const STATUS: &str = "0 done, 1 failed, 2 mistakes in the command or the line, \
     3 nothing there, 141 standard output was closed; after a first ^C the run drains and ends by \
     its ledger, a second ends it with 130.";

/// Columns in front of what an example is for.
const EXAMPLE: usize = 63;

/// The help of the command as a whole.
fn template() -> String {
    let mut text = format!("{ABOUT}\n\nExamples:\n");
    for (command, what) in FIRST {
        text.push_str(&explain::hanging(&format!("  {command}"), what, EXAMPLE));
    }
    text.push_str("\n{usage-heading} {usage}\n       streamline 'LINE'\n\n{all-args}\n\n");
    text.push_str(&explain::hanging("Exit status:", STATUS, 13));
    text
}

/// All words.
#[derive(Parser, Debug)]
#[command(name = "streamline", version, help_template = template(), disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a line (also: streamline 'LINE')
    #[command(after_help = pipeline::explain::options())]
    Run(Box<RunArguments>),
    /// Say what became of a flow in a run that was recorded, or of a line over a capture
    ///
    /// For example: streamline why 'tcp 10.0.0.1:1234 10.0.0.2:80' run.pcapng
    Why(WhyArguments),
    /// Paths of several users.
    #[command(flatten)]
    Shared(crate::shared::words::Command),
    /// Say what is wrong with a line
    #[command(after_help = pipeline::explain::options())]
    Check(CheckArguments),
    /// Say what would run where, and why not elsewhere
    #[command(after_help = pipeline::explain::options())]
    Explain(ExplainArguments),
    /// List all filters, or tell everything about one
    Filters(FiltersArguments),
    /// Say what works on this machine, and what to do where it does not
    Doctor(DoctorArguments),
    /// Print lines to try, or write them with the capture that they and the book read
    ///
    /// To begin with: streamline examples --write examples
    Examples {
        /// Write web.pcap and all lines into this folder, which is made if it is not there
        #[arg(long, value_name = "DIR")]
        write: Option<PathBuf>,
    },
    /// Write the manual: pages for man(1)
    ///
    /// For yourself: streamline man --into ~/.local/share/man, then: man streamline-run
    Man(ManArguments),
    /// Write a completion script for a shell
    ///
    /// For bash: streamline completion bash > ~/.local/share/bash-completion/completions/streamline
    Completion {
        /// Shell to complete for
        shell: Shell,
    },
    /// Say how a line may go on: what completion scripts ask
    #[command(hide = true)]
    Complete {
        /// The line as far as it is there
        #[arg(long, allow_hyphen_values = true, conflicts_with = "words")]
        line: Option<String>,
        /// A command that speaks to paths, and the words behind it before the one that is typed
        words: Vec<String>,
    },
    /// Run a pipeline of ordinary programs whose pipes become streams
    ///
    /// What is no plain pipeline is run by /bin/sh, unchanged.
    Sh(ShellArguments),
    /// Run a program with the library before it through which it uses buffers
    Exec(ExecArguments),
    /// Measure: every figure of the project (runs streamline-bench)
    #[command(disable_help_flag = true)]
    Bench {
        /// Words for streamline-bench
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

/// Words of `man`.
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// Write every page into this folder, below man1 and man7, instead of one on standard output
    #[arg(long, value_name = "FOLDER", conflicts_with = "page")]
    pub(crate) into: Option<PathBuf>,
    /// The page: a command, or `filters` for all that can stand in a line
    #[arg(value_name = "PAGE")]
    pub(crate) page: Option<String>,
}

/// A line, in words or in a file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LineArguments {
    /// Read the line from a file (- is standard input)
    #[arg(short, long, value_name = "FILE", conflicts_with = "words")]
    pub(crate) file: Option<PathBuf>,
    /// The line, best in single quotes
    #[arg(value_name = "LINE")]
    pub(crate) words: Vec<String>,
}

/// Words of `run`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RunArguments {
    /// The line.
    #[command(flatten)]
    pub(crate) line: LineArguments,
    /// Stop after this time (10us, 250ms, 2s, 5m)
    #[arg(long = "for", value_name = "TIME", value_parser = pipeline::explain::time)]
    pub(crate) time: Option<u64>,
    /// Stop when the sinks have taken this many blocks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// End with status 1 if any block was lost
    #[arg(long)]
    pub(crate) no_loss: bool,
    /// Report what became of every block, and the time in each filter
    #[arg(short, long)]
    pub(crate) stats: bool,
    /// Report as one JSON object, and reports of filters too
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Write the report into a file instead of standard error (- is standard output)
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Say nothing but mistakes and warnings
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Say how far it is: yes, no, or every so many seconds (500ms); without, each second where a
    /// person watches
    #[arg(long, value_name = "yes|no|TIME", value_parser = progress::wish)]
    pub(crate) progress: Option<Wish>,
    /// Write all that comes, and how the path was changed, into a new file, from which the run can
    /// be repeated bit for bit
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    pub(crate) record: Option<PathBuf>,
    /// Limit of a record (64M); what comes after it is counted
    #[arg(long, value_name = "SIZE", value_parser = pipeline::explain::size, requires = "record")]
    pub(crate) record_bytes: Option<u64>,
    /// Remember so much of what each source gave (64M), for taps that begin in the past
    #[arg(long, value_name = "SIZE", value_parser = pipeline::explain::size)]
    pub(crate) history: Option<u64>,
    /// Repeat the run of a record; its files go into a new folder beside it
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["file", "words", "count", "time"])]
    pub(crate) replay: Option<PathBuf>,
    /// Directory for the files of a repeated run
    #[arg(long, value_name = "FOLDER", requires = "replay")]
    pub(crate) into: Option<PathBuf>,
    /// Say what was measured beside what was expected, and learn from it
    #[arg(skip)]
    pub(crate) analyze: bool,
    /// Without the daemon, if there is one: nothing is shared, and it is not told of the path
    #[arg(long, conflicts_with_all = ["path_name", "background"])]
    pub(crate) embedded: bool,
    /// Be known to the daemon by this name
    #[arg(id = "path_name", long = "as", value_name = "NAME")]
    pub(crate) path_name: Option<String>,
    /// Run for `streamline start`, which waits at standard input
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// Log file of the output, as others see it
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Things for the kernel to refuse, for tests: loading, attaching, or the name of a filter
    #[arg(long, hide = true, value_parser = refuses, default_value = "nothing")]
    pub(crate) kernel_refuses: Refuses,
    /// A step of the allocation that fails, or before which the process stops, for tests
    #[arg(long, hide = true, value_name = "fail=N|stop=N|stop=STEP")]
    pub(crate) fault: Option<InjectedFault>,
}

impl RunArguments {
    /// The log of the allocation.
    pub(crate) fn steps(&self) -> Steps {
        Steps::with(self.fault.clone().unwrap_or_default())
    }

    /// Returns true if time is measured in the filters.
    pub(crate) const fn is_timed(&self) -> bool {
        self.stats || self.json || self.report.is_some()
    }
}

/// Parses the things that the kernel is to refuse.
fn refuses(word: &str) -> Result<Refuses, String> {
    match word {
        "nothing" => Ok(Refuses::Nothing),
        "loading" => Ok(Refuses::Loading),
        "attaching" => Ok(Refuses::Attaching),
        name => {
            let filter = House.descriptions().find(|description| description.name == name);
            let filter = filter.ok_or_else(|| format!("no filter is called `{name}`"))?;
            Ok(Refuses::Filter(filter.name))
        }
    }
}

/// Words of `sh`.
#[derive(Args, Debug)]
pub(crate) struct ShellArguments {
    /// The command, as for a shell
    #[arg(short, value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Say which edge is what, and why
    #[arg(short, long, visible_alias = "explain")]
    pub(crate) verbose: bool,
    /// Have the kernel between all programs: only kernel pipes
    #[arg(long)]
    pub(crate) isolate: bool,
    /// Let cat and dd copy lazily: what they write is what the file holds when they write
    #[arg(long)]
    pub(crate) lazy: bool,
    /// End with the status of the last program that failed, not of the last one
    #[arg(long)]
    pub(crate) pipefail: bool,
    /// A script, unless there is a command
    #[arg(value_name = "SCRIPT")]
    pub(crate) script: Option<PathBuf>,
    /// The words of $1, $2…
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
    pub(crate) words: Vec<OsString>,
}

/// Words of `exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArguments {
    /// Let it copy lazily: what it writes is what the file holds when it writes
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

/// Words of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArguments {
    /// The line.
    #[command(flatten)]
    pub(crate) line: LineArguments,
    /// Look at the grammar only, not at what filters there are
    #[arg(long)]
    pub(crate) syntax: bool,
    /// Print the line in its canonical form if it is right
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Words of `why`.
#[derive(Args, Debug)]
pub(crate) struct WhyArguments {
    /// The flow: `tcp ADDRESS:PORT ADDRESS:PORT`, `udp …`, or any pcap-filter(7) expression
    #[arg(value_name = "FLOW")]
    pub(crate) flow: String,
    /// A record (`run --record`), or a capture and a line
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The line to run over the packets of the file; without, the line of the record
    #[arg(value_name = "LINE")]
    pub(crate) words: Vec<String>,
    /// As one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Words of `explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArguments {
    /// The line.
    #[command(flatten)]
    pub(crate) line: LineArguments,
    /// As one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
    /// In the language of graphviz, for dot -Tsvg
    #[arg(long, conflicts_with = "json")]
    pub(crate) dot: bool,
    /// As it would run without the daemon, if there is one
    #[arg(long)]
    pub(crate) embedded: bool,
    /// Run it too, and say what was measured; then everything but data goes to standard error
    #[arg(long, conflicts_with_all = ["json", "dot"])]
    pub(crate) analyze: bool,
    /// Stop the run after this time (10us, 250ms, 2s, 5m)
    #[arg(long = "for", value_name = "TIME", value_parser = pipeline::explain::time)]
    #[arg(requires = "analyze")]
    pub(crate) time: Option<u64>,
    /// Stop the run when the sinks have taken this many blocks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(requires = "analyze")]
    pub(crate) count: Option<u64>,
}

/// Words of `filters`.
#[derive(Args, Debug)]
pub(crate) struct FiltersArguments {
    /// A filter, source or sink
    pub(crate) name: Option<String>,
}

/// Words of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    /// As one JSON object
    #[arg(short, long, global = true)]
    pub(crate) json: bool,
    /// Measure what filters, copies, rings and wake-ups cost here, and keep it for the planner
    #[arg(long)]
    pub(crate) calibrate: bool,
    /// About what alone
    #[command(subcommand)]
    pub(crate) about: Option<About>,
}

/// The subjects of `doctor`.
#[derive(Subcommand, Debug)]
pub(crate) enum About {
    /// Capturing packets: status 0 or 1
    Rx,
    /// Sending packets: status 0 or 1
    Tx,
    /// Loading programs into the kernel: status 0 or 1
    Kernel,
    /// Print a line as a service for systemd that may capture and nothing else
    Unit(LineArguments),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
