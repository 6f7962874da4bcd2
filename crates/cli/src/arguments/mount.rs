//! Arguments of `mount`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub(crate) struct MountArguments {
    /// Serve in the foreground, until ^C or an unmount
    #[arg(long, conflicts_with = "command")]
    pub(crate) foreground: bool,
    /// Give all users of the machine access, each to their own paths; for root
    #[arg(long)]
    pub(crate) all_users: bool,
    /// The paths of other users that a listing contains: nothing, those with names, or all
    #[arg(long, value_name = "WHICH", default_value = "names")]
    #[arg(value_parser = ["nothing", "names", "all"])]
    pub(crate) others: String,
    /// Show the paths of the daemon whose socket is in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) socket: Option<PathBuf>,
    /// exec: mkdir and mv may make filters that open files or run programs (exec, files, pcap,
    /// read, replay and the like). Other changes of the tree need no option: mkdir DIR/…/FILTER
    /// makes a filter, mv moves it, ln -s gives it a further parent, rmdir and rm -r remove it
    #[arg(short = 'o', value_name = "OPTION", value_parser = ["exec"])]
    pub(crate) options: Vec<String>,
    /// Serve in the background, and report the mount on standard input
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// End when standard input is closed, which the daemon holds open
    #[arg(long, hide = true)]
    pub(crate) of_daemon: bool,
    /// An empty directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Mount only while this command runs, without fusermount3 if need be
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<OsString>,
}
