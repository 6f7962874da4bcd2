//! Arguments of the commands that are separate programs.

use clap::Args;
use std::ffi::OsString;

/// Arguments that are passed to another program.
#[derive(Args, Debug)]
pub(crate) struct SeparateProgramArguments {
    /// Arguments of the program, such as --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<OsString>,
}
