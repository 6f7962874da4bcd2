//! Bounds on the size of a request.
//!
//! A request may come from another user of the daemon, so each dimension in which it could grow has
//! a bound and a message of its own; none is near what a person writes.

/// Bytes of text.
pub const TEXT_MAX: usize = 64 * 1024;

/// Parentheses and negations inside one another. The parser recurses once per level and no deeper.
pub const DEPTH_MAX: usize = 64;

/// Filters in all pipelines of a request together.
pub const FILTERS_MAX: usize = 1000;

/// Programs in all pipelines of a request together: each is a process, and one behind the other
/// need a thread each.
pub const PROGRAMS_MAX: usize = 64;

/// Different `--name=` marks.
pub const NAMES_MAX: usize = 64;

/// Mistakes that are reported; the others are only counted, so that a report stays readable.
pub const MISTAKES_MAX: usize = 100;

/// Arcs of the graph: `(a + b) | (c + d)` has four, so their number can be the square of the
/// text's.
pub const ARCS_MAX: usize = 16_384;

/// Classes in one label: each arc that the label becomes carries all of them.
pub const CLASSES_MAX: usize = 256;
