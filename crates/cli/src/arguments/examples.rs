//! Arguments of `examples`.

use clap::Args;
use std::path::PathBuf;

/// Arguments of `examples`.
#[derive(Args, Debug)]
pub(crate) struct ExamplesArguments {
    /// Write web.pcap and all requests into this folder, creating it if needed
    #[arg(long, value_name = "DIR")]
    pub(crate) write: Option<PathBuf>,
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
}
