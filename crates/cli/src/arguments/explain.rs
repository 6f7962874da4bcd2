//! Arguments of `explain`.

use super::RequestArguments;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArguments {
    /// The request.
    #[command(flatten)]
    pub(crate) line: RequestArguments,
    /// Print one JSON object
    #[arg(short, long)]
    pub(crate) json: bool,
    /// The drawings.
    #[command(flatten)]
    pub(crate) drawings: DrawingArguments,
    /// Plan without the daemon
    #[arg(long)]
    pub(crate) embedded: bool,
    /// Also run the request and show measurements; all text except data then goes to standard error
    #[arg(long, conflicts_with = "json")]
    pub(crate) analyze: bool,
    /// Stop the run after this time (10us, 250ms, 2s, 5m)
    #[arg(long = "for", value_name = "TIME", value_parser = pipeline::explain::parse_time)]
    #[arg(requires = "analyze")]
    pub(crate) time: Option<u64>,
    /// Stop the run when the sinks have received this many blocks
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(requires = "analyze")]
    pub(crate) count: Option<u64>,
}

/// Drawings of the plan, each with its file; `-` is standard output.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DrawingArguments {
    /// Draw the graph in the DOT language, for dot -Tsvg, on standard output or into FILE; with
    /// --analyze also rates, measured costs and losses
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "-", conflicts_with = "json")]
    pub(crate) dot: Option<PathBuf>,
    /// Draw the graph as an SVG picture, on standard output or into FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "-", conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
}

impl DrawingArguments {
    /// Returns true if no drawing is requested.
    pub(crate) const fn is_empty(&self) -> bool {
        self.dot.is_none() && self.svg.is_none()
    }

    /// Returns true if a drawing is written to standard output.
    pub(crate) fn writes_to_stdout(&self) -> bool {
        self.dot.iter().chain(&self.svg).any(|file| file.as_os_str() == "-")
    }
}
