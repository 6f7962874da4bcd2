//! Grace periods: waiting until a replaced program is no longer running on any CPU.
//!
//! Replacing a program through its link takes effect with the next packet, but a CPU that is
//! executing the old program finishes its run. The kernel lets user space wait for these runs to
//! end in one case: an update of a map of maps returns only when no running program can still hold
//! the old inner map. [`GracePeriod`] owns a map of maps that it updates only in order to wait.

use std::os::fd::{AsFd as _, AsRawFd as _};

use super::map::Map;
use crate::error::Result;

/// A map of maps that is updated only because an update blocks for a grace period.
#[derive(Debug)]
pub struct GracePeriod {
    outer: Map,
    inner: Map,
}

impl GracePeriod {
    /// Creates the map of maps, and the inner map that it holds.
    pub fn new() -> Result<Self> {
        let inner = Map::array("inner", 4, 1, false)?;
        let outer = Map::create_array_of_maps(&inner, "grace")?;
        Ok(Self { outer, inner })
    }

    /// Blocks, usually for tens of milliseconds, until every program run that started before this
    /// call has ended.
    pub fn wait(&self) -> Result<()> {
        self.outer.set(0, &self.inner.as_fd().as_raw_fd().to_ne_bytes())
    }
}
