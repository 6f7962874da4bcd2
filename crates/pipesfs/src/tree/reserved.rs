//! Entry names that no filter below a directory may have.

/// Reserved entry names in the directory of a node.
pub(super) const NODE_ENTRIES: &[&str] = &[
    "all",
    "all.pcap",
    "all.jsonl",
    "config",
    "stats",
    "place",
    "replicas",
    "process",
    "processors",
    "hook",
    "why",
    "program",
    "state",
];
/// Reserved entry names in the root directory.
pub(super) const ROOT_ENTRIES: &[&str] = &["README"];
/// Reserved entry names in the directory of a path that has a name.
pub(super) const PATH_ENTRIES: &[&str] = &["request"];
/// Reserved entry names in the directory of a path that started as an empty stream.
pub(crate) const STREAM_ENTRIES: &[&str] = &[
    "all",
    "all.pcap",
    "all.jsonl",
    "config",
    "stats",
    "place",
    "replicas",
    "process",
    "processors",
    "hook",
    "why",
    "program",
    "state",
    "request",
];
