//! The kinds of texts in files.

/// The content of a file with a text.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Text {
    /// The introduction in the root directory.
    Readme,
    /// The reason for the latest failure of the user who reads the file.
    Error,
    /// Programs and packet sockets of other applications on an interface.
    Others,
    /// The manual of the filter with this name.
    Manual(String),
    /// The request of a path.
    Request,
    /// The value of the argument with this name.
    Argument(String),
    /// The spaces in which the nodes of a directory run.
    Space,
    /// The reason for the placement of a node.
    Why,
    /// The number of replicas of a node; 1 for a node without replicas.
    Replicas,
    /// The hook of the kernel at which the program of a node is attached.
    Hook,
    /// The ids of the processes that run a node.
    Process,
    /// The processors on which a node may run.
    Processors,
    /// The instructions of a filter that runs in the kernel.
    Program,
    /// The remaining time for which the retained output of a source is kept.
    Freeze,
    /// The number of blocks that a node has received or made.
    Blocks,
    /// The total length in bytes of the blocks that a node has received or made.
    Bytes,
    /// Mean time that a filter spends on a block, in ns.
    NsPerBlock,
    /// The number of blocks lost for the reason with this name.
    Lost(String),
    /// The state that a filter publishes under this name.
    State(String),
    /// Number of bytes that programs have read from the streams of a directory.
    Read,
    /// Number of bytes that programs have written to the streams of a directory.
    Written,
    /// Number of blocks that were skipped for readers of the streams of a directory.
    Missed,
}

impl Text {
    /// Returns true if the size of the file is the length of its text, because the text is derived
    /// from the tree without counters. Other files have the size 0, like those of `/proc`.
    #[must_use]
    pub const fn has_size(&self) -> bool {
        matches!(
            self,
            Self::Readme
                | Self::Manual(_)
                | Self::Request
                | Self::Argument(_)
                | Self::Space
                | Self::Why
                | Self::Replicas
                | Self::Hook
        )
    }

    /// Returns true if the text is derived from the counters that a path reports.
    #[must_use]
    pub const fn is_counter(&self) -> bool {
        matches!(
            self,
            Self::Blocks
                | Self::Bytes
                | Self::NsPerBlock
                | Self::Lost(_)
                | Self::Process
                | Self::Processors
        )
    }
}
