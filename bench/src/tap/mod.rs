//! A tap with its program on a device and the processes that read its kernel ring, for `bench
//! capture` and `bench moderation`. [SL fig. 15]

mod program;
mod reader;

pub(crate) use ebpf::emit::tap::{WakePolicy, WakeupTarget};
pub(crate) use reader::{TapReader, serve};

use pipeline::plan::KernelRing;
use std::os::fd::{AsFd as _, BorrowedFd};
use sys::bpf::ring::region_offset::NOTIFICATION_COUNTS;
use sys::bpf::{
    ChainPosition, Link, Program, ProgramRings, RingBuffer, RingsLayout, TrafficDirection,
};
use testkit::net::Namespace;

/// A limit of a [`WakePolicy`] that is never reached. It serves as a time in ns, a number of bytes,
/// or a number of frames.
pub(crate) const UNREACHABLE_LIMIT: u32 = u32::MAX >> 1;
/// Number of pointers in the ring of each processor, as in the rings of a request.
const POINTERS_PER_PROCESSOR: u32 = 1 << 14;

/// Returns the wake policy of a request that sets neither batches nor latency.
pub(crate) fn default_policy(shape: RingsLayout) -> WakePolicy {
    engine::kernel::doorbell_policy(&KernelRing::default(), shape)
}

/// Returns the wake policy of a request that sets neither batches nor latency and has several
/// readers.
pub(crate) fn policy_for_several_readers(shape: RingsLayout) -> WakePolicy {
    WakePolicy { target: WakeupTarget::Everyone, ..default_policy(shape) }
}

/// A tap, attached until it is dropped: its program, and the ring and the doorbell that the program
/// writes.
#[derive(Debug)]
pub(crate) struct Tap {
    rings: ProgramRings,
    doorbell: RingBuffer,
    program: Program,
    link: Option<Link>,
}

impl Tap {
    /// Creates rings of `bytes` bytes per processor, and a program that is not attached yet.
    pub(crate) fn new(
        bytes: u32,
        record_max: u32,
        when: impl FnOnce(RingsLayout) -> WakePolicy,
    ) -> Result<Self, String> {
        let cpus = sys::machine::count_possible_processors().map_err(|why| why.to_string())?;
        let cpus = u32::try_from(cpus).map_err(|why| why.to_string())?;
        let shape =
            RingsLayout { cpus, sinks: 1, pointers: POINTERS_PER_PROCESSOR, bytes, record_max };
        let rings = ProgramRings::create("bench_ring", shape).map_err(|why| why.to_string())?;
        let doorbell = RingBuffer::create("bench_bell", 1 << 16).map_err(|why| why.to_string())?;
        let program = program::load_program(&rings, &doorbell, when(shape))?;
        Ok(Self { rings, doorbell, program, link: None })
    }

    /// Attaches the tap's program to the ingress of a device in a namespace.
    pub(crate) fn attach(&mut self, space: &Namespace, device: u32) -> Result<(), String> {
        let program = &self.program;
        let link = space.run_in_network_namespace(|| {
            Link::attach_tcx(program, device, TrafficDirection::Ingress, ChainPosition::Head, None)
        });
        self.link = Some(link.map_err(|why| why.to_string())?);
        Ok(())
    }

    /// Drains the doorbell in place of the readers, so that the tap sends further doorbells.
    pub(crate) fn drain_doorbell(&mut self) {
        self.doorbell.drain(|_| ());
    }

    /// Returns the number of doorbells that the tap has sent so far.
    pub(crate) fn doorbells_sent(&self) -> u64 {
        self.sum_over_processors(|cpu| {
            self.rings.cpu_ring(cpu).and_then(|r| r.scratch_word(NOTIFICATION_COUNTS)).unwrap_or(0)
        })
    }

    /// Returns the sum of the committed positions in the rings of all processors. Records below a
    /// committed position are complete.
    pub(crate) fn committed_position_sum(&self) -> u64 {
        self.sum_over_processors(|cpu| {
            self.rings.cpu_ring(cpu).map_or(0, |region| region.committed_position())
        })
    }

    fn sum_over_processors(&self, one: impl Fn(u32) -> u64) -> u64 {
        (0..self.rings.layout().cpus).map(one).sum()
    }

    /// Returns the descriptors that a reader needs: the rings, and the doorbell opened read-only.
    fn descriptors(&self) -> Result<(BorrowedFd<'_>, std::os::fd::OwnedFd), String> {
        let doorbell = self.doorbell.map().open_read_only().map_err(|why| why.to_string())?;
        Ok((self.rings.as_fd(), doorbell))
    }
}
