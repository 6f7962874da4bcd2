//! Definitions of the command-line arguments, from which the help, the completion scripts and the
//! manual are generated.
//!
//! A request may be one quoted argument or several arguments, and options may precede or follow the
//! request: see [`crate::arranged`].

pub(crate) mod examples;
pub(crate) mod explain;
pub(crate) mod monitor;
pub(crate) mod mount;
pub(crate) mod paths;
pub(crate) mod progress;
pub(crate) mod separate_program;
pub(crate) mod shell;
pub(crate) mod value_parsers;
mod version;

use self::examples::ExamplesArguments;
use self::explain::{DrawingArguments, ExplainArguments};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use engine::kernel::InjectedRefusal;
use monitor::MonitorArguments;
use progress::ProgressMode;
use separate_program::SeparateProgramArguments;
use shell::{ExecArguments, ShellArguments};
use std::path::PathBuf;
use sys::rollback::{InjectedFault, RollbackLog};

/// Introduction to the program for first-time users.
pub(crate) const ABOUT_TEXT: &str =
    "Streamline runs pipelines of filters over packets, files or streams, each where it runs best.";

/// Examples for first-time users, each with its purpose.
pub(crate) const FIRST_EXAMPLES: &[(&str, &str)] = &[
    ("streamline examples --write .", "write web.pcap, which these requests read, here"),
    (r#"streamline 'replay web.pcap | bpf "tcp port 80" | print'"#, "print packets of a port"),
    ("streamline 'replay web.pcap | dport |53 count'", "count the packets to one port"),
    (
        "streamline 'replay web.pcap | udp | pcap udp.pcap' --stats",
        "write a capture, and report all counters",
    ),
    (r#"sudo streamline 'rx eth0 | bpf "udp port 53" | udp | dns | print'"#, "print DNS queries"),
    ("streamline doctor", "report what works on this machine"),
    (
        "streamline explain 'replay web.pcap | dport |80 count'",
        "show where filters would run, and why",
    ),
    ("streamline filters dport", "describe a filter"),
    ("streamline examples", "print more requests to try"),
];

/// Description of the exit statuses.
pub(crate) const EXIT_STATUS_HELP: &str = "0 done, 1 failed, 2 mistakes in the command or the \
     request, 3 not found, 4 an alarm was raised, 141 standard output closed. The first ^C drains \
     the run, which then exits as usual; a second ^C ends it at once with status 130.";

/// Column at which the purpose of an example starts.
const PURPOSE_COLUMN: usize = 63;

/// Builds the help template of the command.
fn help_template() -> String {
    let mut text = format!("{ABOUT_TEXT}\n\nExamples:\n");
    for (command, what) in FIRST_EXAMPLES {
        text.push_str(&pipeline::explain::format_hanging_indent(
            &format!("  {command}"),
            what,
            PURPOSE_COLUMN,
        ));
    }
    text.push_str("\n{usage-heading} {usage}\n       streamline 'REQUEST'\n\n{all-args}\n\n");
    text.push_str(&pipeline::explain::format_hanging_indent("Exit status:", EXIT_STATUS_HELP, 13));
    text
}

/// All arguments.
#[derive(Parser, Debug)]
#[command(name = "streamline", version, long_version = version::version_details())]
#[command(help_template = help_template(), disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a request (short form: streamline 'REQUEST')
    #[command(after_help = pipeline::explain::format_options())]
    Run(Box<RunArguments>),
    /// Trace a flow, node by node, through a recorded run or through a request over a capture
    ///
    /// For example: streamline why 'tcp 10.0.0.1:1234 10.0.0.2:80' run.pcapng
    Why(WhyArguments),
    /// Read blocks from a named output of a running path (`user`, `socket`), or write blocks to a
    /// `buffer`
    ///
    /// For example: streamline cat rxport_53, or: printf hello | streamline cat --write txport_53
    Cat(CatArguments),
    /// Commands on registered paths.
    #[command(flatten)]
    Shared(paths::PathCommand),
    /// Show the running paths as a file system: each filter a directory, its output a file
    ///
    /// For example: streamline mount ~/pipes; cat ~/pipes/README
    Mount(mount::MountArguments),
    /// Report all mistakes in a request
    #[command(after_help = pipeline::explain::format_options())]
    Check(CheckArguments),
    /// Show where each filter of a request would run, and why
    ///
    /// With `exec CMD…` instead of a request, shows what `streamline exec` would do for a program:
    /// which parts are on by default and why, and whether libraries can be preloaded.
    #[command(after_help = pipeline::explain::format_options())]
    Explain(ExplainArguments),
    /// List all filters, or describe one
    Filters(FiltersArguments),
    /// Report what works on this machine, with remedies for what does not
    Doctor(DoctorArguments),
    /// List the JSON schemas of all outputs of `--json`, or print one
    Schema {
        /// The schema: a command, or one of the listed names
        name: Option<String>,
    },
    /// Print example requests, or write them into a folder with the capture that they read
    ///
    /// To begin with: streamline examples --write examples
    Examples(ExamplesArguments),
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
    /// Print the possible continuations of a request, for completion scripts
    #[command(hide = true)]
    Complete {
        /// The request typed so far
        #[arg(long, allow_hyphen_values = true, conflicts_with = "words")]
        line: Option<String>,
        /// A command on paths, and its arguments before the one being typed
        words: Vec<String>,
    },
    /// Run a shell pipeline of ordinary programs, with streams in place of pipes
    ///
    /// A command that is not a plain pipeline is run unchanged by /bin/sh.
    Sh(ShellArguments),
    /// Run an ordinary program with its pipes and live captures on shared buffers
    ///
    /// Libraries are preloaded into the program, which is not changed. A program that is linked
    /// against libpcap, such as tcpdump, reads its live captures from the ring that all captures of
    /// an interface share; the environment variable STREAMLINE_PCAP is a list of `report` (print
    /// what came through the ring), `quiet` and `off`.
    Exec(ExecArguments),
    /// Show the running paths in a browser (streamline-page)
    #[command(disable_help_flag = true)]
    Page(SeparateProgramArguments),
    /// Run the benchmarks of the project (streamline-bench), which come with the source alone
    ///
    /// No package has them: `cargo xtask install --bench` in the source tree puts them in place.
    #[command(disable_help_flag = true)]
    Bench(SeparateProgramArguments),
}

/// Arguments of `cat`.
#[derive(Args, Debug)]
pub(crate) struct CatArguments {
    /// The name: NAME, or UID/NAME of another user
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Write standard input to a `buffer`, with the bytes of each read as one block
    #[arg(short, long)]
    pub(crate) write: bool,
    /// Write each line, with its end, as one block
    #[arg(long, requires = "write")]
    pub(crate) lines: bool,
    /// Write each packet of a capture on standard input as one block
    #[arg(long, requires = "write", conflicts_with = "lines")]
    pub(crate) pcap: bool,
    /// Read this many blocks, then end; a block that is longer than half of the ring arrives in
    /// parts, each of which counts
    #[arg(short, long, value_name = "N", conflicts_with = "write")]
    pub(crate) count: Option<u64>,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
pub(crate) struct ManArguments {
    /// Write all pages into man1 and man7 in this folder, instead of one to standard output
    #[arg(long, value_name = "FOLDER", conflicts_with = "page")]
    pub(crate) into: Option<PathBuf>,
    /// The page: a command, or `filters` for all filters, sources and sinks
    #[arg(value_name = "PAGE")]
    pub(crate) page: Option<String>,
}

/// A request, as arguments or in a file.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RequestArguments {
    /// Read the request from a file (- is standard input)
    #[arg(short, long, value_name = "FILE", conflicts_with = "words")]
    pub(crate) file: Option<PathBuf>,
    /// The request, preferably in single quotes
    #[arg(value_name = "REQUEST")]
    pub(crate) words: Vec<String>,
}

/// Arguments of `run`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RunArguments {
    /// The request.
    #[command(flatten)]
    pub(crate) line: RequestArguments,
    /// Stop after this time (10us, 250ms, 2s, 5m)
    #[arg(long = "for", value_name = "TIME", value_parser = pipeline::explain::parse_time)]
    pub(crate) time: Option<u64>,
    /// Stop when the sinks have received this many blocks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Exit with status 1 if any block was lost
    #[arg(long)]
    pub(crate) no_loss: bool,
    /// Report all block counters, and the time spent in each filter
    #[arg(short, long)]
    pub(crate) stats: bool,
    /// Report as one JSON object, and print the reports of filters as JSON
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Write the report into a file instead of standard error (- is standard output)
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print only errors and warnings
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Show the graph of the plan, with its rates, while the request runs
    #[arg(long, conflicts_with_all = ["progress", "quiet"])]
    pub(crate) view: bool,
    /// Show progress: yes, no, or an interval (2, 500ms); default: every second on a terminal
    #[arg(long, value_name = "yes|no|TIME", value_parser = progress::parse_progress_mode)]
    pub(crate) progress: Option<ProgressMode>,
    /// Metrics and alarms.
    #[command(flatten)]
    pub(crate) monitor: MonitorArguments,
    /// Record all input and all changes of the path in a new file, from which the run can be
    /// replayed bit for bit
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    #[arg(value_parser = value_parsers::parse_file_name)]
    pub(crate) record: Option<PathBuf>,
    /// Size limit of the record (default 1 GiB); input beyond it is only counted
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = pipeline::explain::parse_size,
        requires = "record"
    )]
    pub(crate) record_bytes: Option<u64>,
    /// Retain this much output of each source (such as 64M), for taps that start in the past
    #[arg(long, value_name = "SIZE", value_parser = pipeline::explain::parse_size)]
    pub(crate) history: Option<u64>,
    /// Replay a recorded run; its output files go into a new folder beside the record
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["file", "words", "count", "time"])]
    pub(crate) replay: Option<PathBuf>,
    /// Folder for the output files of a replay
    #[arg(long, value_name = "FOLDER", requires = "replay")]
    pub(crate) into: Option<PathBuf>,
    /// Report measurements beside the planner's estimates, and save them for later plans
    #[arg(skip)]
    pub(crate) analyze: bool,
    /// Drawings of the plan with the figures of the run
    #[arg(skip)]
    pub(crate) drawings: DrawingArguments,
    /// Run without the daemon: not registered, and only with the rights of this user
    #[arg(long, conflicts_with_all = ["path_name", "background"])]
    pub(crate) embedded: bool,
    /// Register with the daemon under this name
    #[arg(id = "path_name", long = "as", value_name = "NAME")]
    pub(crate) path_name: Option<String>,
    /// Run for `streamline start`, which waits at the other end of standard input, a socket
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// Run the shared prefix of other requests, the first of which waits at the other end of
    /// standard input, a socket
    #[arg(long, hide = true)]
    pub(crate) serves_prefix: bool,
    /// Log file to report to other clients as the output of this path
    #[arg(long, hide = true, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Kernel refusal to simulate, for tests: loading, attaching, or the name of a filter
    #[arg(long, hide = true, default_value = "nothing")]
    #[arg(value_parser = value_parsers::parse_injected_refusal)]
    pub(crate) kernel_refuses: InjectedRefusal,
    /// Step of the start at which to fail or to stop the process, for tests
    #[arg(long, hide = true, value_name = "fail=N|stop=N|stop=STEP")]
    pub(crate) fault: Option<InjectedFault>,
}

