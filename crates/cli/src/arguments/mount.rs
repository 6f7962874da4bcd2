//! Arguments of `mount`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub(crate) struct MountArguments {
    /// Serve in the foreground, until ^C or an unmount
    #[arg(long, conflicts_with = "command")]
    pub(crate) foreground: bool,
    /// Show every user of the machine the user's own paths; only root may do this
    #[arg(long)]
    pub(crate) all_users: bool,
    /// Paths of other users that are listed: nothing, those with names, or all
    #[arg(long, value_name = "WHICH", default_value = "names")]
    #[arg(value_parser = ["nothing", "names", "all"])]
    pub(crate) others: String,
    /// Show the paths of the daemon whose socket is in this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) socket: Option<PathBuf>,
    /// exec: mkdir and mv may make filters that open files or run programs (exec, files, pcap,
    /// read, replay and the like). Other changes of the tree need no option: mkdir DIR/…/FILTER
    /// makes a filter, mv moves it, ln -s gives it a further parent, rmdir and rm -r remove it.
    /// edit_limit=SECONDS: a change that takes longer fails (2 seconds unless given)
    #[arg(short = 'o', value_name = "OPTION", value_parser = check_mount_option)]
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
    /// Mount only while this command runs; needs no fusermount3
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<OsString>,
}

fn check_mount_option(text: &str) -> Result<String, String> {
    if text == "exec" || parse_edit_limit(text).is_some() {
        return Ok(text.to_owned());
    }
    Err("valid options are `exec` and `edit_limit=SECONDS`, from 1 to 3600".to_owned())
}

/// Parses the option `edit_limit=SECONDS`, with 1 to 3600 seconds. Returns `None` for any other
/// text.
pub(crate) fn parse_edit_limit(option: &str) -> Option<Duration> {
    let seconds = option.strip_prefix("edit_limit=")?.parse().ok()?;
    (1..=3600).contains(&seconds).then(|| Duration::from_secs(seconds))
}
