//! Counters of the bytes that each edge of a pipeline moves in three ways: through the kernel pipe,
//! copied through the ring, and passed by pointer. The programs update the counters in memory that
//! they share with this process. With `-v`, this process reports the counters at the end.

use abi::edge::{EdgeCount, INHERITED_DESCRIPTOR_MIN};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use sys::memory::{Memfd, Seals};

/// The byte counters of all edges of a pipeline, in shared memory.
pub(super) struct EdgeCounters {
    file: Memfd,
}

impl EdgeCounters {
    /// Creates counters for `edges` edges, in shared memory.
    pub(super) fn create(edges: usize) -> sys::Result<Self> {
        let file = Memfd::create("streamline-edges", edges.max(1) * EdgeCount::EDGE_COUNTERS_SIZE)?;
        file.seal(Seals::SIZE)?;
        Ok(Self { file })
    }

    /// Returns a duplicate of the counters' descriptor, which a program inherits. Also returns the
    /// value of the environment variable through which the program finds the descriptor.
    pub(super) fn inheritable_descriptor(&self) -> std::io::Result<(String, OwnedFd)> {
        let copy =
            sys::children::duplicate_inheritable(self.file.as_fd(), INHERITED_DESCRIPTOR_MIN)?;
        let inode = File::from(copy.try_clone()?).metadata()?.ino();
        if inode == 0 {
            return Err(ErrorKind::NotFound.into());
        }
        Ok((format!("{}:{inode}", copy.as_raw_fd()), copy))
    }

    /// Describes the traffic of the edge with index `at`: the bytes that the programs `from` and
    /// `to` have counted at its ends, and the size of its ring. Returns an empty list if the edge
    /// has moved no bytes.
    pub(super) fn describe(&self, at: usize, from: &str, to: &str) -> Vec<String> {
        let Ok(mapping) = self.file.map_read() else { return Vec::new() };
        let edge = u32::try_from(at).unwrap_or(u32::MAX);
        let number = |count: EdgeCount| mapping.word(count.offset(edge)).unwrap_or(0);
        let line = |who: &str, [pipe, copied, passed]: [EdgeCount; 3]| {
            let [pipe, copied, passed] = [pipe, copied, passed].map(number);
            (pipe + copied + passed > 0).then(|| {
                let edge = at + 1;
                format!(
                    "edge {edge}, {who}: {copied} bytes copied, {passed} by pointer, {pipe} by pipe"
                )
            })
        };
        let writer = [EdgeCount::WrittenToPipe, EdgeCount::CopiedIn, EdgeCount::PassedIn];
        let reader = [EdgeCount::ReadFromPipe, EdgeCount::CopiedOut, EdgeCount::PassedOut];
        let ring = {
            use EdgeCount::{RingGrown, RingShrunk, RingSize, RingSizeMax};
            let [size, most, grown, shrunk] =
                [RingSize, RingSizeMax, RingGrown, RingShrunk].map(number);
            (size > 0).then(|| {
                let (edge, size, most) = (at + 1, size >> 10, most >> 10);
                format!(
                    "edge {edge}, ring: {size} KB at the end, at most {most}; grown {grown} times, \
                     shrunk {shrunk}"
                )
            })
        };
        let lines =
            [line(&format!("{from} wrote"), writer), ring, line(&format!("{to} read"), reader)];
        lines.into_iter().flatten().collect()
    }
}
