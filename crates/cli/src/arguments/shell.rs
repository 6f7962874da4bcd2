//! Arguments of `sh` and `exec`, which run other programs over rings.

use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Arguments of `sh`.
#[derive(Args, Debug)]
pub(crate) struct ShellArguments {
    /// The command, as for sh -c
    #[arg(short, value_name = "COMMAND")]
    pub(crate) command: Option<String>,
    /// Report for each edge if it is a stream or a kernel pipe, and why; at the end, what it moved
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
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PreloadPart {
    /// Live captures, if the program is linked against libpcap: they are read from the rings that
    /// all captures of an interface share
    Pcap,
    /// Pipes to other programs
    Pipes,
    /// UDP sockets that receive 20,000 datagrams a second or more: they receive them from a ring
    Udp,
}

/// Arguments of `exec`.
#[derive(Args, Debug)]
pub(crate) struct ExecArguments {
    /// Parts to take over, also in programs that it starts; by default pcap and pipes
    #[arg(long, value_delimiter = ',', value_name = "PARTS")]
    pub(crate) with: Vec<PreloadPart>,
    /// Let the program copy lazily: it writes the contents that the file has when the write happens
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
