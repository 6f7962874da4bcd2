//! Arguments of the commands on registered paths.

use super::monitor::MonitorArguments;
use clap::{Args, Subcommand};
use daemon::log::LogForm;
use std::path::PathBuf;
use streamline::metrics::MetricsTarget;
use sys::rollback::InjectedFault;

/// Commands on registered paths.
#[derive(Subcommand, Debug)]
pub(crate) enum PathCommand {
    /// Run a request in the background, registered with the daemon
    #[command(after_help = pipeline::explain::format_options())]
    Start(StartArguments),
    /// Stop paths: their sources end, and blocks already read are still processed
    Stop(StopArguments),
    /// List the running paths
    Ps(PsArguments),
    /// List the threads, processes and kernel programs in which paths run, with their usage
    Spaces(SpacesArguments),
    /// Change a running path: add, remove, replace, move, join or pin filters, set arguments
    Set(SetArguments),
    /// Run a request over the output of a node of a running path, live or from the past
    Tap(TapArguments),
    /// Follow a path until it ends; ^C detaches and leaves it running
    Attach(AttachArguments),
    /// Monitor paths: rates, ring fill levels, losses with reasons, time per block
    Top(TopArguments),
    /// List the published states of filters (`state=NAME`), or print one
    State(StateArguments),
    /// Run the daemon: the registry of paths for this machine, or for one user
    Daemon(DaemonArguments),
}

/// Arguments of `daemon`.
#[derive(Args, Debug)]
pub(crate) struct DaemonArguments {
    /// Serve this user only, in $XDG_RUNTIME_DIR/streamline, or below /run/user or ~/.local/state
    #[arg(long)]
    pub(crate) user: bool,
    /// Use this folder instead of /run/streamline; clients find it by STREAMLINE_DAEMON
    #[arg(long, value_name = "FOLDER")]
    pub(crate) socket: Option<PathBuf>,
    /// Use this policy file instead of /etc/streamline/policy.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// Serve metrics of all paths for Prometheus at [ADDRESS]:PORT or unix:PATH; may be repeated
    #[arg(long, value_name = "[ADDRESS]:PORT|unix:PATH", value_parser = parse_server_target)]
    pub(crate) metrics: Vec<MetricsTarget>,
    /// Log events as text or json on standard error, or to the journal; default: the journal under
    /// systemd, else text
    #[arg(long, value_name = "text|json|journal[:SOCKET]")]
    pub(crate) log: Option<LogForm>,
    /// Show the running paths in this directory, such as /pipes, to all users of the machine
    #[arg(long, value_name = "DIR")]
    pub(crate) mount: Option<PathBuf>,
    /// Serve the live page (streamline-page) at this loopback address or Unix socket; default:
    /// 127.0.0.1:7575. A daemon of root serves all users, each with a process of this user;
    /// `streamline page` prints a user's URL
    #[arg(long, value_name = "ADDR|unix:PATH", num_args = 0..=1,
        default_missing_value = "127.0.0.1:7575")]
    pub(crate) page: Option<String>,
    /// Step of the start at which to fail or to stop the process, for tests
    #[arg(long, hide = true, value_name = "fail=N|stop=N|stop=STEP")]
    pub(crate) fault: Option<InjectedFault>,
}

/// Parses the address of a metrics server. Fails with the reason if the text is invalid or names a
/// file.
fn parse_server_target(text: &str) -> Result<MetricsTarget, String> {
    match text.parse()? {
        MetricsTarget::File(_) => Err("write [ADDRESS]:PORT or unix:PATH; files are written by \
                                `streamline run --metrics=FILE`"
            .to_owned()),
        server => Ok(server),
    }
}

/// Arguments of `state`.
#[derive(Args, Debug)]
pub(crate) struct StateArguments {
    /// The name of a state of yours, or UID/NAME; default: list all
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Reread the state every second and print changes, until it ends
    #[arg(short, long, requires = "name")]
    pub(crate) follow: bool,
}

