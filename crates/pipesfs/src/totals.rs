//! Counters of the bytes that programs have read from and written to the streams of each directory
//! since the mount, and of the blocks that readers have missed.
//!
//! This server counts the bytes of its reads and writes. The paths count the same bytes at their
//! end, so the totals of both can be compared if a program reads from one directory and writes to
//! another.

use crate::tree::{DirectoryId, Tree};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The byte and block counters of one directory.
#[derive(Debug, Default)]
pub struct Totals {
    read: AtomicU64,
    written: AtomicU64,
    missed: AtomicU64,
}

impl Totals {
    /// Counts bytes that a program has read.
    pub fn add_read_bytes(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that a program has written.
    pub fn add_written_bytes(&self, bytes: usize) {
        self.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts blocks that were skipped for a reader whose stream has ended.
    pub fn add_missed_blocks(&self, blocks: u64) {
        self.missed.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Returns the numbers of bytes read and written so far.
    #[must_use]
    pub fn read_and_written(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed))
    }
}

/// Number of directories with counters above which the counters of directories that no longer exist
/// are removed.
const STORED_TOTALS_MAX: usize = 1024;

/// The byte and block counters of all directories.
#[derive(Debug, Default)]
pub struct TotalsByDirectory(Mutex<HashMap<DirectoryId, Arc<Totals>>>);

impl TotalsByDirectory {
    /// Returns the counters of a directory of `tree`. A directory without counters gets new ones,
    /// which start at 0.
    pub fn directory_totals(&self, place: &DirectoryId, tree: &Tree) -> Arc<Totals> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= STORED_TOTALS_MAX {
            places.retain(|place, _| {
                tree.contains(&crate::entries::ObjectKey::directory(place.clone()))
            });
        }
        Arc::clone(places.entry(place.clone()).or_default())
    }

    /// Returns the numbers of bytes that programs have read from and written to a directory.
    #[must_use]
    pub fn read_and_written(&self, place: &DirectoryId) -> (u64, u64) {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(place).map_or((0, 0), |totals| totals.read_and_written())
    }

    /// Returns the number of blocks of a directory that were skipped for readers whose streams have
    /// ended. Open streams are not included.
    #[must_use]
    pub fn missed(&self, place: &DirectoryId) -> u64 {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(place).map_or(0, |totals| totals.missed.load(Ordering::Relaxed))
    }
}
