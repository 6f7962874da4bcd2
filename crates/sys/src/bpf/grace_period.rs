//! When a program that was replaced has run for the last time.
//!
//! Replacing a program by a link changes what the next packet meets; a processor that is in the
//! middle of the old one goes on. The kernel says when all of them are done in one case: after a
//! map in a map was changed, the call returns when no program runs any more that may have seen the
//! map before. So a map in a map is changed here, for its wait alone.

use std::os::fd::{AsFd as _, AsRawFd as _};

use super::map::Map;
use crate::error::Result;

/// Waits for programs to end.
#[derive(Debug)]
pub struct GracePeriod {
    outer: Map,
    inner: Map,
}

impl GracePeriod {
    /// Makes the two maps.
    pub fn new() -> Result<Self> {
        let inner = Map::array("inner", 4, 1, false)?;
        let outer = Map::around(&inner, "grace")?;
        Ok(Self { outer, inner })
    }

    /// Returns when every run of a program that had begun before the call has ended: after tens of
    /// milliseconds.
    pub fn wait(&self) -> Result<()> {
        self.outer.set(0, &self.inner.as_fd().as_raw_fd().to_ne_bytes())
    }
}