/// Arguments of `start`.
#[derive(Args, Debug)]
pub(crate) struct StartArguments {
    /// Step of the start at which to fail or to stop the process, for tests
    #[arg(long, hide = true, value_name = "fail=N|stop=N|stop=STEP")]
    pub(crate) fault: Option<InjectedFault>,
    /// Register with the daemon under this name, like NAME before the request
    #[arg(id = "path_name", long = "as", value_name = "NAME")]
    pub(crate) path_name: Option<String>,
    /// Write the output of the path to this log file; default: a file in the user's state directory
    #[arg(long, value_name = "FILE", value_parser = super::value_parsers::parse_file_name)]
    pub(crate) log: Option<PathBuf>,
    /// Stop after this time (10us, 250ms, 2s, 5m)
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Stop when the sinks have received this many blocks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Retain this much output of each source (such as 64M), for taps that start in the past
    #[arg(long, value_name = "SIZE")]
    pub(crate) history: Option<String>,
    /// Metrics and alarms.
    #[command(flatten)]
    pub(crate) monitor: MonitorArguments,
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
    /// A name for the path (optional), and the request in single quotes
    #[arg(value_name = "[NAME] REQUEST", required = true)]
    pub(crate) words: Vec<String>,
}

/// Arguments of `stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArguments {
    /// Do not wait until the paths have ended
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Kill the process and its programs at once, without draining, as a last resort
    #[arg(long, conflicts_with = "no_wait")]
    pub(crate) kill: bool,
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Names or numbers of paths
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<String>,
}

/// Arguments of `ps`.
#[derive(Args, Debug)]
pub(crate) struct PsArguments {
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Arguments of `spaces`.
#[derive(Args, Debug)]
pub(crate) struct SpacesArguments {
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
    /// The name or number of a path; default: all your paths, and the kernel
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
}

/// Arguments of `attach`.
#[derive(Args, Debug)]
pub(crate) struct AttachArguments {
    /// The name or number of a path
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

/// Arguments of `set`.
#[derive(Args, Debug)]
pub(crate) struct SetArguments {
    /// Print one JSON object; must precede the path
    #[arg(short, long)]
    pub(crate) json: bool,
    /// The name or number of a path
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    /// insert 'FILTER' before|after|at NODE, remove NODE, replace NODE with 'FILTER', move
    /// NODE kernel|process|sandbox|SPACE, upgrade NODE, arg NODE NAME=VALUE, or pin SPACE
    /// PROCESSOR|any; for the graph: add 'FILTER' below NODE[/CLASS], add 'SOURCE |
    /// FILTER', remove NODE leaf|all, move NODE [from NODE[/CLASS]] below NODE[/CLASS],
    /// move NODE into PATH below NODE[/CLASS], join NODE below NODE[/CLASS], sever NODE
    /// from NODE[/CLASS]; with `,` as a word between them, several are one change: all or none;
    /// changes of a recorded path are recorded, too
    #[arg(value_name = "CHANGE", required = true, trailing_var_arg = true)]
    pub(crate) words: Vec<String>,
}

/// Arguments of `tap`.
#[derive(Args, Debug)]
pub(crate) struct TapArguments {
    /// Start at -5s, block:100 or oldest, within the output that the path retains (--history)
    #[arg(long, value_name = "WHERE", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// End the tap instead of skipping blocks if this request is too slow
    #[arg(long)]
    pub(crate) all: bool,
    /// End the tap if this request has read nothing for this time (default 10s)
    #[arg(long, value_name = "TIME", value_parser = pipeline::explain::parse_time)]
    pub(crate) patience: Option<u64>,
    /// Stop after this time (10us, 250ms, 2s, 5m)
    #[arg(long = "for", value_name = "TIME", value_parser = pipeline::explain::parse_time)]
    pub(crate) time: Option<u64>,
    /// Stop when the sinks of the request have received this many blocks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// The name or number of a path, and one of its nodes; default: its source
    #[arg(value_name = "PATH[:NODE]")]
    pub(crate) path: String,
    /// The request to run over the frames, in single quotes: 'dns | print'
    #[arg(value_name = "REQUEST", required = true)]
    pub(crate) words: Vec<String>,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopArguments {
    /// Print a single screen and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object per update; with --once a single one
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Interval between two updates (250ms, 2s)
    #[arg(
        long,
        value_name = "TIME",
        value_parser = pipeline::explain::parse_time,
        default_value = "1s"
    )]
    pub(crate) every: u64,
    /// The name or number of a path; default: all your paths
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
}
