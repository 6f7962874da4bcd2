//! Open files and directories that are neither streams nor writers of a stream.

use crate::entries::ObjectKey;
use crate::tree::DirectoryId;
use std::sync::Arc;

/// An open file or directory that is neither a stream nor the writer of one.
#[derive(Debug)]
pub(super) enum Handle {
    /// The text of a file at the time it was opened.
    Text(Arc<Vec<u8>>),
    /// The entries of a directory at the time it was opened.
    Directory(Arc<Vec<(String, ObjectKey)>>),
    /// An argument of a filter, open for writing.
    Argument {
        /// Number of the path that runs the filter.
        path: u32,
        /// Name of the node.
        node: String,
        /// Name of the argument.
        name: String,
    },
    /// The file `freeze` of a source, open for writing. A write sets the time for which the source
    /// keeps its past output.
    Freeze(DirectoryId),
}
