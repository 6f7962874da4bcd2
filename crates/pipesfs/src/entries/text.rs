//! The kinds of text that the files of PipesFS contain.

/// The kind of text that a file contains.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum FileText {
    /// The introduction, in the file `README`.
    Readme,
    /// The reason for the latest failure of the user who reads the file.
    Error,
    /// The eBPF programs and packet sockets that other applications have attached to an interface.
    Neighbors,
    /// The manual of the filter with this name.
    Manual(String),
    /// The request of a path.
    Request,
    /// The value of the argument with this name.
    Argument(String),
    /// The spaces in which the nodes of a directory run.
    Space,
    /// The reason for the choice of the space in which a node runs.
    PlacementReason,
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
    /// The remaining time for which a source keeps its past output.
    Freeze,
    /// The number of blocks that a node has received or generated.
    Blocks,
    /// The total length in bytes of the blocks that a node has received or generated.
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
    /// Number of blocks that the readers of a directory's streams have missed.
    Missed,
}

impl FileText {
    /// Returns true if the file reports the length of its text as its size, because the text is
    /// derived from the tree without counters. Other files report size 0, like the files of
    /// `/proc`.
    #[must_use]
    pub const fn has_size(&self) -> bool {
        matches!(
            self,
            Self::Readme
                | Self::Manual(_)
                | Self::Request
                | Self::Argument(_)
                | Self::Space
                | Self::PlacementReason
                | Self::Replicas
                | Self::Hook
        )
    }

    /// Returns true if the text is derived from the counters that a path reports.
    #[must_use]
    pub const fn is_from_counters(&self) -> bool {
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
