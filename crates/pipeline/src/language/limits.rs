//! Bounds on the size of a request.
//!
//! A request may come from another user through the daemon, so every dimension in which it can grow
//! has a bound and an error message. All bounds are far above the needs of a handwritten request.

/// Maximum length of a request, in bytes of text.
pub const TEXT_MAX: usize = 64 * 1024;

/// Maximum nesting of parentheses and negations; also the recursion depth of the parser.
pub const NESTING_DEPTH_MAX: usize = 64;

/// Maximum number of filters in a request.
pub const FILTERS_MAX: usize = 1000;

/// Maximum number of programs (`exec`) in a request. Each program is a process and may need a
/// thread.
pub const PROGRAMS_MAX: usize = 64;

/// Maximum number of distinct `--name=` marks.
pub const MARKS_MAX: usize = 64;

/// Maximum number of diagnostics reported in full. Further diagnostics are only counted.
pub const DIAGNOSTICS_MAX: usize = 100;

/// Maximum number of arcs in the graph. The number of arcs can grow with the square of the text
/// length; for example, `(a + b) | (c + d)` has four arcs.
pub const ARCS_MAX: usize = 16_384;

/// Maximum number of comma-separated classes and ranges in one label. Every arc made from the label
/// carries the entire set.
pub const LABEL_CLASSES_MAX: usize = 256;
