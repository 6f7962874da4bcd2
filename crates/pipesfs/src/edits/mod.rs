//! Changes of the tree. Each change is an edit of a path, which the path's own process applies.
//!
//! - [`threads`]: the threads in which they run.

pub(crate) mod threads;

use std::time::Duration;

/// Maximum time of an edit. The kernel locks the directory meanwhile.
pub const EDIT_LIMIT: Duration = Duration::from_secs(2);
