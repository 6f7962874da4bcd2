//! The words of the commands that speak to the daemon.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use sys::steps::InjectedFault;

/// Commands on paths of several users.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a line in the background, registered with the daemon
    #[command(after_help = pipeline::explain::options())]
    Start(StartArguments),
    /// Let a path end: its sources end, and what is under way drains
    Stop(StopArguments),
    /// List the paths that run
    Ps(PsArguments),
    /// List the threads, processes and programs in which paths run, and what each has
    Spaces(SpacesArguments),
    /// Change a path while it runs: insert, remove, replace, move, pin
    Set(SetArguments),
    /// Look at what leaves a node of a running path, from now on or from the past
    Tap(TapArguments),
    /// Follow a path until it ends; ^C lets it go on
    Attach(AttachArguments),
    /// Watch a path, or all: rates, fill, what is lost and why, time per block
    Top(TopArguments),
    /// List the filters that show what they know (`state=NAME`), or look at one
    State(StateArguments),
    /// Keep the register of paths for this machine, or for one user
    Daemon(DaemonArguments),
}

/// Words of `daemon`.
#[derive(Args, Debug)]
pub(crate) struct DaemonArguments {
    /// For this user alone, in $XDG_RUNTIME_DIR/streamline, or /run/user or ~/.local/state
    #[arg(long)]
    pub(crate) user: bool,
    /// In this folder instead of /run/streamline; clients find it by STREAMLINE_DAEMON
    #[arg(long, value_name = "FOLDER")]
    pub(crate) socket: Option<PathBuf>,
    /// Policy file instead of /etc/streamline/policy.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    /// A step that fails, or before which the process stops, for tests
    #[arg(long, hide = true, value_name = "fail=N|stop=N|stop=STEP")]
    pub(crate) fault: Option<InjectedFault>,
}

/// Words of `state`.
#[derive(Args, Debug)]
pub(crate) struct StateArguments {
    /// A name of yours, or UID/NAME; without it, all are listed
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// In a form for programs
    #[arg(long)]
    pub(crate) json: bool,
    /// Look again each second and tell what changed, until it ends
    #[arg(short, long, requires = "name")]
    pub(crate) follow: bool,
}

/// Words of `start`.
#[derive(Args, Debug)]
pub(crate) struct StartArguments {
    /// A step that fails, or before which the process stops, for tests
    #[arg(long, hide = true, value_name = "fail=N|stop=N|stop=STEP")]
    pub(crate) fault: Option<InjectedFault>,
    /// Keep what it prints in this file; without, in the folder for what is left behind
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Stop after this time (10us, 250ms, 2s, 5m)
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// Stop when the sinks have taken this many blocks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Remember so much of what each source gave (64M), for taps that begin in the past
    #[arg(long, value_name = "SIZE")]
    pub(crate) history: Option<String>,
    /// A name for the path, if you like, and the line in single quotes
    #[arg(value_name = "[NAME] LINE", required = true)]
    pub(crate) words: Vec<String>,
}

/// Words of `stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArguments {
    /// Do not wait until it has ended
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// End its process at once, without draining: where nothing else helps
    #[arg(long, conflicts_with = "no_wait")]
    pub(crate) kill: bool,
    /// Names or numbers of paths
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<String>,
}

/// Words of `ps`.
#[derive(Args, Debug)]
pub(crate) struct PsArguments {
    /// As one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
}

/// Words of `spaces`.
#[derive(Args, Debug)]
pub(crate) struct SpacesArguments {
    /// As one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
    /// The name or number of a path; without, all that are yours, and the kernel
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
}

/// Words of `attach`.
#[derive(Args, Debug)]
pub(crate) struct AttachArguments {
    /// The name or number of a path
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

/// Words of `set`.
#[derive(Args, Debug)]
pub(crate) struct SetArguments {
    /// The name or number of a path
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    /// insert 'FILTER' before|after|at NODE, remove NODE, replace NODE with 'FILTER',
    /// move NODE kernel|process|sandbox|SPACE, upgrade NODE, or pin SPACE PROCESSOR|any; of a path
    /// that is recorded the record tells changes, too
    #[arg(value_name = "CHANGE", required = true, trailing_var_arg = true)]
    pub(crate) words: Vec<String>,
}

/// Words of `tap`.
#[derive(Args, Debug)]
pub(crate) struct TapArguments {
    /// From where on: -5s, block:100, or oldest; as far as the path remembers (--history)
    #[arg(long, value_name = "WHERE", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// End where something would be skipped, because this line is too slow
    #[arg(long)]
    pub(crate) all: bool,
    /// End when this line takes nothing for so long (10s)
    #[arg(long, value_name = "TIME", value_parser = pipeline::explain::time)]
    pub(crate) patience: Option<u64>,
    /// The name or number of a path, and one of its nodes; without, its source
    #[arg(value_name = "PATH[:NODE]")]
    pub(crate) path: String,
    /// The line to run here over the frames, in single quotes: 'dns | print'
    #[arg(value_name = "LINE", required = true)]
    pub(crate) words: Vec<String>,
}

/// Words of `top`.
#[derive(Args, Debug)]
pub(crate) struct TopArguments {
    /// Print one picture and end
    #[arg(long)]
    pub(crate) once: bool,
    /// One JSON object for each picture; with --once one
    #[arg(short, long)]
    pub(crate) json: bool,
    /// The time between two pictures (250ms, 2s)
    #[arg(long, value_name = "TIME", value_parser = pipeline::explain::time, default_value = "1s")]
    pub(crate) every: u64,
    /// The name or number of a path; without, all that are yours
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
}