impl RunArguments {
    /// Creates the rollback log of the start, with the fault to inject if `--fault` is given.
    pub(crate) fn rollback_log(&self) -> RollbackLog {
        RollbackLog::with_fault(self.fault.clone().unwrap_or_default())
    }

    /// Returns true if an option requires that the run measures the time spent in filters.
    pub(crate) const fn is_timed(&self) -> bool {
        self.stats
            || self.json
            || self.view
            || self.report.is_some()
            || !self.monitor.metrics.is_empty()
    }
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArguments {
    /// The request.
    #[command(flatten)]
    pub(crate) line: RequestArguments,
    /// Check the grammar only, not the names and arguments of filters
    #[arg(long)]
    pub(crate) syntax: bool,
    /// Print a correct request in its canonical form
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print one JSON object with all mistakes and their positions
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Arguments of `why`.
#[derive(Args, Debug)]
pub(crate) struct WhyArguments {
    /// The flow: `tcp ADDRESS:PORT ADDRESS:PORT`, `udp …`, or any pcap-filter(7) expression
    #[arg(value_name = "FLOW")]
    pub(crate) flow: String,
    /// A record (`run --record`), or a capture and a request
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The request to run over the packets of the capture; default: the request of the record
    #[arg(value_name = "REQUEST")]
    pub(crate) words: Vec<String>,
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Arguments of `filters`.
#[derive(Args, Debug)]
pub(crate) struct FiltersArguments {
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
    /// A filter, source or sink; default: list all
    pub(crate) name: Option<String>,
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArguments {
    /// Print one JSON object
    #[arg(short, long, global = true)]
    pub(crate) json: bool,
    /// Measure the costs of filters, copies, rings and wakeups, and save them for the planner
    #[arg(long)]
    pub(crate) calibrate: bool,
    /// Report on this subject only
    #[command(subcommand)]
    pub(crate) about: Option<DoctorSubject>,
}

/// The subjects of `doctor`.
#[derive(Subcommand, Debug)]
pub(crate) enum DoctorSubject {
    /// Capturing packets; the exit status is 0 or 1
    Rx,
    /// Sending packets; the exit status is 0 or 1
    Tx,
    /// Loading programs into the kernel; the exit status is 0 or 1
    Kernel,
    /// Print a systemd unit that runs a request with the right to capture and no other right
    Unit(RequestArguments),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_definition_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
