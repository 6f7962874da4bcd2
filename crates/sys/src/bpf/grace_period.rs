//! Waiting until a replaced program has run for the last time.
//!
//! Replacing a program through its link affects the next packet; a CPU that is inside the old
//! program finishes it. The kernel exposes this grace period in one place: an update of a map of
//! maps returns only when no running program can still hold the old inner map. [`GracePeriod`]
//! updates such a map for that wait alone.

use std::os::fd::{AsFd as _, AsRawFd as _};

use super::map::Map;
use crate::error::Result;

/// A map of maps whose update blocks for a grace period.
#[derive(Debug)]
pub struct GracePeriod {
    outer: Map,
    inner: Map,
}

impl GracePeriod {
    /// Creates the two maps.
    pub fn new() -> Result<Self> {
        let inner = Map::array("inner", 4, 1, false)?;
        let outer = Map::array_of(&inner, "grace")?;
        Ok(Self { outer, inner })
    }

    /// Blocks until every program run that had started before the call has ended: tens of
    /// milliseconds.
    pub fn wait(&self) -> Result<()> {
        self.outer.set(0, &self.inner.as_fd().as_raw_fd().to_ne_bytes())
    }
}
