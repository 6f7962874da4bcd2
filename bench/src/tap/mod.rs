//! A kernel ring with its program on a device, and the processes that read it: what `bench capture`
//! and `bench moderation` measure. [SL fig. 15]

mod program;
mod reader;

pub(crate) use ebpf::emit::tap::{WakePolicy, Wakeup};
pub(crate) use reader::{Reader, serve};

use pipeline::plan::KernelRing;
use std::os::fd::{AsFd as _, BorrowedFd};
use sys::bpf::ring::region_offset::NOTIFIED;
use sys::bpf::{Anchor, Link, Program, RingBuffer, Rings, RingsLayout, Side};
use testkit::net::Namespace;

/// A time or number of bytes that never comes, for a bell.
pub(crate) const NEVER: u32 = u32::MAX >> 1;
/// Records of room for each processor, as in the rings of a line.
const POINTERS: u32 = 1 << 14;

/// The wake policy of a request that sets neither batches nor latency.
pub(crate) fn of_a_line(shape: RingsLayout) -> WakePolicy {
    engine::kernel::bell(&KernelRing::default(), shape)
}

/// The same where several listen.
pub(crate) fn usual(shape: RingsLayout) -> WakePolicy {
    WakePolicy { wakes: Wakeup::Everyone, ..of_a_line(shape) }
}

/// A tap: its ring, its bell and its program, while it is there.
#[derive(Debug)]
pub(crate) struct Tap {
    rings: Rings,
    bell: RingBuffer,
    program: Program,
    link: Option<Link>,
}

impl Tap {
    /// Rings of so many bytes for each processor, written by a program that hangs nowhere yet.
    pub(crate) fn new(
        bytes: u32,
        record_max: u32,
        when: impl FnOnce(RingsLayout) -> WakePolicy,
    ) -> Result<Self, String> {
        let cpus = sys::machine::possible_processors().map_err(|why| why.to_string())?;
        let cpus = u32::try_from(cpus).map_err(|why| why.to_string())?;
        let shape = RingsLayout { cpus, sinks: 1, pointers: POINTERS, bytes, record_max };
        let rings = Rings::create("bench_ring", shape).map_err(|why| why.to_string())?;
        let bell = RingBuffer::create("bench_bell", 1 << 16).map_err(|why| why.to_string())?;
        let program = program::load(&rings, &bell, when(shape))?;
        Ok(Self { rings, bell, program, link: None })
    }

    /// Hangs the program at what comes in at a device of a name space.
    pub(crate) fn attach(&mut self, space: &Namespace, device: u32) -> Result<(), String> {
        let program = &self.program;
        let link = space.enter(|| Link::tcx(program, device, Side::Ingress, Anchor::Head, None));
        self.link = Some(link.map_err(|why| why.to_string())?);
        Ok(())
    }

    /// Lets the bell ring again: those who hear it do not take its records out.
    pub(crate) fn rewind(&mut self) {
        self.bell.drain(|_| ());
    }

    /// Returns the number of wake-ups.
    pub(crate) fn bells(&self) -> u64 {
        self.sum(|cpu| self.rings.region(cpu).and_then(|r| r.scratch(NOTIFIED)).unwrap_or(0))
    }

    /// Returns the committed positions of all processors, summed.
    pub(crate) fn committed(&self) -> u64 {
        self.sum(|cpu| self.rings.region(cpu).map_or(0, |region| region.committed()))
    }

    fn sum(&self, one: impl Fn(u32) -> u64) -> u64 {
        (0..self.rings.shape().cpus).map(one).sum()
    }

    /// The descriptors for a reader.
    fn descriptors(&self) -> Result<(BorrowedFd<'_>, std::os::fd::OwnedFd), String> {
        let bell = self.bell.map().read_only().map_err(|why| why.to_string())?;
        Ok((self.rings.as_fd(), bell))
    }
}
